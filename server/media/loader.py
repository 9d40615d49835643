"""From a video in a request to the clip that the model will see."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from server.conversation import VideoRequest
from server.errors import RequestError
from server.files.store import FileStore
from server.media.clip import FramePlan, VideoClip, VideoFacts
from server.media.planning import ClipPlan, ClipPlanner, FrameGeometry
from server.media.source import SourceReader
from server.media.workers import DecoderPool
from server.settings import VideoSettings

PlanHook = Callable[[VideoFacts, ClipPlan], None]
"""Called before any frame is decoded; raises a ``RequestError`` to refuse the plan."""


_SLOW_HASH_BYTES = 1_000_000


class VideoLoader:
    """Fetches, samples and decodes videos, within the limits of the settings."""

    def __init__(
        self,
        settings: VideoSettings,
        geometry: FrameGeometry,
        *,
        pool: DecoderPool | None = None,
        uploads: FileStore | None = None,
    ) -> None:
        """Prepare; no process runs before ``start``.

        Args:
            settings: limits.
            geometry: the frame sizes of the served model.
            pool: decoder processes; by default a pool of its own.
            uploads: where uploaded files are; without it there are none.
        """
        self._planner = ClipPlanner(settings, geometry)
        self._reader = SourceReader(settings, uploads=uploads)
        self._pool = DecoderPool(settings) if pool is None else pool

    async def start(self) -> None:
        """Return when videos can be decoded without delay."""
        await self._pool.start()

    async def stop(self) -> None:
        """End every decoder process."""
        await self._pool.stop()

    async def fetch(self, video: VideoRequest) -> bytes:
        """Returns the encoded video that the request points to.

        Raises:
            InvalidRequest, RequestTooLarge, VideoUnreachable: it can not be had.
        """
        with _naming(video):
            return await self._reader.read(video.source, param=video.param)

    async def plan(
        self, source: bytes, video: VideoRequest, *, on_plan: PlanHook | None = None
    ) -> tuple[VideoFacts, ClipPlan]:
        """Returns what ``decode`` would decode, without decoding it.

        Arguments and errors as for ``decode``.
        """
        with _naming(video):
            async with self._pool.open(source) as decoder:
                facts = await decoder.probe()
            plan = self._planner.plan(facts, video)
            if on_plan is not None:
                on_plan(facts, plan)
        return facts, plan

    async def decode(
        self, source: bytes, video: VideoRequest, *, on_plan: PlanHook | None = None
    ) -> VideoClip:
        """Returns the frames that the request asked for, at the size the model uses.

        Args:
            source: what ``fetch`` returned.
            video: whose sampling wish counts.
            on_plan: may look at the plan and refuse it, before any frame is decoded.

        Raises:
            InvalidVideo: no usable video is in the source, or it exceeds a limit.
            Overloaded: too many videos are waiting.
        """
        with _naming(video):
            async with self._pool.open(source) as decoder:
                facts = await decoder.probe()
                plan = self._planner.plan(facts, video)
                if on_plan is not None:
                    on_plan(facts, plan)
                digest = asyncio.create_task(_digest(source))
                try:
                    decoded = await decoder.decode(plan.frames)
                    source_digest = await digest
                finally:
                    digest.cancel()
        indices, span_seconds = plan.frames.frame_indices, plan.sampling.span_seconds
        timestamps = tuple(facts.frame_times_seconds[index] for index in indices)
        return VideoClip(
            frames=decoded.frames,
            timestamps_seconds=timestamps,
            duration_seconds=span_seconds,
            content_key=_content_key(source_digest, plan.frames, timestamps, span_seconds),
            num_frames_replaced=decoded.num_replaced,
        )


@contextmanager
def _naming(video: VideoRequest) -> Iterator[None]:
    """Have errors of the request name the video that they are about."""
    try:
        yield
    except RequestError as error:
        error.param = video.param_of(error.param)
        raise


async def _digest(source: bytes) -> bytes:
    if len(source) < _SLOW_HASH_BYTES:
        return hashlib.sha256(source).digest()
    return await asyncio.to_thread(lambda: hashlib.sha256(source).digest())


def _content_key(
    source_digest: bytes, plan: FramePlan, timestamps: tuple[float, ...], span_seconds: float
) -> bytes:
    """Returns a digest that differs whenever a frame, its size or its time does."""
    key = hashlib.sha256(source_digest)
    key.update(np.array([plan.width, plan.height, plan.num_frames], np.int64).tobytes())
    key.update(np.array(plan.frame_indices, np.int64).tobytes())
    key.update(np.array([*timestamps, span_seconds], np.float64).tobytes())
    return key.digest()
