"""A video as a list of pictures, in one piece: how it travels to a decoder process.

::

    mark | fps | count | size of each picture | the pictures

Whoever sends a file like this as a video gets what a list of pictures gets: its frames are counted,
measured and decoded within the same limits.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

_MARK = b"\0video-chat-pictures\0"
_HEAD = struct.Struct("<dI")
_SIZE = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class PictureList:
    """Encoded pictures, and how fast they follow each other."""

    pictures: Sequence[bytes | memoryview]
    """At least one."""
    fps: float
    """Pictures per second."""

    def __post_init__(self) -> None:
        if not self.pictures:
            raise ValueError("a list without pictures")
        if not 0 < self.fps < math.inf:
            raise ValueError(f"{self.fps} pictures per second; expected a positive number")


def pack_pictures(pictures: PictureList) -> bytes:
    """Returns a list as one piece, which differs wherever the lists do."""
    sizes = [_SIZE.pack(len(picture)) for picture in pictures.pictures]
    head = _HEAD.pack(pictures.fps, len(pictures.pictures))
    return b"".join([_MARK, head, *sizes, *pictures.pictures])


def unpack_pictures(data: memoryview) -> PictureList | None:
    """Returns the list that ``data`` holds, without a copy; None if it holds something else.

    Raises:
        ValueError: it begins like a list and is none.
    """
    if data[: len(_MARK)] != _MARK:
        return None
    try:
        fps, count = _HEAD.unpack_from(data, len(_MARK))
        first_size = len(_MARK) + _HEAD.size
        start = first_size + count * _SIZE.size
        sizes = [size for (size,) in _SIZE.iter_unpack(data[first_size:start])]
    except struct.error as error:
        raise ValueError("the list has no end") from error
    bounds = list(accumulate(sizes, initial=start))
    if len(sizes) != count or bounds[-1] != len(data):
        raise ValueError("the pictures are not as large as the list says")
    return PictureList([data[first:last] for first, last in pairwise(bounds)], fps)
