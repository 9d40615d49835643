"""Bounds of a connection, over real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from server.api.connection import MAX_HEADER_BYTES, MAX_HEADERS, MAX_WAITING_REQUESTS
from server.settings import Settings
from tests.unit.api.stubs import (
    StubPipeline,
    build_app,
    counted,
    http_settings,
    serving,
    until,
)

pytestmark = pytest.mark.anyio

GET = b"GET /health/live HTTP/1.1\r\nHost: x\r\n"
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
QUESTION = b'{"stream":true,"messages":[{"role":"user","content":"Hi"}]}'
LENGTH = b"Content-Length: %d\r\n\r\n" % len(QUESTION)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(
    pipeline: StubPipeline | None = None, *, settings: Settings | None = None
) -> AsyncIterator[Connection]:
    app = build_app(pipeline or StubPipeline(), settings=settings)
    async with serving(app) as url, asyncio.timeout(30):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield reader, writer
        finally:
            writer.close()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(head[0].split()[1]), headers, body


async def refused(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Returns status and code of the last answer on a connection."""
    status, headers, body = await read_answer(reader)
    error: dict[str, Any] = json.loads(body)["error"]
    assert (headers["content-type"], headers["connection"]) == ("application/json", "close")
    assert headers["x-request-id"].startswith("req-")
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
    assert await reader.read() == b""
    return status, error["code"]


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(GET + b"X: " + b"a" * MAX_HEADER_BYTES + b"\r\n\r\n", id="long value"),
        pytest.param(GET + b"a" * MAX_HEADER_BYTES + b": x\r\n\r\n", id="long name"),
        pytest.param(GET + b"a:b\r\n" * MAX_HEADERS + b"\r\n", id="many headers"),
        pytest.param(b"GET /" + b"a" * MAX_HEADER_BYTES + b" HTTP/1.1\r\n\r\n", id="long URL"),
        pytest.param(GET + (b"X: " + b"a" * 9000 + b"\r\n") * 8 + b"\r\n", id="together"),
        pytest.param(GET + b"X: " + b"a" * 60_000_000, id="endless value"),
        pytest.param(b"GET /" + b"a" * 60_000_000, id="endless URL"),
        pytest.param(GET + b"a:b\r\n" * 1_000_000, id="endless headers"),
        pytest.param(
            CHAT + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * 9_000_000, id="trailer"
        ),
        pytest.param(
            CHAT + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a:b\r\n" * 10_000, id="trailers"
        ),
    ],
)
async def test_headers_above_a_limit_are_431(head: bytes) -> None:
    async with connected() as (reader, writer):
        # In another task, because the server reads on only for a moment.
        sending = asyncio.create_task(send_all(writer, head))
        assert await refused(reader) == (431, "headers_too_large")
        sending.cancel()
        await asyncio.wait({sending})


async def send_all(writer: asyncio.StreamWriter, data: bytes) -> None:
    try:
        for start in range(0, len(data), 1 << 16):
            writer.write(data[start : start + (1 << 16)])
            await writer.drain()
    except ConnectionError:
        pass  # the server closes when it has waited a while


async def test_headers_up_to_the_limits_are_served_one_request_after_another() -> None:
    many = GET + b"a:b\r\n" * (MAX_HEADERS - 1) + b"\r\n"
    long = GET + b"X: " + b"a" * (MAX_HEADER_BYTES - 1000) + b"\r\n\r\n"
    async with connected() as (reader, writer):
        for request in (many, long, many, long):
            writer.write(request)
            assert (await read_answer(reader))[0] == 200


async def test_trailers_are_not_headers() -> None:
    async with connected() as (reader, writer):
        writer.write(
            CHAT + b"Transfer-Encoding: chunked\r\n\r\n"
            b"%x\r\n%b\r\n0\r\nX-Request-Id: mine\r\n\r\n" % (len(QUESTION), QUESTION)
        )
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"mine" not in head


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET http://[/ HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        CHAT + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n",
    ],
)
async def test_what_is_no_http_is_400_in_the_shape_of_other_errors(request_bytes: bytes) -> None:
    async with connected() as (reader, writer):
        writer.write(request_bytes)
        assert await refused(reader) == (400, "invalid_http")


async def test_an_answer_under_way_is_not_followed_by_one_to_something_else() -> None:
    thinking = asyncio.Event()
    pipeline = StubPipeline(between=thinking.wait)
    async with connected(pipeline) as (reader, writer):
        writer.write(CHAT + LENGTH + QUESTION)
        await pipeline.started.wait()
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"nonsense\r\n\r\n")
        assert b"invalid_http" not in await reader.read()
        await pipeline.closed.wait()


