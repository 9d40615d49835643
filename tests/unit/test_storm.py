"""Two hundred requests at once, good, bad and abandoned; afterwards all is as it was before."""

import asyncio
import gc
import os
import random
import tempfile
import threading
from collections import Counter

import httpx
import pytest

from tests.clips.counter import ClipRecipe
from tests.unit.api.stubs import until
from tests.unit.processes import gone
from tests.unit.scripted import CHAT, memory_file_bytes, memory_files, question, service

NUM_REQUESTS = 200
NUM_AT_ONCE = 60

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def good():
    return [ClipRecipe(num_frames=8 + count).encode() for count in range(8)]


def _bad(good):
    deeds = (b"crash", b"garbage", b"end silently", b"half a message", b"seal", b"wrong facts")
    return [
        *(deed.ljust(32, b"\0") for deed in deeds),
        b"not a video",
        good[0][: len(good[0]) // 2],
        "data:video/mp4;base64,A",
        "ftp://example.com/a.mp4",
        "http://127.0.0.1/a.mp4",
    ]


class Storm:
    """Sends requests and notes their status."""

    def __init__(self, url, good):
        self._url = url + CHAT
        self._good = good
        self._bad = _bad(good)
        self._random = random.Random(20261130)
        self.statuses = {"good": [], "bad": [], "left": []}

    async def send(self, client, kind):
        dice = self._random
        stream, num_frames = dice.random() < 0.5, dice.choice((2, 4, 6))
        good = dice.choice(self._good)
        if kind == "good":
            sources, deed = dice.choices(self._good, k=dice.choice((1, 1, 2))), "answer"
        elif kind == "bad":
            sources, deed = [good, dice.choice(self._bad)], "answer"
        else:
            sources, deed = [good, dice.choice((good, b"hang".ljust(32, b"\0")))], "hang"
        body = question(*sources, deed=deed, stream=stream, num_frames=num_frames)
        patience = dice.choice((0.0, 0.05, 0.3, 1.0)) if kind == "left" else 120
        try:
            async with asyncio.timeout(patience):
                response = await client.post(self._url, json=body)
        except TimeoutError:
            self.statuses[kind].append(None)
        else:
            self.statuses[kind].append(response.status_code)

    async def rage(self):
        kinds = self._random.choices(("good", "bad", "left"), k=NUM_REQUESTS)
        gate = asyncio.Semaphore(NUM_AT_ONCE)

        async def one(kind):
            async with gate:
                await self.send(client, kind)

        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=None, limits=limits) as client:
            await asyncio.gather(*map(one, kinds))


@pytest.mark.parametrize("clip_cache_bytes", [0, 2_000_000])
async def test_after_a_storm_all_is_as_it_was_before(
    host, good, clip_cache_bytes, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gc.collect()  # of other tests
    others_bytes, others_files = sum(memory_file_bytes()), len(memory_files())
    others_files -= len(memory_file_bytes())
    async with service(
        host,
        clip_cache_bytes=clip_cache_bytes,
        max_concurrent_decodes=2,
        max_queued_decodes=20,
    ) as running:
        await _ask(running, question(good[0]), 200)
        descriptors, threads = _descriptors(), threading.active_count()

        storm = Storm(running.url, good)
        await storm.rage()

        assert set(storm.statuses["good"]) <= {200, 503}
        assert storm.statuses["good"].count(200) > 0
        assert set(storm.statuses["bad"]) <= {400, 503}
        assert storm.statuses["bad"].count(400) > 0
        assert set(storm.statuses["left"]) <= {None, 503}

        await until(lambda: running.sample("videochat_requests_in_flight") == 0)
        await until(lambda: running.sample("videochat_decoders_busy") == 0)
        assert running.sample("videochat_decode_queue_length") == 0
        assert running.engine.num_running == 0
        await gone(host)
        # What is left of frames is what the cache says that it keeps.
        kept_bytes = running.sample("videochat_cache_bytes", cache="clips")
        assert (kept_bytes > 0) == (clip_cache_bytes > 0)
        await until(lambda: sum(memory_file_bytes()) == others_bytes + kept_bytes)
        await until(lambda: len(memory_files()) == others_files + len(memory_file_bytes()))
        await until(lambda: _without_frames(_descriptors() - descriptors) == Counter())
        assert threading.active_count() <= threads + 40  # of asyncio.to_thread, which keeps them
        assert list(tmp_path.iterdir()) == []
        await _ask(running, question(good[1]), 200)


async def _ask(running, body, expected):
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.post(running.url + CHAT, json=body)
    assert response.status_code == expected, response.text


def _descriptors():
    """Returns how many descriptors of each kind are open; sockets differ in their numbers only."""
    kinds = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            kinds.append(os.readlink(f"/proc/self/fd/{fd}").partition(":[")[0])
        except FileNotFoundError:  # the listing itself
            continue
    return Counter(kinds)


def _without_frames(kinds):
    return Counter({kind: count for kind, count in kinds.items() if "memfd:frames" not in kind})
