"""Gives a decoder the parts of a remote file that it asks for, within bounds: it is not trusted."""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, field

from server.media.byteranges import ByteRange, joined, total_bytes
from server.media.decodequeue import Place
from server.media.remotefile import RemoteFile, in_few_requests
from server.media.sizelimit import SizeLimit
from server.media.webfaults import unreachable

_MAX_ASKS = 4
"""What the first frame needs, what the plan needs, and each time perhaps all of it instead."""


@dataclass(slots=True)
class Supply:
    """What one decoder has been given."""

    file: RemoteFile
    seconds_spent: float = 0.0
    """How long it took, waiting for a place again included."""
    _seconds_reading: float = 0.0
    place: Place | None = None
    """The decoder's, lent out while it waits."""
    _num_asks: int = 0
    _given: list[ByteRange] = field(default_factory=list)

    async def give(self, wanted: list[ByteRange]) -> None:
        """Have ``wanted`` in the file.

        Raises:
            ValueError: no decoder of ours asks for that.
            RequestTooLarge: it asks for more bytes than may be read for one question.
            RemoteFileChanged, VideoUnreachable: they can not be had, or not in time.
        """
        self._num_asks += 1
        if self._num_asks > _MAX_ASKS or not wanted or wanted[-1].end > self.file.num_bytes:
            raise ValueError("not what a decoder may ask for")
        wanted = in_few_requests(wanted)
        # Counted whether or not it is there already, so that nobody else's question matters.
        self._given = joined([*self._given, *wanted])
        origin = self.file.origin
        if total_bytes(self._given) > origin.max_bytes:
            raise SizeLimit(origin.max_bytes, "part that is needed of the video").exceeded("")
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            async with nullcontext() if self.place is None else self.place.lent():
                await self._fill(wanted)
        finally:
            self.seconds_spent += loop.time() - began_at

    async def _fill(self, wanted: list[ByteRange]) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            async with asyncio.timeout(self.file.origin.timeout_seconds - self._seconds_reading):
                await self.file.fill(wanted)
        except TimeoutError as error:
            raise unreachable("") from error
        finally:
            self._seconds_reading += loop.time() - began_at
