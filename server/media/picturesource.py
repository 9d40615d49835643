"""Opens whatever a source holds; decodes lists of pictures. Runs inside a decoder process."""

from contextlib import ExitStack
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from server.formats import container_name
from server.media.bitstreams import is_animated_webp, is_cut_jpeg
from server.media.clip import FramePlan, VideoFacts
from server.media.decode import VideoSource
from server.media.faults import LIST_PICTURES, DecodeLimits, video_fault
from server.media.movingwebp import MovingWebpSource
from server.media.picturelist import PictureList, unpack_pictures
from server.media.sourcefile import SourceFile


class PictureListSource:
    """A list of pictures, with the interface of a ``VideoSource``, which decodes each of them."""

    def __init__(self, pictures: PictureList, limits: DecodeLimits) -> None:
        """Prepare.

        Raises:
            InvalidVideo: there are more pictures than a video may have frames.
        """
        if len(pictures.pictures) > limits.max_frames:
            raise video_fault("video_too_long", limits)
        self._pictures = pictures.pictures
        self._fps = pictures.fps
        self._limits = limits
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def probe(self) -> VideoFacts:
        """Returns the facts of a video whose frames are the pictures; the first one gives its size.

        Raises:
            InvalidVideo: the first picture can not be used.
        """
        _, first = self._open(0)
        count = len(self._pictures)
        return VideoFacts(
            container="pictures",
            codec=first.codec,
            width=first.width,
            height=first.height,
            rotation_degrees=first.rotation_degrees,
            frame_times_seconds=tuple(index / self._fps for index in range(count)),
            duration_seconds=count / self._fps,
            keyframe_indices=tuple(range(count)),
        )

    def decode(self, plan: FramePlan, out: NDArray[np.uint8]) -> int:
        """Write the planned pictures as RGB into ``out``, of shape (num_frames, height, width, 3).

        Returns how many of them another one stands in for: none.

        Raises:
            InvalidVideo: one of them can not be used. Unlike a damaged frame, somebody chose it.
        """
        one = FramePlan((0,), plan.width, plan.height)
        for row, index in enumerate(plan.frame_indices):
            if row and index == plan.frame_indices[row - 1]:
                out[row] = out[row - 1]
                continue
            picture, _ = self._open(index)
            picture.decode(one, out[row : row + 1])
        return 0

    def _open(self, index: int) -> tuple[VideoSource, VideoFacts]:
        """Returns a picture and what is known about it, and closes the one opened before."""
        self._opened.close()
        source = VideoSource(SourceFile(self._pictures[index]), self._limits)
        self._opened.enter_context(source)
        facts = source.probe()
        found = container_name(facts.container)
        if found not in LIST_PICTURES:
            raise video_fault("unsupported_container", self._limits, found=found)
        if found == "jpeg" and is_cut_jpeg(self._pictures[index]):
            # FFmpeg makes up the rest of the picture without a word.
            raise video_fault("video_decode_failed", self._limits)
        return source, facts


Source: TypeAlias = VideoSource | PictureListSource | MovingWebpSource
"""What a decoder can open."""


def open_source(data: memoryview, limits: DecodeLimits) -> Source:
    """Returns what ``data`` holds, ready to be probed.

    Raises:
        InvalidVideo: it is neither a video nor a list of pictures.
    """
    try:
        pictures = unpack_pictures(data)
    except ValueError as error:
        raise video_fault("invalid_video", limits) from error
    if pictures is not None:
        return PictureListSource(pictures, limits)
    if bytes(data[:4]) == b"RIFF" and is_animated_webp(data):
        return MovingWebpSource(data, limits)
    return VideoSource(SourceFile(data), limits)
