"""The vocabulary of formats: closed, in words, and for FFmpeg."""

import pytest

from server.formats import (
    CODECS,
    CONTAINERS,
    NAMES,
    codec_name,
    container_name,
    ffmpeg_list,
    in_words,
)

# Each opens what the file does not hold itself, or a device.
FORBIDDEN = ["concat", "hls", "image2", "sdp", "rtsp", "rtp", "lavfi", "tty", "x11grab", "fbdev"]


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_opens_other_resources_can_not_be_accepted(name):
    assert name not in CONTAINERS
    assert all(name not in container.ffmpeg_names for container in CONTAINERS.values())


def test_no_decoder_or_demuxer_belongs_to_two_names():
    for formats in (CONTAINERS, CODECS):
        names = [name for entry in formats.values() for name in entry.ffmpeg_names]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("demuxer", "name"),
    [
        ("mov,mp4,m4a,3gp,3g2,mj2", "mp4"),
        ("matroska,webm", "matroska"),
        ("png_pipe", "png"),
        ("concat", "concat"),
        ("Lavf 0x7f", None),
    ],
)
def test_a_demuxer_has_one_name_or_none(demuxer, name):
    assert container_name(demuxer) == name


@pytest.mark.parametrize(
    ("codec", "name"), [("prores", "prores"), ("huffyuv", "huffyuv"), ("../h264", None)]
)
def test_a_codec_has_its_name_or_none(codec, name):
    assert codec_name(codec) == name


def test_every_name_is_safe_to_print():
    assert all(name.isascii() and name.replace("_", "").isalnum() for name in NAMES)


def test_lists_are_written_for_ffmpeg_and_for_people():
    assert ffmpeg_list(CODECS, ("vp9", "h264")) == "vp9,libvpx-vp9,h264"
    assert in_words(CODECS, ("gif",)) == "GIF"
    assert in_words(CODECS, ("wmv2", "wmv1", "h264", "vp9")) == "H.264, VP9 or WMV"
