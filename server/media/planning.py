"""From probed facts and a client's wishes to what is decoded. Arithmetic only; nothing waits."""

from dataclasses import dataclass
from typing import Protocol

from server.conversation import VideoRequest
from server.media.clip import FramePlan, VideoFacts
from server.media.sampling import Sampling, plan_frames
from server.settings import VideoSettings


class FrameGeometry(Protocol):
    """How the served model sees frames; the engine's ``VideoGeometry`` is one."""

    @property
    def temporal_patch_size(self) -> int:
        """Frames that become one step in time."""

    def frame_size(self, *, width: int, height: int, num_frames: int) -> tuple[int, int]:
        """Returns (width, height) to which the model's own processor would resize a frame."""


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """What is made of one video."""

    sampling: Sampling
    """When the frames are."""
    frames: FramePlan
    """Which they are, and their size."""


class ClipPlanner:
    """Plans clips for one model, within the operator's limits."""

    def __init__(self, settings: VideoSettings, geometry: FrameGeometry) -> None:
        self._settings = settings
        self._geometry = geometry

    def plan(self, facts: VideoFacts, video: VideoRequest) -> ClipPlan:
        """Returns what to make of a video.

        Raises:
            InvalidRequest: a wish can not be met; the param is the name of the hint.
            InvalidVideo: the model takes no frames of that shape, or not so few.
        """
        sampling = plan_frames(
            facts,
            video.sampling,
            self._settings,
            temporal_patch_size=self._geometry.temporal_patch_size,
        )
        width, height = self._geometry.frame_size(
            width=facts.width, height=facts.height, num_frames=len(sampling.frame_indices)
        )
        return ClipPlan(sampling, FramePlan(sampling.frame_indices, width, height))
