"""Decodes a moving WebP file as a video. Runs inside a decoder process.

FFmpeg 8.1 reads still WebP files only. So the file is taken apart here, FFmpeg decodes its pictures
one by one, and they are laid over each other as the file says. The canvas is white from the
beginning: what is transparent in the end is shown on white, and to lay one picture after the other
on white gives the same.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Self

import numpy as np
from numpy.typing import NDArray

from server.errors import InvalidVideo
from server.media.clip import FramePlan, VideoFacts
from server.media.decode import decoded_webp
from server.media.faults import DecodeLimits, VideoFault, video_fault
from server.media.pictures import Orientation, Picture, PictureWriter
from server.media.webpfile import WebpCanvas, WebpFrame, read_canvas, read_frames

_WHITE = 255


class MovingWebpSource:
    """A moving WebP file, with the interface of a ``VideoSource``."""

    def __init__(self, data: memoryview, limits: DecodeLimits) -> None:
        """Take the file apart.

        Raises:
            InvalidVideo: it is not accepted, or exceeds a limit.
        """
        if "webp" not in limits.containers:
            raise video_fault("unsupported_container", limits, found="webp")
        if "webp" not in limits.codecs:
            raise video_fault("unsupported_codec", limits, found="webp")
        self._limits = limits
        try:
            self._canvas = read_canvas(data)
        except ValueError as error:
            raise video_fault("invalid_video", limits) from error
        if self._canvas.width * self._canvas.height > limits.max_pixels:
            raise self._fault("video_resolution_too_large")
        self._frames = self._read(data)
        self._keys = _keys(self._frames, self._canvas)

    def _read(self, data: memoryview) -> list[WebpFrame]:
        frames: list[WebpFrame] = []
        for frame in read_frames(data):
            if len(frames) == self._limits.max_frames:
                raise self._fault("video_too_long")
            frames.append(frame)
        if not frames:
            raise self._fault("no_frames")
        return frames

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def probe(self) -> VideoFacts:
        """Returns what the file says about itself.

        Raises:
            InvalidVideo: none of its pictures can be decoded.
        """
        if all(self._picture(frame) is None for frame in self._frames):
            raise self._fault("video_decode_failed")
        *starts_ms, end_ms = accumulate((frame.duration_ms for frame in self._frames), initial=0)
        return VideoFacts(
            container="webp_pipe",
            codec="webp",
            width=self._canvas.width,
            height=self._canvas.height,
            rotation_degrees=0,
            frame_times_seconds=tuple(start_ms / 1000 for start_ms in starts_ms),
            duration_seconds=end_ms / 1000,
            keyframe_indices=tuple(self._keys),
        )

    def decode(self, plan: FramePlan, out: NDArray[np.uint8]) -> int:
        """Write the planned frames as RGB into ``out``, of shape (num_frames, height, width, 3).

        A frame that can not be decoded is replaced by the one shown before it, or after it where
        there is none. Returns how many of the planned frames were.

        Raises:
            InvalidVideo: no picture could be decoded.
        """
        writer = PictureWriter(plan, out, Orientation())
        canvas, shown = self._blank(), False
        after_all = range(plan.frame_indices[-1] + 1, len(self._frames))
        for number in chain(self._needed(list(writer.missing)), after_all):
            picture = self._picture(self._frames[number])
            if picture is not None:
                if self._key_before(number) == number:
                    canvas = self._blank()
                canvas.lay(self._frames[number], picture)
                shown = True
            if shown:
                self._write(canvas.pixels, number, writer, is_own=picture is not None)
            if not writer.missing:
                return writer.num_replaced
        raise self._fault("video_decode_failed")

    def _write(
        self, pixels: NDArray[np.uint8], number: int, writer: PictureWriter, *, is_own: bool
    ) -> None:
        """Write what is seen now as frame ``number``, and as those before it that are missing."""
        for gap in [missing for missing in writer.missing if missing < number]:
            writer.replace(gap, Picture(pixels))
        if number in writer.missing:
            write = writer.put if is_own else writer.replace
            write(number, Picture(pixels))

    def _needed(self, wanted: Sequence[int]) -> Iterator[int]:
        """Yields the frames to decode: the wanted ones, and what each of them is laid over."""
        following = 0
        for number in wanted:
            yield from range(max(following, self._key_before(number)), number + 1)
            following = number + 1

    def _key_before(self, number: int) -> int:
        """Returns the last frame up to ``number`` that shows nothing of those before it."""
        return self._keys[bisect_right(self._keys, number) - 1]

    def _picture(self, frame: WebpFrame) -> NDArray[np.uint8] | None:
        """Returns a frame's own picture as RGBA, None if it is damaged."""
        if not frame.lies_within(self._canvas.width, self._canvas.height):
            return None
        picture = decoded_webp(frame.as_file(), self._limits)
        if picture is None or picture.shape[:2] != (frame.height, frame.width):
            return None
        return picture

    def _blank(self) -> "_Canvas":
        return _Canvas(self._canvas.width, self._canvas.height)

    def _fault(self, fault: VideoFault) -> InvalidVideo:
        return video_fault(fault, self._limits)


class _Canvas:
    """What is seen, and what has to be cleared before the next picture comes."""

    def __init__(self, width: int, height: int) -> None:
        self.pixels = np.full((height, width, 3), _WHITE, np.uint8)
        """RGB, shape (height, width, 3)."""
        self._disposed: tuple[slice, slice] | None = None

    def lay(self, frame: WebpFrame, picture: NDArray[np.uint8]) -> None:
        """Lay the RGBA picture of a frame where it belongs."""
        if self._disposed is not None:
            self.pixels[self._disposed] = _WHITE
        rows = slice(frame.top, frame.top + frame.height)
        place = rows, slice(frame.left, frame.left + frame.width)
        below = self.pixels[place] if frame.is_blended else np.uint8(_WHITE)
        self.pixels[place] = _over(picture, below)
        self._disposed = place if frame.is_disposed else None


def _over(picture: NDArray[np.uint8], below: NDArray[np.uint8] | np.uint8) -> NDArray[np.uint8]:
    """Returns RGB: an RGBA picture over an opaque one, or over one value."""
    alpha = picture[..., 3:].astype(np.uint16)
    mixed = picture[..., :3] * alpha + below * (255 - alpha)
    return ((mixed + 127) // 255).astype(np.uint8)


def _keys(frames: Sequence[WebpFrame], canvas: WebpCanvas) -> list[int]:
    """Returns the frames that show nothing of those before them, ascending; the first is one."""
    size = canvas.width, canvas.height
    keys = [0]
    for number in range(1, len(frames)):
        frame, before = frames[number], frames[number - 1]
        covers = frame.fills(*size) and not frame.is_blended
        is_on_blank = before.is_disposed and (before.fills(*size) or keys[-1] == number - 1)
        if covers or is_on_blank:
            keys.append(number)
    return keys
