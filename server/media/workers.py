"""One killable process per video: a crash, a hang or a memory bomb costs one request."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress

from server.client import current_client
from server.errors import InternalFault, Overloaded
from server.media.decodequeue import DecodeQueue
from server.media.decoderprocess import DecoderProcess
from server.media.faults import DecodeLimits, video_fault
from server.media.forking import ForkHost
from server.media.remotefile import EncodedVideo
from server.metrics import Metrics
from server.settings import VideoSettings

DECODE_VIDEO = "server.media.decoder:decode_video"
_MAX_THREADS_PER_VIDEO = 4


class DecoderPool:
    """Runs as many decoders at once as allowed, and lets a bounded number of videos wait."""

    def __init__(
        self,
        settings: VideoSettings,
        *,
        host: ForkHost | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Prepare; no process runs before ``start``.

        Args:
            settings: limits.
            host: where decoder processes come from; by default one of the pool's own.
            metrics: tells who waits; by default nobody reads it.
        """
        cores = len(os.sched_getaffinity(0))
        self._limits = DecodeLimits(
            max_pixels=settings.max_pixels_per_frame,
            max_frames=settings.max_source_frames,
            memory_bytes=settings.decode_memory_bytes,
            timeout_seconds=settings.decode_timeout_seconds,
            threads=min(cores, _MAX_THREADS_PER_VIDEO),
            containers=settings.containers,
            codecs=settings.codecs,
        )
        self._queue = DecodeQueue(
            num_places=settings.max_concurrent_decodes or cores,
            max_waiting=settings.max_queued_decodes,
            max_wait_seconds=settings.queue_timeout_seconds,
            meter=(Metrics() if metrics is None else metrics).decode_queue,
        )
        self._host = ForkHost(DECODE_VIDEO) if host is None else host
        self._restart = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        """Keeps tasks that nobody awaits from being collected."""

    async def start(self) -> None:
        """Return when decoders can be started without delay.

        Raises:
            InternalFault: the machine does not let us start processes.
        """
        await self._host.start()

    async def stop(self) -> None:
        """End every process of the pool; open videos fail."""
        await self._host.stop()
        if self._ending:
            await asyncio.wait(self._ending)

    def is_full_for(self, client: str) -> bool:
        """Returns whether a video of ``client`` would be refused now."""
        return self._queue.is_full_for(client)

    def share(self, key: bytes) -> None:
        """Note that the current client waits too for what another has begun to open."""
        self._queue.share(key, current_client())

    @asynccontextmanager
    async def open(
        self, source: EncodedVideo, *, key: bytes = b""
    ) -> AsyncIterator[DecoderProcess]:
        """Yields a decoder that has begun to read ``source``; it is killed at the end.

        Args:
            source: the encoded video.
            key: tells this work from other, for ``share``.

        Raises:
            InvalidVideo: the source is empty.
            Overloaded: too many videos are waiting already, this one has waited too long, or the
                machine can not start another process.
        """
        if not source.num_bytes:
            raise video_fault("invalid_video", self._limits)
        async with self._queue.place(current_client(), key=key) as place:
            decoder = await self._start_decoder(source)
            if decoder.supply is not None:
                decoder.supply.place = place
            try:
                yield decoder
            finally:
                # Nobody waits until the process is gone; its place does.
                self._go_on(decoder.end())

    async def _start_decoder(self, source: EncodedVideo) -> DecoderProcess:
        await self._revive_host()
        start = asyncio.create_task(DecoderProcess.start(self._host, source, self._limits))
        try:
            return await asyncio.shield(start)
        except OSError as error:
            # No more file descriptors.
            raise Overloaded("No decoder process can be started at the moment.") from error
        except asyncio.CancelledError:
            # Starting can not be undone half way: finish it, then take the process away.
            self._go_on(self._end_orphan(start))
            raise

    def _go_on(self, work: Awaitable[None]) -> None:
        """End a decoder in passing, and keep its place until then."""
        self._queue.hold()

        async def finish() -> None:
            try:
                await work
            finally:
                self._queue.release()

        ending = asyncio.create_task(finish())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end_orphan(self, start: asyncio.Task[DecoderProcess]) -> None:
        # Nobody is left to be told that it could not be started.
        with suppress(Exception):
            await (await start).end()

    async def _revive_host(self) -> None:
        """Start the host again if something killed it; nothing but our own stop should."""
        async with self._restart:
            if self._host.pid is None:
                raise InternalFault("the decoder pool is not running")
            if not self._host.is_running:
                await self._host.stop()
                await self._host.start()
