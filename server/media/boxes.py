"""The outermost structure of MP4 and MOV files: boxes with a size and a kind (ISO/IEC 14496-12)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

HEADER_BYTES = 16
"""The longest header of a box: size, kind, and size again in 64 bit."""
FIRST_KINDS = frozenset({b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot"})
"""Boxes with which such files begin."""


@dataclass(frozen=True, slots=True)
class Box:
    """One box; it occupies [start, end), and what is in it [content, end)."""

    kind: bytes
    start: int
    content: int
    end: int

    @classmethod
    def parse(cls, header: bytes, start: int, *, end_of_parent: int) -> Self | None:
        """Returns the box at ``start``, None if there can be none.

        Args:
            header: at least ``HEADER_BYTES`` from ``start`` on, fewer at the parent's end.
            start: where the box begins.
            end_of_parent: where the file or box ends that it is in.
        """
        if len(header) < 8:
            return None
        size, kind, header_bytes = int.from_bytes(header[:4], "big"), header[4:8], 8
        if size == 1 and len(header) >= HEADER_BYTES:
            size, header_bytes = int.from_bytes(header[8:16], "big"), 16
        elif size == 0:  # up to the end
            size = end_of_parent - start
        if size < header_bytes or start + size > end_of_parent:
            return None
        return cls(kind, start, start + header_bytes, start + size)


def kinds_in(content: bytes) -> Iterator[bytes]:
    """Yields the kinds of the boxes one after the other, as far as they are sound."""
    position = 0
    while position < len(content):
        header = content[position : position + HEADER_BYTES]
        box = Box.parse(header, position, end_of_parent=len(content))
        if box is None:
            return
        yield box.kind
        position = box.end
