"""What travels between the stages of video ingest: facts, a plan, a clip."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """What a look into the container found out, before any sampling is decided."""

    container: str
    """Demuxer name as FFmpeg gives it, such as ``mov,mp4,m4a,3gp,3g2,mj2``."""
    codec: str
    """Decoder name, such as ``h264``."""
    width: int
    """Width of a picture as a player shows it (square pixels, upright)."""
    height: int
    """Height of a picture as a player shows it (square pixels, upright)."""
    rotation_degrees: int
    """Counter-clockwise turn that the decoder applies, after any mirror: 0, 90, 180 or 270."""
    frame_times_seconds: tuple[float, ...]
    """Presentation time of each frame that can be shown, ascending; the first one is 0."""
    duration_seconds: float
    """End of the last frame. The video occupies [0, duration_seconds)."""
    keyframe_indices: tuple[int, ...] = (0,)
    """Frames at which the container says that decoding can start, ascending."""

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1:
            raise ValueError(f"a picture of {self.width}x{self.height} pixels does not exist")
        if self.rotation_degrees not in (0, 90, 180, 270):
            raise ValueError(
                f"rotation of {self.rotation_degrees} degrees; expected 0, 90, 180, 270"
            )
        if not self.frame_times_seconds:
            raise ValueError("no frame")
        if any(not 0 <= index < self.num_frames for index in self.keyframe_indices):
            raise ValueError("a keyframe that is not among the frames")
        if not self.duration_seconds > 0:
            raise ValueError(f"duration of {self.duration_seconds} s; expected a positive number")

    @property
    def num_frames(self) -> int:
        """Number of frames that can be shown."""
        return len(self.frame_times_seconds)

    def __repr__(self) -> str:
        return (
            f"VideoFacts({self.codec} {self.width}x{self.height}, "
            f"{self.num_frames} frames, {self.duration_seconds:.2f} s)"
        )


@dataclass(frozen=True, slots=True)
class FramePlan:
    """Which frames to decode, and at which size they leave the decoder."""

    frame_indices: tuple[int, ...]
    """Indices into ``VideoFacts.frame_times_seconds``, ascending; a held frame may repeat."""
    width: int
    """Width that the model will use, in pixels."""
    height: int
    """Height that the model will use, in pixels."""

    def __post_init__(self) -> None:
        if not self.frame_indices:
            raise ValueError("a plan needs at least one frame")
        if any(a > b for a, b in zip(self.frame_indices, self.frame_indices[1:], strict=False)):
            raise ValueError("frame indices must ascend")
        if self.width < 1 or self.height < 1:
            raise ValueError(f"a target of {self.width}x{self.height} pixels does not exist")

    @property
    def num_frames(self) -> int:
        """Number of frames that the model will see."""
        return len(self.frame_indices)


@dataclass(frozen=True, slots=True)
class VideoClip:
    """Decoded frames, ready for the model."""

    frames: NDArray[np.uint8]
    """RGB, shape (num_frames, height, width, 3), C contiguous."""
    timestamps_seconds: tuple[float, ...]
    """Presentation time of each frame, ascending."""
    duration_seconds: float
    """The span that the frames were sampled from evenly."""
    content_key: bytes
    """Digest of the source bytes and the plan: equal keys mean equal frames and times."""
    num_frames_replaced: int = 0
    """Frames that could not be decoded and hold the picture of a neighbour."""

    def __post_init__(self) -> None:
        if self.frames.ndim != 4 or self.frames.shape[-1] != 3 or self.frames.dtype != np.uint8:
            raise ValueError(f"frames of shape {self.frames.shape} {self.frames.dtype}")
        if len(self.frames) != len(self.timestamps_seconds):
            raise ValueError(
                f"{len(self.frames)} frames but {len(self.timestamps_seconds)} timestamps"
            )
        if not self.content_key:
            raise ValueError("a clip needs a content key")

    @property
    def num_frames(self) -> int:
        """Number of frames."""
        return len(self.frames)

    def __repr__(self) -> str:
        return f"VideoClip(frames={self.frames.shape}, duration={self.duration_seconds:.2f} s)"
