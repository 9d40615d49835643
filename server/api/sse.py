"""Server-sent events: chunks as they come, comments while none comes, errors as the last event."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum, auto
from typing import cast

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api.disconnect import stopped, until_disconnect
from server.api.errors import compact_json, error_body, error_outcome, log_fault
from server.api.state import note_outcome
from server.engine.base import JsonObject

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


def event(data: JsonObject) -> bytes:
    """Returns ``data`` as one event. ASCII, so that no line separator inside can split it."""
    return b"data: " + compact_json(data) + b"\n\n"


class Signal(Enum):
    """What a feed says when it has no chunk."""

    SILENCE = auto()
    """None came within the time given; there may be more."""
    END = auto()
    """There are no more."""


@dataclass(frozen=True, slots=True)
class _End:
    """The last thing in a feed: how the source ended."""

    error: Exception | None = None


class ChunkFeed:
    """The chunks of a source, which one task of its own runs from its start to its end.

    Waiting with a deadline then ends only the wait. The source always sees one and the same task,
    so that it may hold timeouts and task groups across its yields. It is at most one chunk ahead.
    """

    def __init__(self, source: AsyncIterator[JsonObject]) -> None:
        self._queue: asyncio.Queue[JsonObject | _End] = asyncio.Queue(maxsize=1)
        # Only an async generator has the aclose() by which the engine's request is aborted.
        generator = cast(AsyncGenerator[JsonObject, None], source)
        self._task = asyncio.create_task(self._run(generator))
        self._ended = False

    async def _run(self, source: AsyncGenerator[JsonObject, None]) -> None:
        try:
            async with aclosing(source):
                async for chunk in source:
                    await self._queue.put(chunk)
        except Exception as error:
            await self._queue.put(_End(error))
        else:
            await self._queue.put(_End())

    async def next(self, patience_seconds: float) -> JsonObject | Signal:
        """Returns the next chunk, or why there is none. Nothing is lost by cancelling the wait.

        Raises:
            Exception: whatever the source raised.
        """
        if self._ended:
            return Signal.END
        try:
            async with asyncio.timeout(patience_seconds):
                item = await self._queue.get()
        except TimeoutError:
            return Signal.SILENCE
        if not isinstance(item, _End):
            return item
        self._ended = True
        if item.error is not None:
            raise item.error
        return Signal.END

    async def aclose(self) -> None:
        """Stop the source if it still runs, and return when it has cleaned up."""
        await stopped(self._task)


class EventStream(Response):
    """A 200 response that sends a feed as server-sent events and closes it in every case.

    An error becomes the last event, and no ``[DONE]`` follows: the headers have long said 200.
    """

    def __init__(
        self, feed: ChunkFeed, *, first: JsonObject | Signal, comment_seconds: float
    ) -> None:
        """Prepare the response.

        Args:
            feed: where the chunks come from; closed by this response.
            first: what was taken from the feed already, to know that it starts well.
            comment_seconds: silence after which a comment is sent.
        """
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._feed = feed
        self._first = first
        self._comment_seconds = comment_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Returns when it has ended or the client has hung up."""
        try:
            await until_disconnect(receive, self._send(scope, send))
        except ClientDisconnect:
            note_outcome(scope, "cancelled")
        finally:
            await self._feed.aclose()

    async def _send(self, scope: Scope, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        async with aclosing(self._events(scope)) as events:
            async for body in events:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        # Noted before the last byte: a client that has it all may hang up at once.
        note_outcome(scope, "success")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, scope: Scope) -> AsyncGenerator[bytes, None]:
        try:
            chunk = self._first
            while chunk is not Signal.END:
                yield KEEP_ALIVE if chunk is Signal.SILENCE else event(chunk)
                chunk = await self._feed.next(self._comment_seconds)
        except Exception as error:
            note_outcome(scope, error_outcome(error))
            log_fault(error)
            yield event(error_body(error))
        else:
            yield DONE