async def test_of_requests_sent_at_once_the_one_served_is_cancelled_with_the_connection() -> None:
    thinking = asyncio.Event()
    pipeline = StubPipeline(before=thinking.wait)
    async with connected(pipeline) as (_, writer):
        writer.write(CHAT + LENGTH + QUESTION + GET + b"\r\n")
        await pipeline.started.wait()
        writer.transport.abort()
        await pipeline.cancelled.wait()


async def test_requests_sent_at_once_are_answered_up_to_a_limit() -> None:
    thinking = asyncio.Event()
    pipeline = StubPipeline(before=thinking.wait)
    async with connected(pipeline) as (reader, writer):
        for _ in range(MAX_WAITING_REQUESTS):
            writer.write(GET + b"\r\n")
        for _ in range(MAX_WAITING_REQUESTS):
            assert (await read_answer(reader))[0] == 200
        writer.write(CHAT + LENGTH + QUESTION + (GET + b"\r\n") * (MAX_WAITING_REQUESTS + 1))
        assert await reader.read() == b""
        await pipeline.cancelled.wait()


SHORT = http_settings(header_timeout_seconds=0.3)


@pytest.mark.parametrize("sent", [GET, b"G", GET + b"X: "])
async def test_headers_that_do_not_come_are_408(sent: bytes) -> None:
    async with connected(settings=SHORT) as (reader, writer):
        writer.write(sent)
        assert await refused(reader) == (408, "request_timeout")


async def test_headers_that_drip_are_408_also_later_on_a_connection() -> None:
    async with connected(settings=SHORT) as (reader, writer):
        writer.write(GET + b"\r\n")
        assert (await read_answer(reader))[0] == 200
        dripping = asyncio.create_task(drip(writer, GET, b"a:b\r\n"))
        assert await refused(reader) == (408, "request_timeout")
        dripping.cancel()
        await asyncio.wait({dripping})


async def drip(writer: asyncio.StreamWriter, first: bytes, drop: bytes) -> None:
    writer.write(first)
    while True:
        await asyncio.sleep(0.05)
        writer.write(drop)


@pytest.mark.parametrize("first", [b"", GET + b"\r\n", GET + b"Content-Length: 9999\r\n\r\n"])
async def test_silence_empty_lines_and_bodies_that_nobody_reads_end(first: bytes) -> None:
    async with connected(settings=SHORT) as (reader, writer):
        writer.write(first)
        if first:
            assert (await read_answer(reader))[0] == 200
        dripping = asyncio.create_task(drip(writer, b"", b"\r\n"))
        assert await reader.read() == b""
        dripping.cancel()
        await asyncio.wait({dripping})


async def test_a_client_that_sends_nothing_is_let_go() -> None:
    async with connected(settings=SHORT) as (reader, _):
        assert await reader.read() == b""


async def test_an_answer_may_take_longer_than_headers() -> None:
    async def think() -> None:
        await asyncio.sleep(0.4)

    async with connected(StubPipeline(between=think), settings=SHORT) as (reader, writer):
        # With the beginning of the next request, for which the deadline runs.
        writer.write(CHAT + LENGTH + QUESTION + b"G")
        assert b"[DONE]" in await reader.readuntil(b"0\r\n\r\n")


async def test_a_client_that_does_not_read_is_cut_and_its_request_cancelled() -> None:
    pipeline = StubPipeline(words=("x" * 100_000,) * 10_000)
    app = build_app(pipeline, settings=http_settings(write_timeout_seconds=0.3))
    async with serving(app) as url, asyncio.timeout(30):
        host, port = url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall(CHAT + LENGTH + QUESTION)
            await pipeline.closed.wait()
            await until(lambda: counted(app, "videochat_requests_in_flight") == 0)
            assert counted(app, "videochat_requests_total", outcome="cancelled") == 1


async def test_a_client_that_reads_gets_all_of_a_long_answer() -> None:
    pipeline = StubPipeline(words=("x" * 100_000,) * 100)
    settings = http_settings(write_timeout_seconds=5.0)
    async with connected(pipeline, settings=settings) as (reader, writer):
        writer.write(CHAT + b"Connection: close\r\n" + LENGTH + QUESTION)
        answer = await reader.read()
    assert answer.count(b"x" * 50_000) >= 100
    assert answer.endswith(b"0\r\n\r\n")
