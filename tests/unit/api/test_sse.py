import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.api.sse import DONE, KEEP_ALIVE, ChunkFeed, EventStream, Signal, event
from server.api.state import noted_outcome
from server.errors import EngineUnavailable


class Client:
    """The other end of an ASGI response."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.scope: dict[str, Any] = {"type": "http"}

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def read(self, stream: EventStream) -> None:
        await stream(self.scope, self.receive, self.send)


async def stream_of(source: AsyncIterator[dict[str, Any]], patience: float = 5) -> EventStream:
    feed = ChunkFeed(source)
    return EventStream(feed, first=await feed.next(patience), comment_seconds=patience)


async def numbers(*values: int) -> AsyncIterator[dict[str, Any]]:
    for value in values:
        yield {"n": value}


def test_event_is_one_ascii_line() -> None:
    assert event({"text": "a\n\r\u2028é\ud800"}) == (
        b'data: {"text":"a\\n\\r\\u2028\\u00e9\\ud800"}\n\n'
    )


@pytest.mark.anyio
async def test_stream_ends_with_done() -> None:
    client = Client()
    await client.read(await stream_of(numbers(1, 2)))

    assert client.body == b'data: {"n":1}\n\ndata: {"n":2}\n\n' + DONE
    start, *bodies = client.sent
    assert start["status"] == 200
    headers = dict(start["headers"])
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert headers[b"cache-control"] == b"no-cache, no-transform"
    assert headers[b"x-accel-buffering"] == b"no"
    assert b"content-length" not in headers
    assert [body["more_body"] for body in bodies] == [True, True, True, False]
    assert noted_outcome(client.scope) == "success"


@pytest.mark.anyio
async def test_empty_stream_is_done_at_once() -> None:
    client = Client()
    await client.read(await stream_of(numbers()))
    assert client.body == DONE


@pytest.mark.anyio
async def test_silence_is_filled_with_comments_and_loses_no_chunk() -> None:
    async def slow() -> AsyncIterator[dict[str, Any]]:
        for value in range(2):
            await asyncio.sleep(0.25)
            yield {"n": value}

    client = Client()
    await client.read(await stream_of(slow(), patience=0.1))

    assert client.body.startswith(KEEP_ALIVE)
    assert 2 <= client.body.count(KEEP_ALIVE) <= 5
    assert client.body.replace(KEEP_ALIVE, b"") == b'data: {"n":0}\n\ndata: {"n":1}\n\n' + DONE


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "code", "outcome"),
    [
        (EngineUnavailable("The engine has stopped."), "engine_unavailable", "engine_error"),
        (ValueError("secret"), "internal_error", "internal_error"),
        # Not to be taken for silence, which is a TimeoutError too.
        (TimeoutError("secret"), "internal_error", "internal_error"),
    ],
)
async def test_late_error_is_the_last_event_and_done_does_not_follow(
    error: Exception, code: str, outcome: str
) -> None:
    async def failing() -> AsyncIterator[dict[str, Any]]:
        yield {"n": 1}
        raise error

    client = Client()
    await client.read(await stream_of(failing()))

    first, last, rest = client.body.split(b"\n\n")
    assert (first, rest) == (b'data: {"n":1}', b"")
    told = json.loads(last.removeprefix(b"data: "))["error"]
    assert (set(told), told["code"]) == ({"message", "type", "param", "code"}, code)
    assert b"secret" not in client.body
    assert client.sent[-1]["more_body"] is False
    assert noted_outcome(client.scope) == outcome


@pytest.mark.anyio
async def test_number_that_json_lacks_becomes_an_error_event() -> None:
    async def broken() -> AsyncIterator[dict[str, Any]]:
        yield {"n": float("nan")}

    client = Client()
    await client.read(await stream_of(broken()))
    assert b"internal_error" in client.body
    assert DONE not in client.body


@pytest.mark.anyio
async def test_error_before_the_first_chunk_is_raised_to_the_caller() -> None:
    async def failing() -> AsyncIterator[dict[str, Any]]:
        raise EngineUnavailable("x")
        yield {}

    with pytest.raises(EngineUnavailable):
        await stream_of(failing())


class Watched:
    """A source that notes in which task it is started and closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.tasks: set[asyncio.Task[Any] | None] = set()

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        try:
            # A deadline across yields breaks if the task changes on the way.
            async with asyncio.timeout(60):
                for value in range(1000):
                    self.tasks.add(asyncio.current_task())
                    yield {"n": value}
                    await asyncio.sleep(0.01)
        finally:
            self.tasks.add(asyncio.current_task())
            self.closed.set()


@pytest.mark.anyio
async def test_source_is_closed_when_the_client_hangs_up() -> None:
    client, source = Client(), Watched()
    reading = asyncio.create_task(client.read(await stream_of(source.chunks())))
    await asyncio.sleep(0.05)
    client.gone.set()
    await asyncio.wait_for(reading, 1)

    assert source.closed.is_set()
    assert len(source.tasks) == 1
    assert DONE not in client.body
    assert noted_outcome(client.scope) == "cancelled"


@pytest.mark.anyio
async def test_source_is_closed_when_the_server_stops() -> None:
    client, source = Client(), Watched()
    reading = asyncio.create_task(client.read(await stream_of(source.chunks())))
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert source.closed.is_set()


@pytest.mark.anyio
async def test_source_is_closed_when_sending_fails() -> None:
    client, source = Client(), Watched()
    stream = await stream_of(source.chunks())

    async def broken_send(message: Any) -> None:
        raise OSError("broken pipe")

    with pytest.raises(OSError, match="broken pipe"):
        await stream(client.scope, client.receive, broken_send)
    assert source.closed.is_set()


@pytest.mark.anyio
async def test_slow_reader_holds_the_source_back() -> None:
    produced: list[int] = []

    async def eager() -> AsyncIterator[dict[str, Any]]:
        for value in range(100):
            produced.append(value)
            yield {"n": value}

    feed = ChunkFeed(eager())
    await asyncio.sleep(0.05)
    assert len(produced) <= 2
    assert await feed.next(1) == {"n": 0}
    await feed.aclose()
    assert len(produced) <= 3


@pytest.mark.anyio
async def test_feed_says_why_it_has_no_chunk() -> None:
    gate = asyncio.Event()

    async def gated() -> AsyncIterator[dict[str, Any]]:
        await gate.wait()
        yield {"n": 1}

    feed = ChunkFeed(gated())
    assert await feed.next(0.01) is Signal.SILENCE
    gate.set()
    assert await feed.next(1) == {"n": 1}
    assert await feed.next(1) is Signal.END
    assert await feed.next(1) is Signal.END
    await feed.aclose()
