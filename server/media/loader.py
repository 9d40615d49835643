"""From a video in a request to the clip that the model will see.

::

    fetch, digest of the bytes -> facts -> plan -> frames

What is fetched, probed or decoded for one request serves every other that asks for the same.
"""

import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeGuard, TypeVar

import numpy as np

from server.conversation import MediaSource, UrlSource, VideoRequest
from server.errors import RequestError
from server.files.store import FileStore
from server.media.clip import FramePlan, VideoClip, VideoFacts
from server.media.downloads import DownloadCache
from server.media.flights import SingleFlight
from server.media.planning import ClipPlan, ClipPlanner, FrameGeometry
from server.media.remotefile import EncodedVideo
from server.media.sharing import SharedDecodes
from server.media.source import SourceReader
from server.media.webfaults import RemoteFileChanged
from server.media.workers import DecoderPool
from server.metrics import Metrics
from server.settings import VideoSettings

_V = TypeVar("_V")

PlanHook = Callable[[VideoFacts, ClipPlan], None]
"""Called before any frame is decoded; raises a ``RequestError`` to refuse the plan."""


_MAX_URL_CHARACTERS = 4096
"""Longer ones are refused, and not worth a digest."""


class VideoLoader:
    """Fetches, samples and decodes videos, within the limits of the settings."""

    def __init__(
        self,
        settings: VideoSettings,
        geometry: FrameGeometry,
        *,
        pool: DecoderPool | None = None,
        uploads: FileStore | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Prepare; no process runs before ``start``.

        Args:
            settings: limits.
            geometry: the frame sizes of the served model.
            pool: decoder processes; by default a pool of its own.
            uploads: where uploaded files are; without it there are none.
            metrics: counts what the caches do; by default nobody reads them.
        """
        metrics = Metrics() if metrics is None else metrics
        self._planner = ClipPlanner(settings, geometry)
        self._downloads = DownloadCache(max_bytes=settings.download_cache_bytes, metrics=metrics)
        self._downloads_meter = metrics.cache("downloads")
        self._fetches: SingleFlight[EncodedVideo] = SingleFlight()
        self._reader = SourceReader(settings, self._downloads, uploads=uploads, metrics=metrics)
        self._pool = DecoderPool(settings, metrics=metrics) if pool is None else pool
        self._decodes = SharedDecodes(
            self._pool, cache_bytes=settings.clip_cache_bytes, metrics=metrics
        )

    async def start(self) -> None:
        """Return when videos can be decoded without delay."""
        await self._pool.start()

    async def stop(self) -> None:
        """End every decoder process, and free what is kept."""
        await self._pool.stop()
        self._decodes.forget()
        self._downloads.forget()

    def is_full_for(self, client: str) -> bool:
        """Returns whether a video of ``client`` would be refused now, for all that wait."""
        return self._pool.is_full_for(client)

    async def fetch(self, video: VideoRequest) -> EncodedVideo:
        """Returns the encoded video that the request points to, as far as it was read.

        Raises:
            InvalidRequest, RequestTooLarge, VideoUnreachable: it can not be had.
        """
        with _naming(video):
            source = video.source
            if not _is_remote(source):
                return await self._reader.read(source, param=video.param)
            # Without a name: an error is told to all, each under the name of its own video.
            return await self._shared(b"part", source, lambda: self._reader.open(source, param=""))

    async def _shared(
        self, how: bytes, source: UrlSource, read: Callable[[], Coroutine[Any, Any, EncodedVideo]]
    ) -> EncodedVideo:
        """Returns what ``read`` returns, once for all who read the URL in this way now."""
        key = hashlib.sha256(how + source.url.encode()).digest()
        if key in self._fetches:
            self._downloads_meter.looked_up("shared")
        async with self._fetches.join(key, read) as data:
            return data

    async def _or_whole(
        self,
        source: EncodedVideo,
        video: VideoRequest,
        work: Callable[[EncodedVideo], Awaitable[_V]],
    ) -> _V:
        """Returns what ``work`` returns for ``source``, or if that has changed, for all of it."""
        try:
            return await work(source)
        except RemoteFileChanged:
            remote = video.source
            assert isinstance(remote, UrlSource)
        read = partial(self._reader.read, remote, param="")
        return await work(await self._shared(b"all", remote, read))

    async def plan(
        self, source: EncodedVideo, video: VideoRequest, *, on_plan: PlanHook | None = None
    ) -> tuple[VideoFacts, ClipPlan]:
        """Returns what ``decode`` would decode, without decoding it.

        Arguments and errors as for ``decode``.
        """

        async def work(source: EncodedVideo) -> tuple[VideoFacts, ClipPlan]:
            async with self._decodes.probed(source) as probed:
                facts = probed.facts
            return facts, self._plan(facts, video, on_plan)

        with _naming(video):
            return await self._or_whole(source, video, work)

    def _plan(self, facts: VideoFacts, video: VideoRequest, on_plan: PlanHook | None) -> ClipPlan:
        plan = self._planner.plan(facts, video)
        if on_plan is not None:
            on_plan(facts, plan)
        return plan

    async def decode(
        self, source: EncodedVideo, video: VideoRequest, *, on_plan: PlanHook | None = None
    ) -> VideoClip:
        """Returns the frames that the request asked for, at the size the model uses.

        Args:
            source: what ``fetch`` returned.
            video: whose sampling wish counts.
            on_plan: may look at the plan and refuse it, before any frame is decoded.

        Raises:
            InvalidVideo: no usable video is in the source, or it exceeds a limit.
            Overloaded: too many videos are waiting, or this one has waited too long.
            RequestTooLarge, VideoUnreachable: what is needed can not be had from its origin.
        """
        with _naming(video):
            return await self._or_whole(source, video, partial(self._decode, video, on_plan))

    async def _decode(
        self, video: VideoRequest, on_plan: PlanHook | None, source: EncodedVideo
    ) -> VideoClip:
        async with self._decodes.probed(source) as probed:
            facts = probed.facts
            plan = self._plan(facts, video, on_plan)
            timestamps = tuple(facts.frame_times_seconds[i] for i in plan.frames.frame_indices)
            span_seconds = plan.sampling.span_seconds
            key = _content_key(source.digest, plan.frames, timestamps, span_seconds)
            frames = await probed.frames(key, plan.frames)
        return VideoClip(
            frames=frames.view(),
            timestamps_seconds=timestamps,
            duration_seconds=span_seconds,
            content_key=key,
            num_frames_replaced=frames.num_replaced,
        )


@contextmanager
def _naming(video: VideoRequest) -> Iterator[None]:
    """Have errors of the request name the video that they are about."""
    try:
        yield
    except RequestError as error:
        error.param = video.param_of(error.param)
        raise


def _is_remote(source: MediaSource) -> TypeGuard[UrlSource]:
    if not isinstance(source, UrlSource) or len(source.url) > _MAX_URL_CHARACTERS:
        return False
    return source.is_remote


def _content_key(
    source_digest: bytes, plan: FramePlan, timestamps: tuple[float, ...], span_seconds: float
) -> bytes:
    """Returns a digest that differs whenever a frame, its size or its time does."""
    key = hashlib.sha256(source_digest)
    key.update(np.array([plan.width, plan.height, plan.num_frames], np.int64).tobytes())
    key.update(np.array(plan.frame_indices, np.int64).tobytes())
    key.update(np.array([*timestamps, span_seconds], np.float64).tobytes())
    return key.digest()
