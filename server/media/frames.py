"""Decoded frames in the memory that they were decoded into, lent out without a copy."""

import mmap
import os
import threading
import weakref
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

_SLOW_FREE_BYTES = 4_000_000


class SharedFrames:
    """The frames of a clip. Their memory is free when neither this nor a view of it is left."""

    def __init__(self, fd: int, shape: tuple[int, int, int, int], *, num_replaced: int = 0) -> None:
        """Take hold of a memory file.

        Args:
            fd: holds the frames; stays the caller's, who closes it. Nobody may write to it any
                more or change its size.
            shape: (num_frames, height, width, 3).
            num_replaced: frames that hold the picture of a neighbour.

        Raises:
            ValueError: there are not as many frames.
        """
        if not 0 <= num_replaced <= shape[0]:
            raise ValueError(f"{num_replaced} of {shape[0]} frames replaced")
        self.num_replaced = num_replaced
        """Frames that hold the picture of a neighbour."""
        self.shape = shape
        """(num_frames, height, width, 3)."""
        self._fd = os.dup(fd)
        weakref.finalize(self, _let_go, self._fd, self.num_bytes)

    @property
    def num_bytes(self) -> int:
        """Size of the frames."""
        num_frames, height, width, channels = self.shape
        return num_frames * height * width * channels

    def view(self) -> NDArray[np.uint8]:
        """Returns the frames. Who writes to them changes their own view, nobody else's.

        A read-only array would do, but for torch, which warns when it is given one.
        """
        mapping = mmap.mmap(self._fd, self.num_bytes, access=mmap.ACCESS_COPY)
        return np.frombuffer(mapping, np.uint8).reshape(self.shape)


def _let_go(fd: int, num_bytes: int) -> None:
    """Close a memory file, in passing if it is large: the kernel takes a while to free it."""
    if num_bytes >= _SLOW_FREE_BYTES:
        # None can be started any more when the interpreter ends.
        with suppress(RuntimeError):
            threading.Thread(target=os.close, args=(fd,), daemon=True).start()
            return
    os.close(fd)
