"""From probed facts and a client's wishes to what is decoded. Arithmetic only; nothing waits."""

from dataclasses import dataclass
from typing import Protocol

from server.conversation import PixelLimits, VideoRequest
from server.errors import InvalidRequest
from server.media.clip import FramePlan, VideoFacts
from server.media.sampling import Sampling, plan_frames
from server.settings import VideoSettings


class FrameGeometry(Protocol):
    """How the served model sees frames; the engine's ``VideoGeometry`` is one."""

    @property
    def temporal_patch_size(self) -> int:
        """Frames that become one step in time."""

    def frame_size(
        self, *, width: int, height: int, num_frames: int, limits: PixelLimits
    ) -> tuple[int, int]:
        """Returns (width, height) to which the model's own processor would resize a frame.

        ``limits`` are kept as far as the processor leaves such frames as they are.
        """


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """What is made of one video."""

    sampling: Sampling
    """When the frames are."""
    frames: FramePlan
    """Which they are, and their size."""
    limits: PixelLimits
    """The limits on the size as they were followed: the server's caps applied."""


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
        limits = granted_limits(video.pixels, self._settings)
        width, height = self._geometry.frame_size(
            width=facts.width,
            height=facts.height,
            num_frames=len(sampling.frame_indices),
            limits=limits,
        )
        frames = FramePlan(sampling.frame_indices, width, height)
        _require_within(frames, video.pixels)
        return ClipPlan(sampling, frames, limits)


def granted_limits(wish: PixelLimits, settings: VideoSettings) -> PixelLimits:
    """Returns ``wish`` with the server's caps applied."""
    of_frame, of_video = settings.max_model_pixels_per_frame, settings.max_model_pixels_per_video
    max_pixels = _least(wish.max_pixels, wish.preferred_pixels, of_frame)
    return PixelLimits(
        min_pixels=None if wish.min_pixels is None else _least(wish.min_pixels, max_pixels),
        max_pixels=max_pixels,
        total_pixels=_least(wish.total_pixels, of_video),
        max_side=wish.max_side,
    )


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _require_within(frames: FramePlan, wish: PixelLimits) -> None:
    """Refuse a plan above a limit that the client gave in numbers: it may count on it."""
    pixels = frames.width * frames.height
    for name, limit, found in (
        ("max_pixels", wish.max_pixels, pixels),
        ("total_pixels", wish.total_pixels, pixels * frames.num_frames),
        ("spatial_limit", wish.max_side, max(frames.width, frames.height)),
    ):
        if limit is not None and found > limit:
            raise InvalidRequest(
                f"{name} is {limit}, but the model takes {frames.num_frames} frames of this video "
                f"at {frames.width}x{frames.height} pixels at the least, which makes {found}. "
                "Raise it or leave it out"
                + (", or ask for fewer frames." if name == "total_pixels" else "."),
                param=name,
            )
