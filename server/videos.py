"""A request's videos in front of the model: whether they fit it, and what is told of them."""

import hashlib
from collections.abc import Sequence

import numpy as np

from server.conversation import PixelLimits, VideoRequest
from server.engine.base import JsonObject, ModelFacts, PreparedVideo, VideoGeometry, VideoTokens
from server.errors import ContextLengthExceeded
from server.media.clip import VideoClip, VideoFacts
from server.media.loader import PlanHook
from server.media.planning import ClipPlan


class VideoFit:
    """Refuses a request whose videos can not fit the model, before a frame is decoded."""

    def __init__(self, model: ModelFacts, videos: Sequence[VideoRequest]) -> None:
        self._model = model
        self._videos = videos
        self._planned_tokens: dict[int, int] = {}
        self._seconds: dict[int, float] = {}
        self.plans: dict[int, ClipPlan] = {}
        """The plans that were checked, by the index of the video."""

    def checker_of(self, index: int) -> PlanHook:
        """Returns the hook that the loader calls with the plan of video ``index``."""

        def check(_: VideoFacts, plan: ClipPlan) -> None:
            self.plans[index] = plan
            self._seconds[index] = plan.sampling.span_seconds
            self._planned_tokens[index] = self.tokens_of(index).after
            self._check_seconds(index)
            self._check_tokens(index)

        return check

    def tokens_of(self, index: int) -> VideoTokens:
        """Returns the token counts of video ``index`` as planned."""
        plan, video = self.plans[index], self._videos[index]
        return self._model.geometry.video_tokens(
            width=plan.frames.width,
            height=plan.frames.height,
            num_frames=plan.frames.num_frames,
            pruning_rate=plan.pruning_rate,
            pruning_method=video.pruning_method,
        )

    def _check_tokens(self, index: int) -> None:
        tokens, total = self._planned_tokens[index], sum(self._planned_tokens.values())
        # Some models put text between the video tokens, which only vLLM counts: what is
        # refused here has too many without it.
        if tokens > self._model.max_video_tokens:
            excess = (
                f"has {tokens} video tokens; this server takes "
                f"{self._model.max_video_tokens} a video"
            )
        elif total >= self._model.max_model_len:
            excess = (
                f"brings the prompt to {total} video tokens; the model takes "
                f"{self._model.max_model_len} tokens in all"
            )
        else:
            return
        raise ContextLengthExceeded(
            f"The video of {self._seconds[index]:.1f} s, sampled at "
            f"{self.plans[index].frames.num_frames} frames, {excess}. Ask for fewer frames (fps, "
            "num_frames), smaller ones (max_pixels) or a higher video_pruning_rate, or give a "
            "video_token_budget.",
            param=self._videos[index].param,
        )

    def _check_seconds(self, index: int) -> None:
        """Refuse videos that span more time than the model can tell apart, however few frames."""
        seconds = sum(self._seconds.values())
        if seconds > self._model.max_video_seconds:
            raise ContextLengthExceeded(
                f"The video of {self._seconds[index]:.1f} s brings the request to {seconds:.1f} "
                f"s of video; the model takes {self._model.max_video_seconds:.0f} s in all. Send a "
                "shorter one, or a stretch of it (start_offset, end_offset).",
                param=self._videos[index].param,
            )


def require_room(prompt_tokens: int, model: ModelFacts) -> None:
    """Refuse a prompt that leaves no room for an answer, as the engine does.

    Raises:
        ContextLengthExceeded: it has as many tokens as the model takes in all, or more.
    """
    if prompt_tokens >= model.max_model_len:
        raise ContextLengthExceeded(
            f"The prompt has {prompt_tokens} tokens; prompt and answer may have "
            f"{model.max_model_len} together. Send a shorter conversation, fewer frames (fps, "
            "num_frames), or a higher video_pruning_rate.",
            param="messages",
        )


def stand_in(
    geometry: VideoGeometry, facts: VideoFacts, plan: ClipPlan, video: VideoRequest
) -> PreparedVideo:
    """Returns blank frames, as small as the model takes them, in place of a video's own.

    A prompt with them has the text of the real one, whose video tokens are arithmetic.
    """
    num_frames, times = plan.frames.num_frames, facts.frame_times_seconds
    width, height = geometry.frame_size(
        width=facts.width,
        height=facts.height,
        num_frames=num_frames,
        limits=PixelLimits(max_pixels=1),
    )
    timestamps = tuple(times[index] for index in plan.frames.frame_indices)
    span_seconds = plan.sampling.span_seconds
    content = repr(("stand-in", width, height, timestamps, span_seconds))
    clip = VideoClip(
        frames=np.zeros((num_frames, height, width, 3), np.uint8),
        timestamps_seconds=timestamps,
        duration_seconds=span_seconds,
        content_key=hashlib.sha256(content.encode()).digest(),
    )
    return PreparedVideo(clip, plan.pruning_rate, video.pruning_method)


def video_report(
    plan: ClipPlan,
    video: VideoRequest,
    tokens: VideoTokens,
    *,
    num_frames_replaced: int | None,
    supports_pruning: bool,
) -> JsonObject:
    """Returns what a client is told about one video: how it is sampled, and its tokens.

    Args:
        plan: what is made of it.
        video: what was asked for.
        tokens: what the model gets.
        num_frames_replaced: frames that hold a neighbour's picture, None if none was decoded.
        supports_pruning: whether the model can prune.
    """
    sampling = plan.sampling
    return {
        "frames_sampled": plan.frames.num_frames,
        "frames_replaced": num_frames_replaced,
        "width": plan.frames.width,
        "height": plan.frames.height,
        "span_seconds": round(sampling.span_seconds, 3),
        "tokens_before": tokens.before,
        "tokens_after": tokens.after,
        "pruning_method": video.pruning_method if supports_pruning else None,
        "pruning_rate": plan.pruning_rate,
        "effective_pruning_rate": round(tokens.effective_rate, 4),
        "granted": {
            "fps": sampling.granted.fps,
            "num_frames": sampling.granted.num_frames,
            "min_frames": sampling.granted.min_frames,
            "max_frames": sampling.granted.max_frames,
            "start_offset": round(sampling.start_seconds, 3),
            "end_offset": round(sampling.granted.end_seconds or 0.0, 3),
            "frame_alignment": sampling.granted.alignment,
            "min_pixels": plan.limits.min_pixels,
            "max_pixels": plan.limits.max_pixels,
            "total_pixels": plan.limits.total_pixels,
            "spatial_limit": plan.limits.max_side,
            "video_token_budget": video.token_budget.tokens if video.token_budget else None,
        },
    }
