"""What clients see when more videos come than can be decoded."""

import asyncio

import httpx
import pytest

from tests.clips.counter import ClipRecipe
from tests.unit.api.stubs import until
from tests.unit.scripted import CHAT, question, service

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def clip():
    return ClipRecipe(num_frames=8).encode()


def hanging(number):
    """Returns a source of its own that keeps a decoder until somebody kills it."""
    return b"hang".ljust(32, b"\0") + bytes([number])


MANY, FEW = "many-" * 8, "few-" * 8
"""API keys."""


def keyed(key):
    return {"Authorization": f"Bearer {key}"}


async def test_a_full_line_is_a_503_before_the_body_and_another_client_is_let_in(host, clip):
    limits = {"max_concurrent_decodes": 1, "max_queued_decodes": 2}
    limits["http"] = {"api_keys": [MANY, FEW]}
    async with service(host, **limits) as running, httpx.AsyncClient(timeout=60) as client:

        def ask(source, key):
            body = question(source)
            return asyncio.create_task(
                client.post(running.url + CHAT, json=body, headers=keyed(key))
            )

        many = [ask(hanging(number), MANY) for number in range(3)]
        await until(lambda: running.sample("videochat_decode_queue_length") == 2)

        address, port = running.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(address, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
            b"Authorization: Bearer %b\r\nContent-Length: 1000000\r\n\r\n" % MANY.encode()
        )
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: " in await reader.readuntil(b"\r\n\r\n")
        writer.close()

        few = ask(clip, FEW)
        (displaced,), _ = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
        assert displaced.result().status_code == 503
        assert displaced.result().json()["error"]["code"] == "server_overloaded"
        assert int(displaced.result().headers["retry-after"]) > 0

        for task in many:
            task.cancel()
        assert (await few).status_code == 200


async def test_a_client_that_leaves_the_line_is_soon_gone(host):
    async with service(host, max_concurrent_decodes=1) as running, httpx.AsyncClient() as client:
        tasks = []
        for number in range(2):
            body = question(hanging(number))
            tasks.append(asyncio.create_task(client.post(running.url + CHAT, json=body)))
            await until(lambda: running.sample("videochat_decoders_busy") == 1)
        await until(lambda: running.sample("videochat_decode_queue_length") == 1)
        for task in tasks:
            task.cancel()
        for gauge in ("requests_in_flight", "decode_queue_length", "decoders_busy"):
            await until(lambda gauge=gauge: running.sample(f"videochat_{gauge}") == 0)


async def test_a_wait_that_is_too_long_is_a_503(host, clip):
    limits = {"max_concurrent_decodes": 1, "queue_timeout_seconds": 0.2}
    async with service(host, **limits) as running, httpx.AsyncClient(timeout=60) as client:
        first = asyncio.create_task(client.post(running.url + CHAT, json=question(hanging(0))))
        await until(lambda: running.sample("videochat_decoders_busy") == 1)
        late = await client.post(running.url + CHAT, json=question(clip))
        first.cancel()
    assert late.status_code == 503
    assert late.json()["error"]["code"] == "server_overloaded"


async def test_the_second_question_about_a_video_does_not_decode(host, clip):
    async with service(host) as running, httpx.AsyncClient(timeout=60) as client:
        for deed in ("answer", "answer", "refuse"):
            await client.post(running.url + CHAT, json=question(clip, deed=deed))
        assert running.sample("videochat_decode_queue_seconds_count") == 1
        hits = running.sample("videochat_cache_lookups_total", cache="clips", outcome="hit")
        assert hits == 2
        assert len(set(running.engine.seen)) == 1
