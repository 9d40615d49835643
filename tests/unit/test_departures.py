"""Clients that leave in mid-request, over real HTTP: nothing goes on without them."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from tests.unit.api.stubs import until
from tests.unit.processes import children_of
from tests.unit.scripted import CHAT, question, service

PATIENT, COMMENTED = {}, {"keep_alive_comment_seconds": 0.05}
"""Settings with which a stream has no headers yet when its client leaves, and with which it has."""
WAYS = {
    "whole": (False, PATIENT),
    "stream before its headers": (True, PATIENT),
    "stream after its headers": (True, COMMENTED),
}
GAUGES = ("requests_in_flight", "decodes_in_flight", "decode_queue_length", "decoders_busy")

pytestmark = pytest.mark.anyio


@dataclass
class Visitor:
    """A client that asks, and leaves when it is told to."""

    url: str
    asking: asyncio.Task = field(init=False)
    has_headers: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self, body):
        self.asking = asyncio.create_task(self._ask(body))

    async def _ask(self, body):
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("POST", self.url + CHAT, json=body) as response,
        ):
            async for line in response.aiter_lines():
                if line == ": keep-alive":
                    self.has_headers.set()

    async def leave(self):
        assert not self.asking.done()
        self.asking.cancel()
        await asyncio.wait({self.asking})


@asynccontextmanager
async def silent_origin():
    """Yields (URL, who is connected): an origin of videos that reads and never answers."""
    connected = set()

    async def hold(reader, writer):
        connected.add(writer)
        while await reader.read(65536):
            pass
        connected.discard(writer)
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a.mp4", connected
    finally:
        server.close()


async def nothing_is_left(running, host):
    for gauge in GAUGES:
        await until(lambda gauge=gauge: running.sample(f"videochat_{gauge}") == 0)
    await until(lambda: not children_of(host))
    assert running.engine.num_running == 0
    assert running.sample("videochat_requests_total", outcome="cancelled") == 1
    assert running.sample("videochat_videos_total", outcome="cancelled") == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_client_that_leaves_while_its_video_is_fetched_ends_the_download(host, way):
    stream, http = WAYS[way]
    async with (
        silent_origin() as (video_url, connected),
        service(host, http=http, allow_private_addresses=True) as running,
    ):
        visitor = Visitor(running.url)
        visitor.ask(question(video_url, stream=stream))
        await until(lambda: bool(connected))
        if http:
            await until(visitor.has_headers.is_set)
        await visitor.leave()
        await until(lambda: not connected)
        await nothing_is_left(running, host)


@pytest.mark.parametrize("deed", [b"hang", b"hang with a plan"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_client_that_leaves_while_its_video_is_decoded_ends_the_decoder(host, way, deed):
    stream, http = WAYS[way]
    async with service(host, http=http) as running:
        visitor = Visitor(running.url)
        visitor.ask(question(deed.ljust(32, b"\0"), stream=stream))
        await until(lambda: len(children_of(host)) == 1)
        assert running.sample("videochat_decoders_busy") == 1
        if http:
            await until(visitor.has_headers.is_set)
        await visitor.leave()
        await nothing_is_left(running, host)


async def test_who_stays_keeps_the_decoder_that_another_shared(host):
    async with service(host) as running:
        visitors = [Visitor(running.url), Visitor(running.url)]
        shared = {"cache": "facts", "outcome": "shared"}
        for visitor in visitors:
            visitor.ask(question(b"hang".ljust(32, b"\0")))
        await until(lambda: running.sample("videochat_cache_lookups_total", **shared) == 1)
        await until(lambda: len(children_of(host)) == 1)
        await visitors[0].leave()
        await until(lambda: running.sample("videochat_requests_in_flight") == 1)
        assert len(children_of(host)) == 1
        await visitors[1].leave()
        await until(lambda: not children_of(host))
        assert running.sample("videochat_videos_total", outcome="cancelled") == 2
