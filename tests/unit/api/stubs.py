"""An application as ``create_app`` builds it, over a scripted engine and pipeline."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from server.api.connection import bounded_protocol
from server.api.errors import exception_handlers
from server.api.layers import middleware
from server.api.routes import ROUTERS
from server.conversation import ChatRequest, PixelLimits
from server.engine.base import ModelFacts, VideoTokens
from server.evs.arithmetic import METHODS
from server.files.store import FileStore
from server.metrics import Metrics
from server.settings import HttpSettings, Settings
from server.timing import Stopwatch

RESERVED = frozenset({"<|im_end|>", "<|im_start|>", "<|video_pad|>"})


class Squares:
    """A geometry for which every frame is a token."""

    temporal_patch_size = 2

    limits_each_frame = True

    def frame_size(
        self, *, width: int, height: int, num_frames: int, limits: PixelLimits
    ) -> tuple[int, int]:
        return width, height

    def video_tokens(
        self, *, width: int, height: int, num_frames: int, pruning_rate: float, pruning_method: str
    ) -> VideoTokens:
        return VideoTokens(num_frames, max(1, int(num_frames * (1 - pruning_rate))))


def model_facts(*, pruning_methods: tuple[str, ...] = METHODS) -> ModelFacts:
    return ModelFacts(
        name="tiny",
        max_model_len=4096,
        max_video_tokens=4096,
        pruning_methods=pruning_methods,
        reserved_texts=RESERVED,
        geometry=Squares(),
    )


@dataclass
class StubEngine:
    """Knows its facts and its health; the pipeline does the talking."""

    facts: ModelFacts = field(default_factory=model_facts)
    sickness: Exception | None = None

    async def check_health(self) -> None:
        if self.sickness is not None:
            raise self.sickness

    def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self.facts.name, "object": "model"}]}


@dataclass
class StubPipeline:
    """Answers with words; notes what it was asked and how it ended."""

    words: Sequence[str] = ("a", " red", " circle")
    before: Callable[[], Awaitable[None]] | None = None
    """Awaited before the first chunk."""
    between: Callable[[], Awaitable[None]] | None = None
    """Awaited before every later chunk."""
    error: Exception | None = None
    """Raised before the first chunk."""
    late_error: Exception | None = None
    """Raised after the last word."""
    requests: list[ChatRequest] = field(default_factory=list)
    watches: list[Stopwatch] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, request: ChatRequest, watch: Stopwatch) -> dict[str, Any]:
        chunks = [chunk async for chunk in self.stream(request, watch)]
        text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "tiny",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},
            "metrics": {"videos": []},
        }

    async def count(self, request: ChatRequest) -> dict[str, Any]:
        self.requests.append(request)
        await self._pause(self.before)
        if self.error is not None:
            raise self.error
        return {"object": "response.input_tokens", "input_tokens": 3, "videos": []}

    async def stream(
        self, request: ChatRequest, watch: Stopwatch
    ) -> AsyncGenerator[dict[str, Any], None]:
        self.requests.append(request)
        self.watches.append(watch)
        self.started.set()
        try:
            await self._pause(self.before)
            if self.error is not None:
                raise self.error
            for index, word in enumerate(self.words):
                if index:
                    await self._pause(self.between)
                yield self._chunk(word, is_last=index == len(self.words) - 1)
            if self.late_error is not None:
                raise self.late_error
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.closed.set()

    async def _pause(self, pause: Callable[[], Awaitable[None]] | None) -> None:
        if pause is not None:
            await pause()

    def _chunk(self, word: str, *, is_last: bool) -> dict[str, Any]:
        finish = "stop" if is_last and self.late_error is None else None
        chunk: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "tiny",
            "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": finish}],
        }
        return {**chunk, "metrics": {"videos": []}} if finish else chunk


def build_app(
    pipeline: StubPipeline,
    *,
    settings: Settings | None = None,
    engine: StubEngine | None = None,
    files: FileStore | None = None,
    metrics: Metrics | None = None,
    is_full_for: Callable[[str], bool] = lambda client: False,
) -> FastAPI:
    settings = settings or Settings()
    metrics = metrics or Metrics()
    app = FastAPI(
        exception_handlers=exception_handlers(),
        redirect_slashes=False,
        middleware=middleware(settings, metrics, is_full_for=is_full_for),
    )
    app.state.settings = settings
    app.state.engine = engine or StubEngine()
    app.state.pipeline = pipeline
    app.state.files = files or FileStore(settings.files, metrics=metrics)
    app.state.metrics = metrics
    for router in ROUTERS:
        app.include_router(router)
    return app


def http_settings(**changes: Any) -> Settings:
    return Settings(http=HttpSettings(**changes))


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls the application without a network; bodies come whole."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """Serve ``app`` by uvicorn on loopback, in this event loop; yields its URL."""
    # With the protocol named, as uvicorn's own: else asyncio leaves Nagle's algorithm on.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    protocol = bounded_protocol(app.state.settings.http)
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110  # uvicorn offers no event
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def counted(app: FastAPI, name: str, **labels: str) -> float:
    """Returns the value of one of the application's metrics."""
    value = app.state.metrics.registry.get_sample_value(name, labels)
    return 0.0 if value is None else value


async def until(condition: Callable[[], bool]) -> None:
    """Returns when ``condition`` holds; fails after half a minute, as machines may be busy."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # a metric has no event
            await asyncio.sleep(0.01)


QUESTION = {"messages": [{"role": "user", "content": "What is it?"}]}
