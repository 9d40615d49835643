"""From probed facts and a client's wishes to what is decoded. Arithmetic only; nothing waits."""

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Protocol

from server.conversation import PixelLimits, TokenBudget, VideoRequest
from server.errors import InvalidRequest
from server.media.clip import FramePlan, VideoFacts
from server.media.sampling import Sampling, plan_frames
from server.settings import VideoSettings


class TokenCounts(Protocol):
    """What pruning does to one video; the engine's ``VideoTokens`` is one."""

    @property
    def after(self) -> int:
        """Video tokens that the prompt holds."""


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

    def video_tokens(
        self, *, width: int, height: int, num_frames: int, pruning_rate: float, pruning_method: str
    ) -> TokenCounts:
        """Returns the token counts of a clip whose frames have the model's size."""


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """What is made of one video."""

    sampling: Sampling
    """When the frames are."""
    frames: FramePlan
    """Which they are, and their size."""
    limits: PixelLimits
    """The limits on the size as they were followed: the server's caps applied."""
    pruning_rate: float
    """Fraction of the video's tokens to remove, in [0, 1)."""


class ClipPlanner:
    """Plans clips for one model, within the operator's limits."""

    def __init__(self, settings: VideoSettings, geometry: FrameGeometry) -> None:
        self._settings = settings
        self._geometry = geometry

    def plan(self, facts: VideoFacts, video: VideoRequest) -> ClipPlan:
        """Returns what to make of a video.

        A token budget is kept by pruning more, and if that is not enough by fewer frames.

        Raises:
            InvalidRequest: a wish can not be met; the param is the name of the hint.
            InvalidVideo: the model takes no frames of that shape, or not so few.
        """
        plan = self._plan(facts, video, shape=(facts.width, facts.height))
        if video.token_budget is None:
            return plan
        return self._pruned(plan, video, video.token_budget) or self._shortened(
            plan, facts, video, video.token_budget
        )

    def _plan(self, facts: VideoFacts, video: VideoRequest, *, shape: tuple[int, int]) -> ClipPlan:
        """Returns the plan, without regard to a token budget, for frames of ``shape``."""
        sampling = plan_frames(
            facts,
            video.sampling,
            self._settings,
            temporal_patch_size=self._geometry.temporal_patch_size,
        )
        limits = granted_limits(video.pixels, self._settings)
        width, height = self._geometry.frame_size(
            width=shape[0],
            height=shape[1],
            num_frames=len(sampling.frame_indices),
            limits=limits,
        )
        frames = FramePlan(sampling.frame_indices, width, height)
        _require_within(frames, video.pixels)
        return ClipPlan(sampling, frames, limits, video.pruning_rate)

    def _pruned(self, plan: ClipPlan, video: VideoRequest, budget: TokenBudget) -> ClipPlan | None:
        """Returns the plan at the lowest rate that keeps the budget, None if there is none."""
        if self._tokens(plan, video, plan.pruning_rate) <= budget.tokens:
            return plan
        # Half a token more than the budget is rounded down to it, whatever the floating point does.
        needed = 1 - (budget.tokens + 0.5) / self._tokens(plan, video, 0.0)
        rate = min(needed, budget.max_rate)
        if rate <= plan.pruning_rate or self._tokens(plan, video, rate) > budget.tokens:
            return None
        return replace(plan, pruning_rate=rate)

    def _shortened(
        self, plan: ClipPlan, facts: VideoFacts, video: VideoRequest, budget: TokenBudget
    ) -> ClipPlan:
        """Returns a plan of as many frames as the budget allows at its highest rate."""
        step = self._geometry.temporal_patch_size
        floor = -(-(video.sampling.min_frames or 1) // step) * step
        counts = range(floor, plan.frames.num_frames, step)
        # Some models share out the pixels of a clip: with fewer frames, each would grow.
        shape = plan.frames.width, plan.frames.height

        def shortened(num_frames: int) -> ClipPlan:
            return self._plan(facts, _shorter(video, num_frames), shape=shape)

        def fitted(num_frames: int) -> ClipPlan | None:
            return self._pruned(shortened(num_frames), video, budget)

        place = bisect_left(counts, True, key=lambda count: fitted(count) is None)
        best = fitted(counts[place - 1]) if place else None
        if best is None:
            raise self._too_tight(shortened(counts[0]) if counts else plan, video, budget)
        return best

    def _too_tight(
        self, least: ClipPlan, video: VideoRequest, budget: TokenBudget
    ) -> InvalidRequest:
        rate = max(budget.max_rate, least.pruning_rate)
        return InvalidRequest(
            f"video_token_budget is {budget.tokens}, but {least.frames.num_frames} frames of "
            f"{least.frames.width}x{least.frames.height} pixels take "
            f"{self._tokens(least, video, rate)} tokens, even at a pruning rate of {rate}. Raise "
            "it, or ask for smaller frames (max_pixels).",
            param="video_token_budget",
        )

    def _tokens(self, plan: ClipPlan, video: VideoRequest, rate: float) -> int:
        return self._geometry.video_tokens(
            width=plan.frames.width,
            height=plan.frames.height,
            num_frames=plan.frames.num_frames,
            pruning_rate=rate,
            pruning_method=video.pruning_method,
        ).after


def _shorter(video: VideoRequest, num_frames: int) -> VideoRequest:
    """Returns the request for no more than ``num_frames`` frames."""
    wish = video.sampling
    if wish.num_frames is not None:
        return replace(video, sampling=replace(wish, num_frames=num_frames))
    floor = min(wish.min_frames or 1, num_frames)
    return replace(video, sampling=replace(wish, min_frames=floor, max_frames=num_frames))


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
