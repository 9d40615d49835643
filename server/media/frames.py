"""Decoded frames in the memory that they were decoded into, lent out without a copy."""

import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

from server.media.memoryfile import close_in_passing


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
        weakref.finalize(self, close_in_passing, self._fd, self.num_bytes)

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
