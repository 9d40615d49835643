"""The application over real sockets, decoders and caches, and an engine that follows a script."""

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from server.errors import InvalidRequest
from server.media.loader import VideoLoader
from server.media.workers import DecoderPool
from server.metrics import Metrics
from server.pipeline import ChatPipeline
from server.settings import Settings
from tests.unit.api.stubs import StubEngine, build_app, serving

CHAT = "/v1/chat/completions"


@dataclass
class ScriptedEngine(StubEngine):
    """Does what the last text of a request says: ``answer``, ``refuse`` or ``hang``."""

    num_running: int = 0
    seen: list[int] = field(default_factory=list)
    """Sums of the pixels of each video that came."""

    async def complete(self, body, videos, trace):
        self.seen += [int(video.clip.frames.sum()) for video in videos]
        trace.queued_at = trace.scheduled_at = trace.first_token_at = None
        trace.video_tokens_after = tuple(video.clip.num_frames for video in videos)
        deed = body["messages"][-1]["content"][-1]["text"]
        self.num_running += 1
        try:
            if deed == "refuse":
                raise InvalidRequest("no")
            if deed == "hang":
                await asyncio.sleep(3600)
        finally:
            self.num_running -= 1
        return {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}

    async def stream(self, body, videos, trace):
        await self.complete(body, videos, trace)
        for reason in (None, "stop"):
            yield {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": reason}]}


@dataclass
class Service:
    """A running application."""

    url: str
    engine: ScriptedEngine
    metrics: Metrics

    def sample(self, name, **labels):
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def service(host, *, engine=None, **changes) -> AsyncIterator[Service]:
    """Serve the application with decoders from ``host``; ``changes`` are settings of videos."""
    http = changes.pop("http", {})
    settings = Settings(video=changes, http=http)
    metrics, engine = Metrics(), engine or ScriptedEngine()
    pool = DecoderPool(settings.video, host=host, metrics=metrics)
    loader = VideoLoader(settings.video, engine.facts.geometry, pool=pool, metrics=metrics)
    pipeline = ChatPipeline(engine=engine, loader=loader, metrics=metrics)
    app = build_app(
        pipeline,
        settings=settings,
        engine=engine,
        metrics=metrics,
        is_full_for=loader.is_full_for,
    )
    async with serving(app) as url:
        yield Service(url, engine, metrics)


def question(*sources, deed="answer", stream=False, num_frames=4):
    """Returns the body of a request about videos, given as bytes or URLs."""
    parts = [
        {"type": "video_url", "video_url": source if isinstance(source, str) else data_url(source)}
        for source in sources
    ]
    content = [*parts, {"type": "text", "text": deed}]
    return {
        "messages": [{"role": "user", "content": content}],
        "stream": stream,
        "num_frames": num_frames,
    }


def data_url(source: bytes) -> str:
    return "data:video/mp4;base64," + base64.b64encode(source).decode()


def memory_files() -> list[str]:
    """Returns a line for each descriptor and mapping of this process that leads to memory files."""
    with open("/proc/self/maps") as maps:
        mappings = [line for line in maps if "memfd:" in line]
    return [*_memory_descriptors().values(), *mappings]


def memory_file_bytes() -> list[int]:
    """Returns the size of the memory file behind each descriptor that leads to one."""
    return [os.stat(f"/proc/self/fd/{fd}").st_size for fd in _memory_descriptors()]


def _memory_descriptors() -> dict[str, str]:
    links = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing itself
            links[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return {fd: link for fd, link in links.items() if "memfd:" in link}
