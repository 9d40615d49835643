"""One request, from its videos to its answer. Read ``_prepare`` and ``stream`` first.

::

    fetch all videos -> decode all videos -> engine: render, prune, generate -> answer + metrics
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from server.conversation import ChatRequest, VideoRequest
from server.engine.base import (
    ChatEngine,
    EngineTrace,
    JsonObject,
    PreparedVideo,
    VideoTokens,
)
from server.errors import EngineUnavailable
from server.media.clip import VideoClip, VideoFacts
from server.media.loader import PlanHook, VideoLoader
from server.media.planning import ClipPlan
from server.media.remotefile import EncodedVideo
from server.metrics import Metrics
from server.timing import Stopwatch
from server.together import all_of
from server.videos import VideoFit, require_room, stand_in, video_report


@dataclass(slots=True)
class _Run:
    """What is known about one request while it is answered."""

    request: ChatRequest
    watch: Stopwatch
    trace: EngineTrace
    videos: Sequence[PreparedVideo] = ()
    plans: Mapping[int, ClipPlan] = field(default_factory=dict)
    """By the index of the video."""


class ChatPipeline:
    """Answers chat requests; raises the errors of ``server.errors``."""

    def __init__(self, *, engine: ChatEngine, loader: VideoLoader, metrics: Metrics) -> None:
        self._engine = engine
        self._loader = loader
        self._metrics = metrics
        self._tasks: set[asyncio.Task[Any]] = set()
        self._expired = False

    def expire(self) -> None:
        """End every request that is being answered with EngineUnavailable: time is up."""
        self._expired = True
        for task in self._tasks:
            task.cancel()

    @contextmanager
    def _expirable(self) -> Iterator[None]:
        """Let ``expire`` end the request that the current task answers in the block."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._expired:
                raise
            task.uncancel()
            raise EngineUnavailable("The server is shutting down.") from None
        finally:
            self._tasks.discard(task)

    async def complete(self, request: ChatRequest, watch: Stopwatch) -> JsonObject:
        """Returns a ``chat.completion`` object. Cancelling it stops decoding and generating."""
        run = _Run(request, watch, EngineTrace())
        with self._expirable():
            await self._prepare(run)
            answer = await self._engine.complete(request.body, run.videos, run.trace)
        self._first_token(run, run.trace.first_token_at)
        return self._finished(run, answer)

    async def count(self, request: ChatRequest) -> JsonObject:
        """Returns what a request would cost in tokens. No frame is decoded, nothing is generated.

        Raises:
            RequestError: what ``complete`` would raise before the answer begins.
        """
        model, videos, trace = self._engine.facts, request.videos, EngineTrace()
        fit = VideoFit(model, videos)
        with self._expirable():
            sources = await all_of(self._fetch(video) for video in videos)
            planned = await all_of(
                self._plan(source, video, fit.checker_of(index))
                for index, (source, video) in enumerate(zip(sources, videos, strict=True))
            )
            stand_ins = [
                stand_in(model.geometry, facts, plan, video)
                for (facts, plan), video in zip(planned, videos, strict=True)
            ]
            rendered = await self._engine.prompt_tokens(request.body, stand_ins, trace)
        tokens = [fit.tokens_of(index) for index in range(len(videos))]
        total = rendered - sum(trace.video_tokens_after) + sum(count.after for count in tokens)
        require_room(total, model)
        reports = [
            video_report(
                plan,
                video,
                count,
                num_frames_replaced=None,
                supports_pruning=model.supports_pruning,
            )
            for (_, plan), video, count in zip(planned, videos, tokens, strict=True)
        ]
        return {"object": "response.input_tokens", "input_tokens": total, "videos": reports}

    async def stream(
        self, request: ChatRequest, watch: Stopwatch
    ) -> AsyncGenerator[JsonObject, None]:
        """Yields ``chat.completion.chunk`` objects, the last one with metrics.

        A chunk that ends a choice is held back until it is clear whether another one follows it.
        """
        with self._expirable():
            async with aclosing(self._chunks(_Run(request, watch, EngineTrace()))) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _chunks(self, run: _Run) -> AsyncGenerator[JsonObject, None]:
        await self._prepare(run)
        held: JsonObject | None = None
        chunks = self._engine.stream(run.request.body, run.videos, run.trace)
        async with aclosing(chunks):
            async for chunk in chunks:
                if held is not None:
                    yield held
                    held = None
                if _carries_output(chunk):
                    self._first_token(run)
                if _may_be_last(chunk):
                    held = chunk
                else:
                    yield chunk
        if held is not None:
            self._first_token(run, run.trace.first_token_at)
            yield self._finished(run, held)

    async def _prepare(self, run: _Run) -> None:
        """Fetch and decode every video; many at once, but stage by stage, as they are timed."""
        videos = run.request.videos
        sources = await all_of(self._fetch(video) for video in videos)
        run.watch.end("fetch")
        fit = VideoFit(self._engine.facts, videos)
        clips = await all_of(
            self._decode(source, video, fit.checker_of(index))
            for index, (source, video) in enumerate(zip(sources, videos, strict=True))
        )
        run.watch.end("decode")
        run.plans = fit.plans
        run.videos = [
            PreparedVideo(clip, fit.plans[index].pruning_rate, video.pruning_method)
            for index, (clip, video) in enumerate(zip(clips, videos, strict=True))
        ]

    async def _fetch(self, video: VideoRequest) -> EncodedVideo:
        with self._metrics.video(is_complete=False):
            return await self._loader.fetch(video)

    async def _plan(
        self, source: EncodedVideo, video: VideoRequest, on_plan: PlanHook
    ) -> tuple[VideoFacts, ClipPlan]:
        with self._metrics.video(is_complete=False):
            return await self._loader.plan(source, video, on_plan=on_plan)

    async def _decode(
        self, source: EncodedVideo, video: VideoRequest, on_plan: PlanHook
    ) -> VideoClip:
        with self._metrics.video(), self._metrics.decode():
            return await self._loader.decode(source, video, on_plan=on_plan)

    def _first_token(self, run: _Run, at: float | None = None) -> None:
        """End the engine's stages, once: the first token is out, or was produced ``at``."""
        if run.watch.time_to_first_token_seconds is not None:
            return
        run.watch.end("preprocess", run.trace.queued_at)
        run.watch.end("queue", run.trace.scheduled_at)
        run.watch.end("prefill", at)
        stages = run.watch.stage_seconds
        self._metrics.observe_first_token(
            stages,
            sum(stages.values()),
            stream=run.request.stream,
            pruning_rate=max((video.pruning_rate for video in run.videos), default=None),
        )

    def _finished(self, run: _Run, answer: JsonObject) -> JsonObject:
        """Returns ``answer`` with what happened: usage by kind of token, times, videos."""
        reports = [self._video_report(run, index) for index in range(len(run.videos))]
        usage = answer.get("usage")
        if usage is not None:
            details = usage.get("prompt_tokens_details") or {}
            tokens = sum(report["tokens_after"] for report in reports)
            usage["prompt_tokens_details"] = {**details, "video_tokens": tokens}
        answer["metrics"] = {
            **_engine_metrics(answer),
            "time_to_first_token_ms": _milliseconds(run.watch.time_to_first_token_seconds),
            "stages_ms": {k: _milliseconds(v) for k, v in run.watch.stage_seconds.items()},
            "videos": reports,
        }
        for report in reports:
            self._metrics.observe_video(
                num_frames=report["frames_sampled"],
                num_frames_replaced=report["frames_replaced"],
                tokens_before=report["tokens_before"],
                tokens_after=report["tokens_after"],
            )
        return answer

    def _video_report(self, run: _Run, index: int) -> JsonObject:
        # The rendered prompt is the truth about what the model was given.
        after = run.trace.video_tokens_after[index]
        return video_report(
            run.plans[index],
            run.request.videos[index],
            VideoTokens(before=self._video_tokens(run.videos[index]).before, after=after),
            num_frames_replaced=run.videos[index].clip.num_frames_replaced,
            supports_pruning=self._engine.facts.supports_pruning,
        )

    def _video_tokens(self, video: PreparedVideo) -> VideoTokens:
        _, height, width, _ = video.clip.frames.shape
        return self._engine.facts.geometry.video_tokens(
            width=width,
            height=height,
            num_frames=video.clip.num_frames,
            pruning_rate=video.pruning_rate,
            pruning_method=video.pruning_method,
        )


def _carries_output(chunk: JsonObject) -> bool:
    """Returns whether a chunk holds text, reasoning or a tool call; the role alone is none."""
    deltas = [choice.get("delta") or {} for choice in chunk.get("choices", ())]
    return any(
        delta.get(key)
        for delta in deltas
        for key in ("content", "reasoning", "reasoning_content", "tool_calls")
    )


def _may_be_last(chunk: JsonObject) -> bool:
    """Returns whether a chunk ends a choice or, having none, reports the usage."""
    choices = chunk.get("choices", ())
    return not choices or any(choice.get("finish_reason") for choice in choices)


def _engine_metrics(answer: JsonObject) -> JsonObject:
    """Returns vLLM's own timings, but for the one whose name means something else there."""
    metrics = answer.get("metrics") or {}
    return {k: v for k, v in metrics.items() if v is not None and k != "time_to_first_token_ms"}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
