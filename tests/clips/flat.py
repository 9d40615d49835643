"""Clips of one flat colour, given by its code values, with tags that say what they stand for."""

import io
from collections.abc import Sequence

import av
import numpy as np


def flat_clip(
    codes: Sequence[int],
    *,
    pix_fmt: str,
    codec: str = "ffv1",
    container: str = "matroska",
    size: tuple[int, int] = (64, 48),
    matrix: int = 2,
    color_range: int = 0,
    transfer: int = 2,
    primaries: int = 2,
    options: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    num_frames: int = 2,
) -> bytes:
    """Returns a clip each plane of which has one value.

    Args:
        codes: value of each plane.
        pix_fmt: a planar format.
        codec: encoder.
        container: muxer.
        size: width and height in pixels.
        matrix: AVColorSpace; 2 is no tag.
        color_range: AVColorRange; 0 is no tag, 1 limited, 2 full.
        transfer: AVColorTransferCharacteristic; 2 is no tag.
        primaries: AVColorPrimaries; 2 is no tag.
        options: of the encoder.
        metadata: of the stream.
        num_frames: how many.
    """
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=25, options=options or {})
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        stream.metadata.update(metadata or {})
        context = stream.codec_context
        context.colorspace, context.color_range = matrix, color_range
        context.color_trc, context.color_primaries = transfer, primaries
        for number in range(num_frames):
            frame = flat_frame(codes, pix_fmt=pix_fmt, size=size)
            frame.colorspace, frame.color_range = matrix, color_range
            frame.color_trc, frame.color_primaries = transfer, primaries
            frame.pts = number
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return buffer.getvalue()


def flat_frame(codes: Sequence[int], *, pix_fmt: str, size: tuple[int, int]) -> av.VideoFrame:
    """Returns a frame each plane of which has one value."""
    frame = av.VideoFrame(*size, pix_fmt)
    for plane, code in zip(frame.planes, codes, strict=True):
        kind = np.uint8 if frame.format.components[0].bits == 8 else np.uint16
        plane.update(np.full(plane.buffer_size // kind().itemsize, code, kind).tobytes())
    return frame


def coded(
    rgb: Sequence[float], *, luma: tuple[float, float], is_full_range: bool, bits: int = 8
) -> tuple[int, int, int]:
    """Returns Y, Cb, Cr of an RGB colour from 0 to 1, for a matrix's weights of red and blue."""
    red, green, blue = rgb
    weight_red, weight_blue = luma
    y = weight_red * red + (1 - weight_red - weight_blue) * green + weight_blue * blue
    cb, cr = (blue - y) / (2 - 2 * weight_blue), (red - y) / (2 - 2 * weight_red)
    unit = 1 << bits - 8
    if is_full_range:
        top = (1 << bits) - 1
        return round(top * y), round(128 * unit + top * cb), round(128 * unit + top * cr)
    return (
        round(unit * (16 + 219 * y)),
        round(unit * (128 + 224 * cb)),
        round(unit * (128 + 224 * cr)),
    )
