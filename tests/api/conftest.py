"""The whole application on a scripted engine: everything real but EngineCore."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

import httpx
import pytest
import uvicorn
from prometheus_client import CollectorRegistry

from server.api.connection import bounded_protocol
from server.app import create_app
from server.demo.clip import CLIP_PATH
from server.demo.model import ensure_model
from server.engine.environment import prepare_environment
from server.settings import Settings

ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 8192,
    "kv_cache_memory_bytes": 1 << 28,
    "limit_mm_per_prompt": {"video": 4, "image": 0},
}


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self):
        yield


@dataclass
class Service:
    """A running application and its parts."""

    base_url: str
    engine_client: object
    registry: CollectorRegistry
    failures: list[Exception]
    pipeline: object

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.base_url, timeout=30)

    def sample(self, name, **labels):
        return self.registry.get_sample_value(name, labels)

    async def settle(self, condition, seconds=20):
        """Wait until a condition holds."""
        for _ in range(int(seconds / 0.02)):
            if condition():
                return
            await asyncio.sleep(0.02)
        pytest.fail("the condition did not come true")


Serve = Callable[..., AbstractAsyncContextManager[Service]]


@pytest.fixture
def serve() -> Serve:
    """Returns an async context manager that serves ``Script(**script)``."""
    prepare_environment(log_level="error")
    from server.engine.fake import Script, ScriptedClient
    from server.engine.vllm_engine import VllmEngine
    from server.evs.plugin import register

    register()

    @asynccontextmanager
    async def service(
        *, settings=None, model=None, engine_arguments=None, **script
    ) -> AsyncIterator[Service]:
        arguments = {**ENGINE, **(engine_arguments or {})}
        chosen = Settings(engine=arguments, **(settings or {}))
        clients = []

        def connect(config):
            clients.append(ScriptedClient(config, Script(**script)))
            return clients[0]

        engine = VllmEngine(chosen, model=str(model or ensure_model()), client_factory=connect)
        registry, failures = CollectorRegistry(), []
        app = create_app(chosen, engine, registry=registry, stop_process=failures.append)
        server = _Server(
            uvicorn.Config(
                app,
                port=0,
                http=bounded_protocol(chosen.http),
                log_config=None,
                timeout_graceful_shutdown=2,
            )
        )
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn sets a flag, no event
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        base_url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base_url) as http:
            while (await http.get("/health/ready")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        try:
            yield Service(base_url, clients[0], registry, failures, app.state.pipeline)
        finally:
            server.should_exit = True
            await serving

    return service


@pytest.fixture(scope="session")
def clip_url() -> str:
    return "data:video/mp4;base64," + base64.b64encode(CLIP_PATH.read_bytes()).decode()


@pytest.fixture
def body(clip_url) -> dict:
    """A chat request about the bundled clip."""
    return {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "video_url", "video_url": {"url": clip_url}},
                    {"type": "text", "text": "what moves"},
                ],
            }
        ],
        "video_pruning_rate": 0.5,
    }
