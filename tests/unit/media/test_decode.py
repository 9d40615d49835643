"""The decoder in this process: every frame is the frame that it says it is."""

import struct
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as transforms
from torchvision.tv_tensors import Image

from server.errors import InvalidVideo
from server.media.clip import FramePlan
from server.media.decode import VideoSource
from server.media.sourcefile import SourceFile
from server.media.timeline import can_be_shared
from tests.clips.counter import ClipRecipe, counters
from tests.clips.decoded import (
    LIMITS,
    decoded_frames,
    packet_places,
    probed,
    reference_frames,
)

ONE_KEYFRAME = {"x264-params": "keyint=infinite:scenecut=0:bframes=3"}
OPEN_GOP = {"x264-params": "keyint=12:min-keyint=12:scenecut=0:bframes=3:open-gop=1"}
SHORT_GOP = {"g": "10", "bf": "2"}
PYRAMID = {"x264-params": "keyint=20:min-keyint=20:scenecut=0:bframes=6:b-adapt=0:b-pyramid=normal"}
PYRAMID_OPEN = {"x264-params": PYRAMID["x264-params"] + ":open-gop=1"}
HEVC = "log-level=none:keyint=20:min-keyint=20:scenecut=0:bframes=4:b-adapt=0"
CURSED_TIMES = [0, 5, 1500, 1533, 1600, *range(2000, 2000 + 55 * 21, 21)]

RECIPES = {
    "h264-bframes": ClipRecipe(options={"bf": "3", "g": "20"}),
    "h264-one-keyframe": ClipRecipe(options=ONE_KEYFRAME),
    "h264-open-gop": ClipRecipe(options=OPEN_GOP),
    "h264-all-intra": ClipRecipe(options={"g": "1"}),
    "h264-intra-refresh": ClipRecipe(options={"x264-params": "intra-refresh=1:keyint=20"}),
    "h264-vfr": ClipRecipe(times_ms=CURSED_TIMES, options=SHORT_GOP),
    "h264-offset": ClipRecipe(times_ms=[10_000 + 33 * n for n in range(60)], options=SHORT_GOP),
    "h264-negative": ClipRecipe(
        container="matroska", times_ms=[-200 + 33 * n for n in range(60)], options=SHORT_GOP
    ),
    "h264-fragmented": ClipRecipe(
        options=SHORT_GOP, container_options={"movflags": "frag_keyframe+empty_moov"}
    ),
    "h264-odd-size": ClipRecipe(container="matroska", width=161, height=97, codec="libvpx-vp9"),
    "h264-mkv": ClipRecipe(container="matroska", options=SHORT_GOP),
    "h264-ts": ClipRecipe(container="mpegts", options=SHORT_GOP),
    "h264-flv": ClipRecipe(container="flv", options=SHORT_GOP),
    "h264-avi": ClipRecipe(container="avi", options=SHORT_GOP),
    "h264-raw": ClipRecipe(container="h264", options=SHORT_GOP),
    "hevc": ClipRecipe(codec="libx265", options={"x265-params": "log-level=none:keyint=20"}),
    "h264-pyramid": ClipRecipe(options=PYRAMID),
    "h264-pyramid-open-gop-mkv": ClipRecipe(container="matroska", options=PYRAMID_OPEN),
    "h264-pyramid-open-gop-ts": ClipRecipe(container="mpegts", options=PYRAMID_OPEN),
    "h264-slices": ClipRecipe(options={"x264-params": "keyint=20:slices=4", "bf": "3"}),
    "hevc-pyramid-open-gop": ClipRecipe(
        codec="libx265", options={"x265-params": HEVC + ":b-pyramid=1:open-gop=1"}
    ),
    "hevc-ts": ClipRecipe(
        container="mpegts", codec="libx265", options={"x265-params": HEVC + ":open-gop=0"}
    ),
    "hevc-temporal-layers-mkv": ClipRecipe(
        container="matroska", codec="libx265", options={"x265-params": HEVC + ":temporal-layers=3"}
    ),
    "vp8": ClipRecipe(container="webm", codec="libvpx", options={"g": "20", "auto-alt-ref": "1"}),
    "vp9": ClipRecipe(container="webm", codec="libvpx-vp9", options={"g": "20"}),
    "av1": ClipRecipe(codec="libsvtav1", options={"preset": "12", "g": "20"}),
    "mpeg4": ClipRecipe(codec="mpeg4", options={"g": "10", "bf": "2", "b": "4M"}),
    "mpeg4-avi": ClipRecipe(container="avi", codec="mpeg4", options={"bf": "2", "b": "4M"}),
    "mpeg2-ps": ClipRecipe(container="mpeg", codec="mpeg2video", options={"bf": "2", "b": "6M"}),
    "one-frame": ClipRecipe(num_frames=1),
    "two-frames": ClipRecipe(num_frames=2),
}


