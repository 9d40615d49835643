"""Pictures have the shape that a player shows, and facts say so."""

import io
from fractions import Fraction

import av
import numpy as np
import pytest

from server.media.decode.shapes import display_size
from server.media.pictures import Orientation
from tests.clips.counter import counter_picture
from tests.clips.decoded import decoded_frames, probed, reference_frames

CODED = (160, 96)
ONE = 1 << 16
UPRIGHT, MIRRORED, UPSIDE_DOWN, FLIPPED = (
    (ONE, 0, 0, ONE),
    (-ONE, 0, 0, ONE),
    (-ONE, 0, 0, -ONE),
    (
        ONE,
        0,
        0,
        -ONE,
    ),
)
CLOCKWISE, COUNTER, DIAGONAL, ANTIDIAGONAL = (
    (0, ONE, -ONE, 0),
    (0, -ONE, ONE, 0),
    (0, ONE, ONE, 0),
    (0, -ONE, -ONE, 0),
)
# Where the corner of a picture goes; written without np.rot90, which the code under test uses.
SEEN = {
    UPRIGHT: lambda p: p,
    MIRRORED: lambda p: p[:, ::-1],
    FLIPPED: lambda p: p[::-1],
    UPSIDE_DOWN: lambda p: p[::-1, ::-1],
    CLOCKWISE: lambda p: p.transpose(1, 0, 2)[:, ::-1],
    COUNTER: lambda p: p.transpose(1, 0, 2)[::-1],
    DIAGONAL: lambda p: p.transpose(1, 0, 2),
    ANTIDIAGONAL: lambda p: p.transpose(1, 0, 2)[::-1, ::-1],
}


def clip(*, matrix=None, pixel_shape=None, container="mp4", codec="libx264"):
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=25)
        stream.width, stream.height = CODED
        stream.pix_fmt = "yuv420p"
        if pixel_shape is not None:
            stream.codec_context.sample_aspect_ratio = pixel_shape
        if matrix is not None:
            a, b, c, d = matrix
            stream.set_display_matrix([a, b, 0, c, d, 0, 0, 0, 1 << 30])
        for number in range(3):
            picture = counter_picture(number, *CODED)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode())
    return buffer.getvalue()


@pytest.mark.parametrize("matrix", SEEN)
@pytest.mark.parametrize("container", ["mp4", "mov"])
def test_turns_and_mirrors_of_the_display_matrix_are_applied(matrix, container):
    source = clip(matrix=matrix, container=container)
    with av.open(io.BytesIO(source)) as opened:
        coded = [frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)]
    expected = SEEN[matrix](coded[1])
    facts = probed(source)
    assert (facts.height, facts.width) == expected.shape[:2]
    (frame,) = decoded_frames(source, frame_indices=[1], size=(facts.width, facts.height))
    np.testing.assert_array_equal(frame, expected)


@pytest.mark.parametrize(
    "matrix",
    [(0, 0, 0, 0), (ONE, 0, 0, 0), (5, 5, 5, 5), (2**31 - 1, -(2**31), 2**31 - 1, -(2**31))],
)
def test_a_matrix_that_flattens_the_picture_is_ignored(matrix):
    assert Orientation.of(*matrix) == Orientation()


@pytest.mark.parametrize(
    ("matrix", "orientation"),
    [
        ((46341, 46340, -46340, 46341), Orientation(0)),
        ((46340, 46341, -46341, 46340), Orientation(3)),
        ((2 * ONE, 0, 0, 2 * ONE), Orientation(0)),
        ((0, -3 * ONE, ONE, 0), Orientation(1)),
    ],
)
def test_odd_angles_go_to_the_nearest_quarter_turn(matrix, orientation):
    assert Orientation.of(*matrix) == orientation


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts", "h264", "avi"])
@pytest.mark.parametrize(
    ("pixel_shape", "size"),
    [
        (Fraction(16, 15), (171, 96)),
        (Fraction(1, 2), (160, 192)),
        (Fraction(1), (160, 96)),
        (Fraction(200), (160, 96)),
    ],
)
def test_pixels_that_are_not_square_change_the_size(pixel_shape, size, container):
    source = clip(pixel_shape=pixel_shape, container=container)
    facts = probed(source)
    assert (facts.width, facts.height) == size
    (frame,) = decoded_frames(source, frame_indices=[1], size=CODED)
    np.testing.assert_array_equal(frame, reference_frames(source)[1])


def test_pixels_are_stretched_before_the_picture_is_turned():
    facts = probed(clip(pixel_shape=Fraction(2), matrix=CLOCKWISE))
    assert (facts.width, facts.height) == (96, 320)


@pytest.mark.parametrize("pixel_shape", [None, Fraction(0), Fraction(-1), Fraction(1, 10**9)])
def test_a_pixel_shape_that_can_not_be_is_ignored(pixel_shape):
    assert display_size(160, 96, pixel_shape) == (160, 96)
