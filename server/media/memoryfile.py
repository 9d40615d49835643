"""Bytes in memory that processes share without a copy: encoded videos, as decoders map them."""

import asyncio
import fcntl
import hashlib
import mmap
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from server.errors import Overloaded

_SLOW_COPY_BYTES = 300_000
_SLOW_FREE_BYTES = 4_000_000
_HASHED_AT_ONCE_BYTES = 1 << 20
"""Small enough to be still in the processor's cache when it is copied."""
NO_MORE_CHANGES_OF_SIZE = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class MemoryFile:
    """A file in memory that nobody can change any more. It is free when nothing refers to it."""

    def __init__(self, fd: int, num_bytes: int, digest: bytes) -> None:
        """Take over a descriptor; for ``MemoryFileWriter``.

        Args:
            fd: sealed; closed by this object.
            num_bytes: size of the file.
            digest: SHA-256 of the bytes.
        """
        self.fd = fd
        """Open as long as this object lives."""
        self.num_bytes = num_bytes
        """Size of the file."""
        self.digest = digest
        """SHA-256 of the bytes: equal digests, equal files."""
        weakref.finalize(self, close_in_passing, fd, num_bytes)

    @classmethod
    def of(cls, pieces: bytes | Iterable[bytes]) -> "MemoryFile":
        """Returns a file of these bytes. Takes a millisecond per megabyte, mostly for the digest.

        Raises:
            Overloaded: there is no room for it.
        """
        with MemoryFileWriter() as writer:
            for piece in [pieces] if isinstance(pieces, bytes) else pieces:
                writer.write(piece)
            return writer.sealed()

    def view(self) -> memoryview:
        """Returns the bytes, mapped."""
        if not self.num_bytes:
            return memoryview(b"")
        return memoryview(mmap.mmap(self.fd, self.num_bytes, access=mmap.ACCESS_READ))

    def read(self) -> bytes:
        """Returns a copy of the bytes."""
        return bytes(self.view())


class MemoryFileWriter:
    """Makes a ``MemoryFile``, piece by piece. Use as a context manager."""

    def __init__(self) -> None:
        self.num_bytes = 0
        """Written so far."""
        self._digest = hashlib.sha256()
        with as_overload():
            self._fd = os.memfd_create("video", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._fd)

    def write(self, piece: bytes) -> None:
        """Append bytes.

        Raises:
            Overloaded: there is no room for them.
        """
        rest = memoryview(piece)
        while rest:
            part, rest = rest[:_HASHED_AT_ONCE_BYTES], rest[_HASHED_AT_ONCE_BYTES:]
            self._digest.update(part)
            while part:
                with as_overload():
                    part = part[os.write(self._fd, part) :]
        self.num_bytes += len(piece)

    def sealed(self) -> MemoryFile:
        """Returns the file; nothing can be written any more."""
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, NO_MORE_CHANGES_OF_SIZE | fcntl.F_SEAL_WRITE)
        self._is_open = False
        return MemoryFile(self._fd, self.num_bytes, self._digest.digest())


async def in_memory(pieces: Sequence[bytes]) -> MemoryFile:
    """Returns a file of these bytes, made off the event loop if they are many.

    Raises:
        Overloaded: there is no room for it.
    """
    if sum(map(len, pieces)) < _SLOW_COPY_BYTES:
        return MemoryFile.of(pieces)
    return await asyncio.to_thread(MemoryFile.of, pieces)


@contextmanager
def as_overload() -> Iterator[None]:
    """Raise the system's refusals as the error for clients."""
    try:
        yield
    except OSError as error:
        raise Overloaded("There is no memory for the video at the moment.") from error


def close_in_passing(fd: int, num_bytes: int) -> None:
    """Close a memory file, in a thread if it is large: the kernel takes a while to free it."""
    if num_bytes >= _SLOW_FREE_BYTES:
        # None can be started any more when the interpreter ends.
        with suppress(RuntimeError):
            threading.Thread(target=os.close, args=(fd,), daemon=True).start()
            return
    os.close(fd)
