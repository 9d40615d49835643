"""The memory of frames comes back when a request ends, however it ends, without a collection."""

import asyncio
import gc

import httpx
import pytest

from tests.clips.counter import ClipRecipe
from tests.unit.api.stubs import until
from tests.unit.scripted import CHAT, memory_files, question, service

CRASH = b"crash".ljust(32, b"\0")
HANG = b"hang".ljust(32, b"\0")

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def sources():
    return [ClipRecipe(num_frames=count).encode() for count in (20, 30)]


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def _ask(running, body, expected):
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.post(running.url + CHAT, json=body)
    assert response.status_code == expected, response.text
    await until(lambda: running.sample("videochat_requests_in_flight") == 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("deed", ["answer", "refuse"])
async def test_after_an_answer(host, sources, no_collection, stream, deed):
    async with service(host, clip_cache_bytes=0) as running:
        body = question(*sources, deed=deed, stream=stream)
        await _ask(running, body, 200 if deed == "answer" else 400)
        assert len(running.engine.seen) == 2
        assert all(running.engine.seen)
        await until(lambda: not memory_files())


@pytest.mark.parametrize("stream", [False, True])
async def test_after_another_video_of_the_request_has_failed(host, sources, no_collection, stream):
    async with service(host, clip_cache_bytes=0, max_concurrent_decodes=1) as running:
        await _ask(running, question(sources[0], CRASH, stream=stream), 400)
        await _ask(running, question(CRASH, sources[0], stream=stream), 400)
        await until(lambda: not memory_files())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("when", ["decoding", "generating"])
async def test_after_the_client_has_left(host, sources, no_collection, stream, when):
    async with service(host, clip_cache_bytes=0) as running, httpx.AsyncClient() as client:
        second = HANG if when == "decoding" else sources[1]
        body = question(sources[0], second, deed="hang", stream=stream)
        asking = asyncio.create_task(client.post(running.url + CHAT, json=body, timeout=60))
        if when == "decoding":
            await until(lambda: running.sample("videochat_videos_total", outcome="success") == 1)
            assert memory_files()
        else:
            await until(lambda: running.engine.num_running == 1)
        asking.cancel()
        await asyncio.wait({asking})
        await until(lambda: running.sample("videochat_requests_in_flight") == 0)
        await until(lambda: not memory_files())
        await until(lambda: running.sample("videochat_decoders_busy") == 0)


async def test_what_is_kept_is_kept_once(host, sources, no_collection):
    async with service(host) as running:
        for deed in ("answer", "refuse", "answer"):
            await _ask(running, question(*sources, deed=deed), 400 if deed == "refuse" else 200)
        await until(lambda: len(memory_files()) == len(sources))
