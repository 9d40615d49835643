"""An encoded video in memory, as the file object that FFmpeg reads."""

import os
from mmap import mmap


class SourceFile:
    """A read-only seekable file over a buffer.

    It has no ``name`` on purpose: FFmpeg would take it for a URL and probe by its extension.
    """

    def __init__(self, data: bytes | mmap | memoryview) -> None:
        self._data = memoryview(data)
        self._position = 0

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return len(self._data)

    def reopened(self) -> "SourceFile":
        """Returns another file over the same bytes, with a position of its own."""
        return SourceFile(self._data)

    def read(self, size: int = -1) -> bytes:
        """Returns at most ``size`` bytes from the position on, all of them if it is negative."""
        size = max(self.num_bytes - self._position, 0) if size < 0 else size
        chunk = self._bytes(self._position, size)
        self._position += len(chunk)
        return chunk

    def _bytes(self, start: int, num_bytes: int) -> bytes:
        return bytes(self._data[start : start + num_bytes])

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.num_bytes}[whence]
        if base + offset < 0:
            raise OSError("a position before the start")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Returns the position."""
        return self._position

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def readable(self) -> bool:
        """Returns True."""
        return True

    def writable(self) -> bool:
        """Returns False."""
        return False


class SparseFile(SourceFile):
    """The same over a file with holes, which read as zeros.

    It is not mapped: reading a hole in a mapping would take memory.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(b"")
        self._fd = fd
        self._num_bytes = os.fstat(fd).st_size

    @property
    def num_bytes(self) -> int:
        """Size of the file, holes included."""
        return self._num_bytes

    def reopened(self) -> "SparseFile":
        """Returns another file over the same bytes, with a position of its own."""
        return SparseFile(self._fd)

    def _bytes(self, start: int, num_bytes: int) -> bytes:
        return os.pread(self._fd, num_bytes, start)
