"""The application, built from its arguments, and the process around it."""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry

from server.api.connection import bounded_protocol
from server.api.errors import exception_handlers
from server.api.layers import middleware
from server.api.routes import ROUTERS
from server.conversation import PixelLimits
from server.engine.base import ChatEngine, VideoTokens
from server.errors import ConfigurationError, EngineUnavailable
from server.files.store import FileStore
from server.media.loader import VideoLoader
from server.metrics import Metrics
from server.pipeline import ChatPipeline
from server.settings import EMBEDDED_MODEL, Settings

logger = logging.getLogger(__name__)

EXIT_FAILURE = 1
WATCH_SECONDS = 1.0
FAREWELL_SECONDS = 3
"""Time to send errors to those whose answers took longer than the grace period."""

StopProcess = Callable[[Exception], None]
"""Asks the process to stop, because of an error that it can not go on with."""


def create_app(
    settings: Settings,
    engine: ChatEngine,
    *,
    registry: CollectorRegistry = REGISTRY,
    stop_process: StopProcess | None = None,
) -> FastAPI:
    """Returns the application. Its lifespan starts and stops the engine and the decoders.

    Args:
        settings: everything that can be chosen.
        engine: answers the requests; started in the background while health checks are answered.
        registry: where the server's own metrics go; vLLM's are in the default one.
        stop_process: called when the engine can not be started or has died.
    """
    metrics = Metrics(registry)
    files = FileStore(settings.files, metrics=metrics)
    loader = VideoLoader(settings.video, _ServedGeometry(engine), uploads=files, metrics=metrics)
    supervisor = _Supervisor(engine, stop_process or (lambda error: None))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await loader.start()
        await files.start()
        supervising = asyncio.create_task(supervisor.run())
        try:
            yield
        finally:
            app.state.draining = True
            await engine.stop()
            supervising.cancel()
            await asyncio.gather(supervising, return_exceptions=True)
            await loader.stop()
            await files.stop()

    app = FastAPI(
        title="Video chat server",
        docs_url=None,  # the pages would load scripts from elsewhere; /openapi.json stays
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=middleware(settings, metrics, is_full_for=loader.is_full_for),
        exception_handlers=exception_handlers(),
    )
    for router in ROUTERS:
        app.include_router(router)
    app.state.settings = settings
    app.state.engine = engine
    app.state.files = files
    app.state.metrics = metrics
    app.state.pipeline = ChatPipeline(engine=engine, loader=loader, metrics=metrics)
    app.state.draining = False
    return app


def run(settings: Settings) -> int:
    """Serve until SIGTERM or Ctrl-C. Returns the process's exit code.

    Raises:
        ConfigurationError: the engine can not be started with these settings.
    """
    from server.engine.environment import prepare_environment

    prepare_environment(
        log_level=settings.log.level, compiles=not settings.engine.get("enforce_eager", False)
    )
    logger.info("loading vLLM")
    # Only now, because vLLM reads its environment while it is imported, and takes seconds to.
    from server.engine.vllm_engine import VllmEngine

    server = _Server(settings)
    engine = VllmEngine(settings, model=_model_path(settings.model))
    server.app = server.config.app = create_app(settings, engine, stop_process=server.fail)
    server.run()
    if isinstance(server.failure, ConfigurationError):
        raise server.failure
    return 0 if server.failure is None else EXIT_FAILURE


def _model_path(model: str) -> str:
    if model != EMBEDDED_MODEL:
        return model
    from server.demo.model import default_model_dir, ensure_model

    logger.info("preparing the embedded model")
    try:
        return str(ensure_model())
    except OSError as error:
        raise ConfigurationError(
            f"the embedded model can not be kept in {default_model_dir().parent}: "
            f"{error.strerror}; set HOME to a directory that can be written, or give --model"
        ) from error


class _Server(uvicorn.Server):
    """uvicorn, ending with an exit code of ours instead of by the signal that stopped it."""

    def __init__(self, settings: Settings) -> None:
        self.app: FastAPI | None = None
        self.failure: Exception | None = None
        """Why the server stopped by itself; None when it was asked to."""
        super().__init__(
            uvicorn.Config(
                app=None,  # type: ignore[arg-type]  # set before run: the app needs ``stop``
                host=settings.http.host,
                port=settings.http.port,
                http=bounded_protocol(settings.http),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=round(settings.http.shutdown_grace_seconds)
                + FAREWELL_SECONDS,
            )
        )
        self._grace_seconds = settings.http.shutdown_grace_seconds

    def fail(self, error: Exception) -> None:
        """Stop as on SIGTERM, because of ``error``."""
        self.failure = error
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take no new work from here on, also not on connections that are kept alive."""
        if self.app is not None:
            self.app.state.draining = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let answers go on for the grace period, then end them with an error of ours."""
        assert self.app is not None
        expire = self.app.state.pipeline.expire
        expiry = asyncio.get_running_loop().call_later(self._grace_seconds, expire)
        try:
            await super().shutdown(sockets)
        finally:
            expiry.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT; upstream raises them again in the end, which is no exit 0."""
        signals = (signal.SIGTERM, signal.SIGINT)
        previous = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class _ServedGeometry:
    """The geometry of the model that the engine serves, once it does."""

    def __init__(self, engine: ChatEngine) -> None:
        self._engine = engine

    @property
    def temporal_patch_size(self) -> int:
        """Frames that become one step in time."""
        return self._engine.facts.geometry.temporal_patch_size

    def frame_size(
        self, *, width: int, height: int, num_frames: int, limits: PixelLimits
    ) -> tuple[int, int]:
        """Returns (width, height) to which the model resizes a frame."""
        geometry = self._engine.facts.geometry
        return geometry.frame_size(width=width, height=height, num_frames=num_frames, limits=limits)

    def video_tokens(
        self, *, width: int, height: int, num_frames: int, pruning_rate: float, pruning_method: str
    ) -> VideoTokens:
        """Returns the token counts of a clip whose frames have the model's size."""
        return self._engine.facts.geometry.video_tokens(
            width=width,
            height=height,
            num_frames=num_frames,
            pruning_rate=pruning_rate,
            pruning_method=pruning_method,
        )


class _Supervisor:
    """Starts the engine beside the running server, and watches it until the server stops."""

    def __init__(self, engine: ChatEngine, stop_process: StopProcess) -> None:
        self._engine = engine
        self._stop_process = stop_process

    async def run(self) -> None:
        """Load the engine, then wait until it dies; either failure stops the process."""
        try:
            await self._engine.start()
        except EngineUnavailable:
            return  # the server is stopping already
        except ConfigurationError as error:
            self._stop_process(error)
            return
        except Exception as error:
            logger.exception("the engine did not start")
            self._stop_process(error)
            return
        logger.info("ready: %s", self._engine.facts.name)
        while not self._engine.has_died:  # noqa: ASYNC110 - vLLM sets a flag, no event
            await asyncio.sleep(WATCH_SECONDS)
        logger.error("the engine has died; stopping")
        self._stop_process(EngineUnavailable("The engine has stopped."))
