"""From decoded frames to RGB."""

from typing import cast

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray


class PictureConverter:
    """Converts frames to RGB. Not for several threads at once."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()

    def rgb(self, frame: VideoFrame) -> NDArray[np.uint8]:
        """Returns the frame as RGB of shape (height, width, 3)."""
        converted = self._reformatter.reformat(frame, format="rgb24", threads=1)
        return cast(NDArray[np.uint8], converted.to_ndarray())