@pytest.fixture(scope="module")
def encoded():
    """Returns the bytes of a recipe, encoded once."""
    cache = {}

    def encode(name):
        if name not in cache:
            cache[name] = RECIPES[name].encode()
        return cache[name]

    return encode


@pytest.mark.parametrize("name", RECIPES)
def test_frame_i_is_frame_i(name, encoded):
    recipe = RECIPES[name]
    size = (recipe.width, recipe.height)
    facts = probed(encoded(name))
    assert (facts.num_frames, facts.width, facts.height) == (recipe.num_frames, *size)
    every = range(recipe.num_frames)
    frames = decoded_frames(encoded(name), frame_indices=every, size=size)
    assert counters(frames) == list(every)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("choice", ["first", "last", "few", "held", "dense"])
def test_chosen_frames_equal_those_of_decoding_everything(name, choice, encoded):
    recipe = RECIPES[name]
    last = recipe.num_frames - 1
    chosen = {
        "first": (0,),
        "last": (last,),
        "few": tuple(sorted({last // 5, last // 2, last * 2 // 3})),
        "dense": tuple(range(0, recipe.num_frames, 7)),
        "held": (0, last // 2, last // 2, last // 2, last),
    }[choice]
    reference = reference_frames(encoded(name))
    frames = decoded_frames(encoded(name), frame_indices=chosen, size=(recipe.width, recipe.height))
    for frame, index in zip(frames, chosen, strict=True):
        np.testing.assert_array_equal(frame, reference[index])


@pytest.mark.parametrize(
    "name",
    [
        "h264-pyramid",
        "h264-pyramid-open-gop-mkv",
        "h264-pyramid-open-gop-ts",
        "hevc-pyramid-open-gop",
        "hevc-ts",
        "hevc-temporal-layers-mkv",
    ],
)
def test_pictures_that_no_wanted_one_needs_are_not_decoded(name, encoded):
    with VideoSource(SourceFile(encoded(name)), LIMITS) as video:
        video.probe()
        spans = video._timeline.spans([19, 59])
        with video._feed() as feed:
            needed = sum(len(list(video._needed(feed.span(span), {19, 59}))) for span in spans)
    in_spans = sum(span.last + 1 - span.first for span in spans)
    assert in_spans * 0.3 < needed < in_spans * 0.8


def test_times_are_those_of_the_frames(encoded):
    facts = probed(encoded("h264-vfr"))
    assert facts.frame_times_seconds == pytest.approx([t / 1000 for t in CURSED_TIMES], abs=1e-3)
    assert facts.duration_seconds > facts.frame_times_seconds[-1]


@pytest.mark.parametrize("name", ["h264-offset", "h264-negative", "h264-ts", "h264-avi"])
def test_the_first_frame_is_at_zero(name, encoded):
    facts = probed(encoded(name))
    assert facts.frame_times_seconds[0] == 0
    assert facts.duration_seconds == pytest.approx(2.0, abs=0.05)


def test_a_stream_without_times_is_dated_by_its_rate(encoded):
    facts = probed(encoded("h264-raw"))
    steps = np.diff(facts.frame_times_seconds)
    assert steps == pytest.approx(steps[0])
    assert facts.num_frames == 60


@pytest.mark.parametrize("rotation", [90, 180, 270, -90])
def test_rotated_videos_come_out_upright(rotation):
    # The coded picture is the upright one turned back, so it is made wide enough both ways.
    recipe = ClipRecipe(num_frames=6, width=160, height=144, rotation=rotation)
    source = recipe.encode()
    facts = probed(source)
    size = (144, 160) if rotation % 180 else (160, 144)
    assert (facts.width, facts.height) == size
    assert facts.rotation_degrees == rotation % 360
    frames = decoded_frames(source, frame_indices=range(6), size=size)
    for frame, reference in zip(frames, reference_frames(source), strict=True):
        np.testing.assert_array_equal(frame, reference)
    turned_back = [np.rot90(frame, -rotation // 90) for frame in frames]
    assert counters(turned_back) == list(range(6))


def test_a_garbage_display_matrix_is_no_rotation():
    source = bytearray(ClipRecipe(num_frames=2, rotation=90).encode())
    matrix = source.index(b"tkhd") + 4 + 40
    source[matrix : matrix + 36] = struct.pack(">9i", *[0] * 9)
    assert probed(bytes(source)).rotation_degrees == 0


@pytest.mark.parametrize("size", [(112, 56), (320, 196), (28, 280), (160, 96)])
def test_resizing_equals_the_whole_clip_resized_by_torchvision(size, encoded):
    width, height = size
    chosen = (0, 20, 59)
    full = np.stack([reference_frames(encoded("h264-bframes"))[index] for index in chosen])
    whole_clip = transforms.resize(
        Image(np.ascontiguousarray(full.transpose(0, 3, 1, 2))),
        [height, width],
        interpolation=InterpolationMode.BICUBIC,
        antialias=True,
    )
    frames = decoded_frames(encoded("h264-bframes"), frame_indices=chosen, size=size)
    np.testing.assert_array_equal(frames, whole_clip.permute(0, 2, 3, 1).numpy())


LONG = ClipRecipe(num_frames=120, options={"g": "10", "bf": "2"})
MANY_SPANS = {
    "h264": LONG,
    "h264-open-gop-ts": replace(LONG, container="mpegts", options=OPEN_GOP),
    "h264-all-intra": replace(LONG, options={"g": "1"}),
    "h264-few-packets": replace(LONG, num_frames=60, options={"g": "5", "bf": "2"}),
    "hevc": replace(LONG, codec="libx265", options={"x265-params": "log-level=none:keyint=10"}),
    "vp9": replace(LONG, container="webm", codec="libvpx-vp9", options={"g": "10"}),
    "av1": replace(LONG, codec="libsvtav1", options={"preset": "12", "g": "10"}),
    "mpeg4": replace(LONG, codec="mpeg4", options={"g": "10", "bf": "2", "b": "4M"}),
}


@pytest.mark.parametrize("name", MANY_SPANS)
def test_spans_decoded_in_parallel_give_the_same_frames(name):
    source = MANY_SPANS[name].encode()
    reference = reference_frames(source)
    chosen = tuple(range(5, len(reference), len(reference) // 6))
    for threads in (1, 2, 3):
        limits = replace(LIMITS, threads=threads)
        with VideoSource(SourceFile(source), limits) as video:
            video.probe()
            assert can_be_shared(video._timeline.spans(chosen), threads) is (threads > 1)
        frames = decoded_frames(source, frame_indices=chosen, size=(160, 96), limits=limits)
        for frame, index in zip(frames, chosen, strict=True):
            np.testing.assert_array_equal(frame, reference[index])


def test_a_key_flag_that_lies_costs_time_but_no_frame(encoded):
    source = bytearray(RECIPES["mpeg4"].encode())
    # Without the table of sync samples every sample counts as one.
    source[source.index(b"stss") : source.index(b"stss") + 4] = b"free"
    chosen = (17, 33, 48)
    frames = decoded_frames(bytes(source), frame_indices=chosen, size=(160, 96))
    reference = reference_frames(encoded("mpeg4"))
    for frame, index in zip(frames, chosen, strict=True):
        np.testing.assert_array_equal(frame, reference[index])


def test_an_edit_list_hides_frames(encoded):
    source = bytearray(ClipRecipe(options={"g": "60", "bf": "0"}).encode())
    media_time = source.index(b"elst") + 4 + 4 + 4 + 4
    ticks_per_frame = Fraction(probed(bytes(source)).duration_seconds) * 15360 / 60
    source[media_time : media_time + 4] = struct.pack(">i", round(10 * ticks_per_frame))
    facts = probed(bytes(source))
    assert facts.num_frames == 50
    frames = decoded_frames(bytes(source), frame_indices=range(50), size=(160, 96))
    assert counters(frames) == list(range(10, 60))


@pytest.mark.parametrize(("num_frames", "group"), [(60, 20), (160, 120)])
def test_a_stream_cut_at_its_start_begins_with_the_first_frame_that_decodes(num_frames, group):
    options = {"g": f"{group}", "bf": "0", "sc_threshold": "0"}
    source = ClipRecipe(num_frames=num_frames, container="mpegts", options=options).encode()
    packet = 188
    tables, rest = source[: 2 * packet], source[12 * packet :]
    facts = probed(tables + rest)
    assert 0 < facts.num_frames <= num_frames - group
    frames = decoded_frames(tables + rest, frame_indices=range(facts.num_frames), size=(160, 96))
    assert counters(frames) == list(range(num_frames - facts.num_frames, num_frames))


def test_a_damaged_frame_shows_the_one_before(encoded):
    reference = reference_frames(encoded("h264-all-intra"))
    source = bytearray(encoded("h264-all-intra"))
    position, size = packet_places(source)[7]
    source[position : position + size] = bytes(size)
    frames = decoded_frames(bytes(source), frame_indices=(6, 7, 8), size=(160, 96))
    for frame, index in zip(frames, (6, 6, 8), strict=True):
        np.testing.assert_array_equal(frame, reference[index])


def test_a_truncated_file_yields_the_frames_before_the_damage():
    fragmented = {"movflags": "frag_keyframe+empty_moov"}
    source = ClipRecipe(options={"g": "10"}, container_options=fragmented).encode()
    start = source[: len(source) * 6 // 10]
    facts = probed(start)
    assert 5 < facts.num_frames < 60
    frames = decoded_frames(start, frame_indices=range(facts.num_frames - 1), size=(160, 96))
    assert counters(frames) == list(range(facts.num_frames - 1))


def test_decoding_twice_gives_the_same(encoded):
    plan = FramePlan((3, 40), 160, 96)
    first, second = (np.zeros((2, 96, 160, 3), np.uint8) for _ in range(2))
    with VideoSource(SourceFile(encoded("h264-bframes")), LIMITS) as video:
        video.probe()
        assert video.decode(plan, first) == 0
        assert video.decode(plan, second) == 0
    np.testing.assert_array_equal(first, second)


LARGE = ClipRecipe(num_frames=8, width=640, height=384)
SIZED = {
    "mp4": LARGE,
    "hevc": replace(LARGE, codec="libx265", options={"x265-params": "log-level=none"}),
    "mpegts": replace(LARGE, container="mpegts"),
    "mkv": replace(LARGE, container="matroska"),
    "vp8": replace(LARGE, container="webm", codec="libvpx"),
    "vp9": replace(LARGE, container="webm", codec="libvpx-vp9"),
    "mpeg4-avi": replace(LARGE, container="avi", codec="mpeg4"),
    "mpeg2": replace(LARGE, container="mpeg", codec="mpeg2video"),
    "av1": replace(LARGE, codec="libsvtav1", options={"preset": "12"}),
}


# Just above, where the frame is looked at, and far above, where FFmpeg refuses to decode it.
@pytest.mark.parametrize("max_pixels", [640 * 384 - 1, 640 * 384 // 9])
@pytest.mark.parametrize("name", SIZED)
def test_a_picture_above_the_limit_is_named(name, max_pixels):
    with pytest.raises(InvalidVideo) as caught:
        probed(SIZED[name].encode(), replace(LIMITS, max_pixels=max_pixels))
    assert caught.value.code == "video_resolution_too_large"
    assert str(max_pixels) in str(caught.value)


def test_more_frames_than_the_limit_are_named():
    with pytest.raises(InvalidVideo) as caught:
        probed(ClipRecipe().encode(), replace(LIMITS, max_frames=59))
    assert caught.value.code == "video_too_long"


def test_a_codec_that_is_not_accepted_is_named():
    recipe = ClipRecipe(container="avi", codec="utvideo", num_frames=2)
    with pytest.raises(InvalidVideo) as caught:
        probed(recipe.encode())
    assert caught.value.code == "unsupported_codec"
    assert str(caught.value).startswith(
        "The video codec is utvideo, which is not accepted. Send H."
    )


def test_limits_are_inclusive():
    exact = replace(LIMITS, max_pixels=160 * 96, max_frames=60)
    assert probed(ClipRecipe().encode(), exact).num_frames == 60


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (b"hello " * 2000, "invalid_video"),
        (bytes(100_000), "invalid_video"),
        (b"\x00\x00\x00\x20ftypisom", "invalid_video"),
        (b"ffconcat version 1.0\nfile ok.mp4\n", "unsupported_container"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(100), "unsupported_container"),
    ],
)
def test_what_is_no_video_is_named(source, code):
    with pytest.raises(InvalidVideo) as caught:
        probed(source)
    assert caught.value.code == code
    assert "none" not in str(caught.value)
