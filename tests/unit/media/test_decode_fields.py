"""Interlaced video comes out without combs, each picture made from its true neighbours."""

import io
from fractions import Fraction

import av
import numpy as np
import pytest

from server.media.decode.fields import deinterlaced
from tests.clips.counter import counter_picture
from tests.clips.decoded import decoded_frames, probed, reference_frames
from tests.clips.flat import flat_frame

SIZE = (160, 96)
NUM_FRAMES = 30
ENCODERS = {
    "h264-mp4": ("libx264", "mp4", {"x264-params": "tff=1:bframes=2:keyint=10"}),
    "h264-ts": ("libx264", "mpegts", {"x264-params": "tff=1:bframes=2:keyint=10"}),
    "h264-bottom-first": ("libx264", "matroska", {"x264-params": "bff=1:bframes=2:keyint=10"}),
    "h264-raw": ("libx264", "h264", {"x264-params": "tff=1:bframes=2:keyint=10"}),
    "mpeg2-ps": ("mpeg2video", "mpeg", {"flags": "+ildct+ilme", "bf": "2", "g": "10", "b": "4M"}),
    "mpeg2-ts": ("mpeg2video", "mpegts", {"flags": "+ildct+ilme", "g": "10", "b": "4M"}),
}


def moving_bar(time, width, height):
    picture = np.zeros((height, width, 3), np.uint8)
    picture[:, 2 * time : 2 * time + 20] = 255
    return picture


def interlaced_clip(name, picture_at=counter_picture):
    """Returns a clip whose odd lines were taken half a frame later than its even ones."""
    codec, container, options = ENCODERS[name]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=25, options=options)
        stream.width, stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        for number in range(NUM_FRAMES):
            picture = picture_at(2 * number, *SIZE)
            picture[1::2] = picture_at(2 * number + 1, *SIZE)[1::2]
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode())
    return buffer.getvalue()


def deinterlaced_as_a_whole(source):
    """Returns what FFmpeg makes of the clip when every frame goes through one filter."""
    graph = av.filter.Graph()
    with av.open(io.BytesIO(source)) as container:
        frames = list(container.decode(video=0))
    graph.link_nodes(
        graph.add_buffer(
            width=SIZE[0], height=SIZE[1], format=frames[0].format, time_base=Fraction(1)
        ),
        graph.add("bwdif", "mode=send_frame"),
        graph.add("buffersink"),
    ).configure()
    for number, frame in enumerate(frames):
        frame.pts, frame.time_base = number, Fraction(1)
        graph.vpush(frame)
    graph.vpush(None)
    return [graph.vpull().to_ndarray(format="rgb24") for _ in frames]


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("chosen", [(0,), (10, 11), (9, 20, 29), tuple(range(NUM_FRAMES))])
def test_interlaced_frames_equal_those_of_a_filter_over_all(name, chosen):
    source = interlaced_clip(name)
    assert probed(source).num_frames == NUM_FRAMES
    reference = deinterlaced_as_a_whole(source)
    frames = decoded_frames(source, frame_indices=chosen, size=SIZE)
    for frame, index in zip(frames, chosen, strict=True):
        np.testing.assert_array_equal(frame, reference[index])


def test_deinterlacing_takes_the_combs_away():
    source = interlaced_clip("h264-mp4", moving_bar)

    def combs(picture):
        lines = picture.astype(int)
        return np.abs(lines[1:-1] - (lines[:-2] + lines[2:]) / 2).mean()

    (frame,) = decoded_frames(source, frame_indices=[10], size=SIZE)
    assert combs(reference_frames(source)[10]) > 3
    assert combs(frame) < combs(reference_frames(source)[10]) / 4


def test_colours_survive_deinterlacing():
    frame = flat_frame((64 + 400, 300, 700), pix_fmt="yuv420p10le", size=(64, 48))
    frame.colorspace, frame.color_range, frame.color_trc, frame.color_primaries = 9, 1, 18, 9
    result = deinterlaced(frame)
    assert (result.format.name, result.colorspace, result.color_range) == ("yuv420p10le", 9, 1)
    assert (result.color_trc, result.color_primaries) == (18, 9)


@pytest.mark.parametrize("size", [(2, 2), (64, 2), (2, 64), (4, 4)])
def test_frames_too_small_for_the_filter_stay_as_they_are(size):
    frame = flat_frame((100, 128, 128), pix_fmt="yuv444p", size=size)
    assert (deinterlaced(frame).width, deinterlaced(frame).height) == size


def test_neighbours_of_another_size_are_left_out():
    frame, other = (
        flat_frame((100, 128, 128), pix_fmt="yuv420p", size=size) for size in [(64, 48), (32, 32)]
    )
    assert deinterlaced(frame, before=other, after=other).width == 64
