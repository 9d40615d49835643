"""Single WebP pictures with their alpha, which moving WebP files are made of."""

from typing import cast

import numpy as np
from av.codec.context import CodecContext
from av.packet import Packet
from numpy.typing import NDArray

from server.media.decode.containers import ffmpeg_codecs, ffmpeg_max_pixels
from server.media.faults import DecodeLimits


def decoded_webp(still: bytes, limits: DecodeLimits) -> NDArray[np.uint8] | None:
    """Returns the picture in a still WebP file as RGBA, None if it can not be decoded.

    Args:
        still: the file.
        limits: the largest picture that may be decoded.

    Returns:
        8 bit, shape (height, width, 4); alpha is not premultiplied.
    """
    codec = CodecContext.create("webp", "r")
    codec.options = {
        "max_pixels": ffmpeg_max_pixels(limits),
        "codec_whitelist": ffmpeg_codecs(limits),
    }
    codec.thread_count = 1
    try:
        frames = codec.decode(Packet(still))
    except MemoryError:
        raise
    except Exception:
        return None
    return cast(NDArray[np.uint8], frames[0].to_ndarray(format="rgba")) if frames else None
