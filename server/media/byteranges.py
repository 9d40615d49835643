"""Parts of a file, as half-open ranges of its bytes. Arithmetic only."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

_CONTENT_RANGE = re.compile(rb"\s*bytes\s+(\d{1,15})-(\d{1,15})/(\d{1,15})\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """The bytes in [start, end)."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"no bytes in [{self.start}, {self.end})")

    @property
    def num_bytes(self) -> int:
        """Number of bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ContentRange:
    """What an answer with status 206 says about its body."""

    range: ByteRange
    total_bytes: int
    """Size of the file."""

    @classmethod
    def parse(cls, header: bytes | None) -> Self | None:
        """Returns what the header ``Content-Range`` says, None if it makes no sense."""
        match = _CONTENT_RANGE.fullmatch(header or b"")
        if match is None:
            return None
        first, last, total_bytes = map(int, match.groups())
        if not first <= last < total_bytes:
            return None
        return cls(ByteRange(first, last + 1), total_bytes)

    @property
    def is_whole(self) -> bool:
        """Whether the body is the whole file."""
        return self.range.num_bytes == self.total_bytes


def joined(ranges: Iterable[ByteRange], *, max_gap_bytes: int = 0) -> list[ByteRange]:
    """Returns ``ranges`` in order, with those made one that overlap or are that close."""
    result: list[ByteRange] = []
    for part in sorted(ranges):
        if result and part.start <= result[-1].end + max_gap_bytes:
            last = result.pop()
            part = ByteRange(last.start, max(last.end, part.end))
        result.append(part)
    return result


def at_most(count: int, ranges: Sequence[ByteRange]) -> list[ByteRange]:
    """Returns ``ranges``, which are joined, with the smallest gaps filled until they are few."""
    if len(ranges) <= count:
        return list(ranges)
    gaps = sorted(after.start - before.end for before, after in pairwise(ranges))
    return joined(ranges, max_gap_bytes=gaps[len(ranges) - count - 1])


def without(wanted: Sequence[ByteRange], held: Sequence[ByteRange]) -> list[ByteRange]:
    """Returns the parts of ``wanted`` that are not in ``held``; both are joined."""
    result = []
    place = 0
    for part in wanted:
        start = part.start
        while place < len(held) and held[place].end <= start:
            place += 1
        at = place
        while at < len(held) and held[at].start < part.end:
            if start < held[at].start:
                result.append(ByteRange(start, held[at].start))
            start = max(start, held[at].end)
            at += 1
        if start < part.end:
            result.append(ByteRange(start, part.end))
    return result


def total_bytes(ranges: Iterable[ByteRange]) -> int:
    """Returns the size of joined ranges together."""
    return sum(part.num_bytes for part in ranges)
