import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.unit.api.stubs import (
    QUESTION,
    StubPipeline,
    build_app,
    client_of,
    counted,
    http_settings,
    serving,
    until,
)

CHAT = "/v1/chat/completions"
BIG = b'{"messages":[{"role":"user","content":"' + b"x" * 4000 + b'"}]}'


@pytest.mark.anyio
async def test_declared_length_above_the_limit_is_413(pipeline: StubPipeline) -> None:
    app = build_app(pipeline, settings=http_settings(max_body_bytes=1000))
    async with client_of(app) as client:
        response = await client.post(CHAT, content=BIG)

    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert response.headers["connection"] == "close"
    assert response.headers["x-request-id"]
    assert not pipeline.requests
    assert counted(app, "videochat_requests_total", outcome="client_error") == 1


@pytest.mark.anyio
@pytest.mark.parametrize("extra", [0, 1])
async def test_limit_itself_is_still_allowed(pipeline: StubPipeline, extra: int) -> None:
    app = build_app(pipeline, settings=http_settings(max_body_bytes=len(BIG) - extra))
    async with client_of(app) as client:
        response = await client.post(CHAT, content=BIG)
    assert response.status_code == (413 if extra else 200)


@pytest.mark.anyio
async def test_body_without_a_length_is_counted_while_it_flows(pipeline: StubPipeline) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(2000):
            yield BIG

    app = build_app(pipeline, settings=http_settings(max_body_bytes=10_000))
    async with serving(app) as url, httpx.AsyncClient() as client:
        response = await client.post(url + CHAT, content=body())
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"
        assert response.headers["connection"] == "close"
        assert (await client.post(url + CHAT, json=QUESTION)).status_code == 200


@pytest.mark.anyio
async def test_client_that_sends_a_whole_huge_body_still_reads_its_413(
    pipeline: StubPipeline,
) -> None:
    app = build_app(pipeline, settings=http_settings(max_body_bytes=10_000))
    async with serving(app) as url, httpx.AsyncClient() as client:
        response = await client.post(url + CHAT, content=bytes(30_000_000))
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


@pytest.mark.anyio
async def test_client_that_waits_for_leave_to_send_gets_413_instead(
    pipeline: StubPipeline,
) -> None:
    app = build_app(pipeline, settings=http_settings(max_body_bytes=10_000))
    async with serving(app) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
            await reader.read()
        writer.close()
        await writer.wait_closed()


async def head_of(
    url: str, sent: bytes, *, headers: bytes = b"", length: int | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Returns a connection on which the head of a chat request and ``sent`` have been sent."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    if length is not None:
        headers += b"Content-Length: %d\r\n" % length
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n" + sent)
    await writer.drain()
    return reader, writer


async def answer_of(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[int, bytes]:
    async with asyncio.timeout(10):
        status = int((await reader.readline()).split()[1])
        rest = await reader.read()
    writer.close()
    await writer.wait_closed()
    return status, rest


@pytest.mark.anyio
@pytest.mark.parametrize("sent", [b"", b"{"])
async def test_body_that_does_not_come_is_408(pipeline: StubPipeline, sent: bytes) -> None:
    app = build_app(pipeline, settings=http_settings(body_timeout_seconds=0.1))
    async with serving(app) as url:
        status, rest = await answer_of(*await head_of(url, sent, length=99))
    assert status == 408
    assert b'"code":"request_timeout"' in rest
    assert b"connection: close" in rest
    assert counted(app, "videochat_requests_total", outcome="client_error") == 1


@pytest.mark.anyio
async def test_body_that_drips_is_408_too(pipeline: StubPipeline) -> None:
    app = build_app(pipeline, settings=http_settings(body_timeout_seconds=0.2))
    async with serving(app) as url:
        reader, writer = await head_of(url, b"{", length=1000)

        async def drip() -> None:
            while True:
                writer.write(b" ")
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        dripping.cancel()
        writer.close()


@pytest.mark.anyio
async def test_answer_may_take_longer_than_a_body() -> None:
    async def think() -> None:
        await asyncio.sleep(0.3)

    app = build_app(StubPipeline(before=think), settings=http_settings(body_timeout_seconds=0.1))
    async with serving(app) as url, httpx.AsyncClient() as client:
        response = await client.post(url + CHAT, json=QUESTION)
    assert response.status_code == 200


@pytest.mark.anyio
async def test_memory_for_bodies_is_shared_and_comes_back(pipeline: StubPipeline) -> None:
    app = build_app(pipeline, settings=http_settings(max_body_bytes=1000, max_bodies_bytes=1000))
    async with serving(app) as url, httpx.AsyncClient() as client:
        _, slow = await head_of(url, b"{", length=950)
        await until(lambda: counted(app, "videochat_requests_in_flight") == 1)
        # Not read: no more of it is sent than its head.
        status, rest = await answer_of(
            *await head_of(url, b"", headers=b"Expect: 100-continue\r\n", length=90)
        )
        assert status == 503
        assert b"retry-after: " in rest
        assert b'"code":"server_overloaded"' in rest
        assert (await client.get(url + "/health/live")).status_code == 200
        slow.close()
        await until(lambda: counted(app, "videochat_requests_in_flight") == 0)
        for _ in range(20):
            assert (await client.post(url + CHAT, json=QUESTION)).status_code == 200


@pytest.mark.anyio
async def test_body_without_a_length_takes_memory_as_it_comes(pipeline: StubPipeline) -> None:
    app = build_app(pipeline, settings=http_settings(max_body_bytes=5000, max_bodies_bytes=5000))

    async def chunks() -> AsyncIterator[bytes]:
        yield BIG[:2000]
        yield BIG[2000:]

    async with serving(app) as url, httpx.AsyncClient() as client:
        _, slow = await head_of(url, b"{", length=2000)
        await until(lambda: counted(app, "videochat_requests_in_flight") == 1)
        refused = await client.post(url + CHAT, content=chunks())
        slow.close()
        await until(lambda: counted(app, "videochat_requests_in_flight") == 0)
        served = await client.post(url + CHAT, content=chunks())
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "server_overloaded"
    assert served.status_code == 200
