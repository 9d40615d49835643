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

    def reopened(self) -> "SourceFile":
        """Returns another file over the same bytes, with a position of its own."""
        return SourceFile(self._data)

    def read(self, size: int = -1) -> bytes:
        """Returns at most ``size`` bytes from the position on, all of them if it is negative."""
        end = len(self._data) if size < 0 else self._position + size
        chunk = bytes(self._data[self._position : end])
        self._position += len(chunk)
        return chunk

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._data)}[whence]
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
