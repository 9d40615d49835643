"""Single pictures, encoded: counters as in ``tests.clips.counter``, and plain colours."""

from fractions import Fraction

import av
import numpy as np

from tests.clips.counter import Picture, counter_picture

_PIXEL_FORMATS = {"mjpeg": "yuvj420p", "png": "rgb24", "libwebp": "bgra"}


def encoded_picture(picture: Picture, codec: str = "mjpeg") -> bytes:
    """Returns an RGB picture of shape (H, W, 3) as a JPEG, PNG or WebP file."""
    encoder = av.CodecContext.create(codec, "w")
    encoder.height, encoder.width = picture.shape[:2]
    encoder.pix_fmt = _PIXEL_FORMATS[codec]
    encoder.time_base = Fraction(1)
    if codec == "mjpeg":
        encoder.options = {"qmin": "1", "qmax": "1"}
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=encoder.pix_fmt)
    frame.pts, frame.time_base = 0, Fraction(1)
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])


def encoded_counter(
    number: int, *, width: int = 160, height: int = 96, codec: str = "mjpeg"
) -> bytes:
    """Returns a picture that ``read_counter`` reads as ``number``."""
    return encoded_picture(counter_picture(number, width, height), codec)


def plain_picture(colour: tuple[int, int, int], *, width: int, height: int) -> Picture:
    """Returns a picture of one colour."""
    return np.full((height, width, 3), colour, np.uint8)
