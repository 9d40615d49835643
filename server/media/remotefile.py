"""A file at its origin, of which only the parts that somebody needs are in memory."""

import asyncio
import fcntl
import mmap
import os
import secrets
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from server.media.byteranges import ByteRange, at_most, joined, total_bytes, without
from server.media.memoryfile import (
    NO_MORE_CHANGES_OF_SIZE,
    MemoryFile,
    as_overload,
    close_in_passing,
)

_F_SEAL_FUTURE_WRITE = 0x10
"""Of Linux 5.1; Python has no name for it."""
_MAX_GAP_BYTES = 1 << 18
"""Parts that are closer than this are read as one: a request costs more than these bytes."""
_MAX_REQUESTS = 512
_TOKEN_BYTES = 32

WritePart: TypeAlias = Callable[[int, bytes], None]
"""Takes bytes, and where in the file they belong."""


class Origin(Protocol):
    """Where the rest of a file is."""

    @property
    def max_bytes(self) -> int:
        """What may be read of it for one question."""

    @property
    def timeout_seconds(self) -> float:
        """How long reading may take for one question."""

    async def read(self, ranges: Sequence[ByteRange], write: WritePart) -> None:
        """Have the bytes of all ranges written.

        Raises:
            RemoteFileChanged: it is no longer the file that it was.
            VideoUnreachable: it can not be had.
        """


class RemoteFile:
    """A file in memory, with holes. What is in it stays as it is; holes are filled when asked for.

    Nobody but this object can write to it, not even who has the descriptor.
    """

    def __init__(self, num_bytes: int, origin: Origin) -> None:
        """Make a file that is one hole.

        Args:
            num_bytes: size of the file.
            origin: where its bytes are.

        Raises:
            Overloaded: the system has no room for it.
        """
        self.num_bytes = num_bytes
        """Size of the file, holes included."""
        self.digest = secrets.token_bytes(_TOKEN_BYTES)
        """Names the file, in place of a digest of bytes that were never read. Nothing else has it,
        neither another URL nor this one once its validator has changed."""
        self.origin = origin
        self._held: list[ByteRange] = []
        self._turn = asyncio.Lock()
        with as_overload():
            self.fd = os.memfd_create("video", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, close_in_passing, self.fd, num_bytes)
        with as_overload():
            os.ftruncate(self.fd, num_bytes)
            # Made before the seal, it is the only way to write.
            self._bytes = mmap.mmap(self.fd, num_bytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, NO_MORE_CHANGES_OF_SIZE | _F_SEAL_FUTURE_WRITE)

    @property
    def held_bytes(self) -> int:
        """How much of the file is in memory."""
        return total_bytes(self._held)

    def holds(self, part: ByteRange) -> bool:
        """Returns whether all of ``part`` is in memory."""
        return not without([part], self._held)

    def peek(self, start: int, num_bytes: int) -> bytes:
        """Returns bytes, zeros where there is a hole."""
        return os.pread(self.fd, num_bytes, start)

    def write(self, start: int, piece: bytes) -> None:
        """Fill the holes among the bytes from ``start`` on.

        Raises:
            Overloaded: there is no room for them.
        """
        if not piece:
            return
        place = ByteRange(start, min(start + len(piece), self.num_bytes))
        for part in without([place], self._held):
            # A page that can not be had is an error here, and a signal in the mapping.
            with as_overload():
                os.posix_fallocate(self.fd, part.start, part.num_bytes)
            self._bytes[part.start : part.end] = piece[part.start - start : part.end - start]
        self._held = joined([*self._held, place])

    async def fill(self, wanted: Sequence[ByteRange]) -> None:
        """Read what is not there of ``wanted``, which ``in_few_requests`` has returned.

        Raises:
            RemoteFileChanged, VideoUnreachable: as for ``Origin.read``.
            Overloaded: there is no room for it.
        """
        async with self._turn:
            gaps = in_few_requests(without(wanted, self._held))
            if gaps:
                await self.origin.read(gaps, self.write)


EncodedVideo: TypeAlias = MemoryFile | RemoteFile
"""What a decoder is given: all of a file, or a file that it must ask for the parts it needs."""


def in_few_requests(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Returns what to read so that all of ``ranges`` is, without too many requests."""
    return at_most(_MAX_REQUESTS, joined(ranges, max_gap_bytes=_MAX_GAP_BYTES))


def has_holes(fd: int) -> bool:
    """Returns whether a descriptor is that of a ``RemoteFile``, rather than a ``MemoryFile``."""
    return not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
