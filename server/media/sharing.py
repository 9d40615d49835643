"""Decoding that is paid for once: by those who ask at the same time, and by those who ask later.

::

    facts of the source:   kept?  or being probed?   or probe it, and keep its decoder open
    frames of the plan:    kept?  or being decoded?  or decode them in the decoder that is open

Between the two stands the request's own look at the plan, so each request takes both steps.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from server.media.cache import BoundedCache
from server.media.clip import FramePlan, VideoFacts
from server.media.decoderprocess import DecoderProcess
from server.media.flights import SingleFlight
from server.media.frames import SharedFrames
from server.media.remotefile import EncodedVideo
from server.media.workers import DecoderPool
from server.meters import CacheMeter
from server.metrics import Metrics

_FACTS_SHARE = 16
"""One part in so many of the memory is for facts; an hour of frame times takes 3 MB."""
_BYTES_PER_FRAME_TIME = 32
_BYTES_PER_FACTS = 1000


class SharedDecodes:
    """Probes and decodes videos, no two times at once and, within a memory limit, not again."""

    def __init__(self, pool: DecoderPool, *, cache_bytes: int, metrics: Metrics) -> None:
        """Begin with nothing.

        Args:
            pool: decoder processes; started and stopped by the caller.
            cache_bytes: memory for frames and facts of videos; 0 keeps none.
            metrics: counts hits and misses.
        """
        self._pool = pool
        facts_bytes = cache_bytes // _FACTS_SHARE
        self._facts_meter = metrics.cache("facts")
        self._facts = BoundedCache(
            max_bytes=facts_bytes, size_of=_facts_bytes, meter=self._facts_meter
        )
        self._clips_meter = metrics.cache("clips")
        self._clips: BoundedCache[SharedFrames] = BoundedCache(
            max_bytes=cache_bytes - facts_bytes,
            size_of=lambda frames: frames.num_bytes,
            meter=self._clips_meter,
        )
        self._probes = SingleFlight(dispose=_OpenVideo.close)
        self._decodes: SingleFlight[SharedFrames] = SingleFlight()

    @asynccontextmanager
    async def probed(self, source: EncodedVideo) -> "AsyncIterator[ProbedVideo]":
        """Yields what is known about a video, for a plan to be made.

        Args:
            source: the encoded video; its digest says which videos are the same.

        Raises:
            InvalidVideo: there is no usable video, or it exceeds a limit.
            Overloaded: too many videos are waiting.
            RequestTooLarge, VideoUnreachable: it is at its origin, and can not be had from there.
        """
        facts = self._facts.get(source.digest)
        if facts is not None:
            self._facts_meter.looked_up("hit")
            yield ProbedVideo(self, source, facts)
            return
        self._look_for(source.digest, self._probes, self._facts_meter)
        async with self._probes.join(source.digest, lambda: self._probe(source)) as video:
            yield ProbedVideo(self, source, video.facts, video)

    async def _probe(self, source: EncodedVideo) -> "_OpenVideo":
        video = await _OpenVideo.open(self._pool, source, source.digest)
        self._facts.put(source.digest, video.facts)
        return video

    async def frames(
        self, source: EncodedVideo, key: bytes, plan: FramePlan, video: "_OpenVideo | None"
    ) -> SharedFrames:
        """Returns the frames of ``plan``; for ``ProbedVideo``, which knows the arguments."""
        if video is not None and key in self._decodes:
            # Those who wait for a decoder must not keep an idle one.
            await video.close()
        frames = self._clips.get(key)
        if frames is not None:
            self._clips_meter.looked_up("hit")
            return frames
        self._look_for(key, self._decodes, self._clips_meter)
        async with self._decodes.join(
            key, lambda: self._decode(source, key, plan, video and video.hand_over())
        ) as frames:
            return frames

    async def _decode(
        self, source: EncodedVideo, key: bytes, plan: FramePlan, video: "_OpenVideo | None"
    ) -> SharedFrames:
        if video is None:
            video = await _OpenVideo.open(self._pool, source, key)
        try:
            frames = await video.decode(plan)
        finally:
            await video.close()
        self._clips.put(key, frames)
        return frames

    def _look_for(self, key: bytes, flights: SingleFlight[Any], meter: CacheMeter) -> None:
        """Note what is looked for and not kept, and who waits if it is under way already."""
        if key in flights:
            meter.looked_up("shared")
            self._pool.share(key)
        else:
            meter.looked_up("miss")

    def forget(self) -> None:
        """Free the memory."""
        self._facts.clear()
        self._clips.clear()


@dataclass(frozen=True, slots=True)
class ProbedVideo:
    """A video whose facts are known, for one request."""

    decodes: SharedDecodes
    source: EncodedVideo
    facts: VideoFacts
    open_video: "_OpenVideo | None" = None

    async def frames(self, key: bytes, plan: FramePlan) -> SharedFrames:
        """Returns the frames of ``plan``.

        Args:
            key: a strong digest of the source and the plan; equal keys mean equal frames.
            plan: made from ``facts``.

        Raises:
            InvalidVideo: the video can not be decoded, or exceeds a limit.
            Overloaded: too many videos are waiting.
        """
        return await self.decodes.frames(self.source, key, plan, self.open_video)


class _OpenVideo:
    """A probed video whose decoder waits for a plan, until it is handed over or closed."""

    def __init__(self, facts: VideoFacts, decoder: DecoderProcess, closing: AsyncExitStack) -> None:
        self.facts = facts
        self._decoder = decoder
        self._closing: AsyncExitStack | None = closing

    @classmethod
    async def open(cls, pool: DecoderPool, source: EncodedVideo, key: bytes) -> Self:
        """Returns the video once it is probed; ``key`` is by what others may join the wait."""
        async with AsyncExitStack() as closing:
            decoder = await closing.enter_async_context(pool.open(source, key=key))
            return cls(await decoder.probe(), decoder, closing.pop_all())

    def hand_over(self) -> "_OpenVideo | None":
        """Returns the video with its decoder, which is the caller's now; None if it is gone."""
        closing, self._closing = self._closing, None
        return None if closing is None else _OpenVideo(self.facts, self._decoder, closing)

    async def decode(self, plan: FramePlan) -> SharedFrames:
        """Returns the planned frames; at most once."""
        return await self._decoder.decode(plan)

    async def close(self) -> None:
        """End the decoder, unless it was handed over."""
        closing, self._closing = self._closing, None
        if closing is not None:
            await closing.aclose()


def _facts_bytes(facts: VideoFacts) -> int:
    num_numbers = facts.num_frames + len(facts.keyframe_indices)
    return _BYTES_PER_FACTS + _BYTES_PER_FRAME_TIME * num_numbers
