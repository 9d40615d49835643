"""The parts of a moving WebP file, by the container's specification; nothing is decoded here.

::

    RIFF size WEBP | VP8X: flags, canvas | ANIM | ANMF: place, duration, flags, picture | ANMF ...
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_CHUNK = struct.Struct("<4sI")
_HEADER_BYTES = 12
_CANVAS_BYTES = 10
_FRAME_BYTES = 16
_HAS_ALPHA = 0x10
_IS_DISPOSED, _IS_NOT_BLENDED = 0x01, 0x02
_ALPHA, _PICTURES = b"ALPH", (b"VP8 ", b"VP8L")
_SHORTEST_MS, _USUAL_MS = 11, 100
"""Browsers show frames that claim less than the first for as long as the second."""


@dataclass(frozen=True, slots=True)
class WebpFrame:
    """A picture to be laid on the canvas."""

    left: int
    top: int
    width: int
    height: int
    duration_ms: int
    """How long it is to be seen, at least ``_SHORTEST_MS``."""
    is_blended: bool
    """Whether what lies below shows through where it is transparent."""
    is_disposed: bool
    """Whether its place is cleared after it."""
    alpha: memoryview | None
    """The alpha of a lossy picture, coded."""
    picture: tuple[bytes, memoryview] | None
    """The kind of coding and the coded picture; None if there is none."""

    def as_file(self) -> bytes:
        """Returns the picture as a WebP file of its own, nothing if there is none."""
        if self.picture is None:
            return b""
        alpha = b""
        if self.alpha is not None:
            size = (self.width - 1).to_bytes(3, "little") + (self.height - 1).to_bytes(3, "little")
            header = _packed(b"VP8X", bytes([_HAS_ALPHA, 0, 0, 0]) + size)
            alpha = header + _packed(_ALPHA, self.alpha)
        return _packed(b"RIFF", b"".join([b"WEBP", alpha, _packed(*self.picture)]))

    def fills(self, width: int, height: int) -> bool:
        """Returns whether it takes up all of a canvas of that size."""
        return (self.left, self.top, self.width, self.height) == (0, 0, width, height)

    def lies_within(self, width: int, height: int) -> bool:
        """Returns whether no part of it is outside a canvas of that size."""
        return self.left + self.width <= width and self.top + self.height <= height


@dataclass(frozen=True, slots=True)
class WebpCanvas:
    """The size of all pictures together."""

    width: int
    height: int


def read_canvas(data: memoryview) -> WebpCanvas:
    """Returns the canvas of a moving WebP file, which comes first in it.

    Raises:
        ValueError: it is cut off.
    """
    for kind, content in _chunks(data[_HEADER_BYTES:]):
        if kind != b"VP8X" or len(content) < _CANVAS_BYTES:
            break
        return WebpCanvas(_number(content, 4) + 1, _number(content, 7) + 1)
    raise ValueError("no canvas")


def read_frames(data: memoryview) -> Iterator[WebpFrame]:
    """Yields the frames of a moving WebP file, up to where it is cut off."""
    _, size = _CHUNK.unpack_from(data)
    for kind, content in _chunks(data[_HEADER_BYTES : _CHUNK.size + size]):
        if kind == b"ANMF" and len(content) >= _FRAME_BYTES:
            yield _frame(content)


def _frame(content: memoryview) -> WebpFrame:
    width, height, claimed_ms = (_number(content, at) for at in (6, 9, 12))
    flags = content[15]
    # Others may be many.
    chunks = _chunks(content[_FRAME_BYTES:])
    parts = {kind: data for kind, data in chunks if kind in (_ALPHA, *_PICTURES)}
    return WebpFrame(
        left=2 * _number(content, 0),
        top=2 * _number(content, 3),
        width=width + 1,
        height=height + 1,
        duration_ms=claimed_ms if claimed_ms >= _SHORTEST_MS else _USUAL_MS,
        is_blended=not flags & _IS_NOT_BLENDED,
        is_disposed=bool(flags & _IS_DISPOSED),
        alpha=parts.get(_ALPHA),
        picture=next(((kind, parts[kind]) for kind in _PICTURES if kind in parts), None),
    )


def _chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yields (kind, content) of each chunk that is there as a whole."""
    position = 0
    while position + _CHUNK.size <= len(data):
        kind, size = _CHUNK.unpack_from(data, position)
        position += _CHUNK.size
        if position + size > len(data):
            return
        yield kind, data[position : position + size]
        position += size + size % 2


def _packed(kind: bytes, content: bytes | memoryview) -> bytes:
    return b"".join([_CHUNK.pack(kind, len(content)), content, bytes(len(content) % 2)])


def _number(content: memoryview, position: int) -> int:
    return int.from_bytes(content[position : position + 3], "little")
