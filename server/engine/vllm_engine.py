"""The embedded engine: vLLM's AsyncLLM and its own OpenAI serving classes, behind one seam."""

import asyncio
import logging
import math
import multiprocessing
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.engine.async_llm import AsyncLLM

from server.engine import connector
from server.engine.arguments import create_vllm_config
from server.engine.base import EngineTrace, JsonObject, ModelFacts, PreparedVideo
from server.engine.geometry import geometry_of
from server.engine.serving import Call, WatchedRequest, WatchedServingChat, create_serving
from server.engine.translation import parsed_event, raised_error, reported_error
from server.errors import ConfigurationError, EngineUnavailable, InternalFault, VideoChatError
from server.evs.processing import METHOD_KWARG, RATE_KWARG, position_table_size
from server.settings import Settings

logger = logging.getLogger(__name__)

ClientFactory = Callable[[VllmConfig], Any]
"""Makes an EngineClient; blocks until it can answer."""

STOP_TIMEOUT_SECONDS = 20.0
"""AsyncLLM kills EngineCore at once when it is given no time."""
HEALTH_TIMEOUT_SECONDS = 10.0
_LOADING = "The model is still loading. Try again when GET /health/ready answers 200."


def pruning_kwargs(videos: Sequence[PreparedVideo]) -> JsonObject:
    """Returns the ``mm_processor_kwargs`` of a request: how each of its videos is pruned."""
    return {
        RATE_KWARG: [video.pruning_rate for video in videos],
        METHOD_KWARG: [video.pruning_method for video in videos],
    }


def max_video_seconds(model_config: Any) -> float:
    """Returns how much time the videos of one prompt may span together.

    Qwen2.5-VL's positions count time, whatever the number of tokens, and one beyond vLLM's table of
    them ends the engine. What is no time takes fewer positions than twice the prompt's tokens.
    """
    vision_config = getattr(model_config.hf_config, "vision_config", None)
    per_second = getattr(vision_config, "tokens_per_second", None)
    if not per_second:
        return math.inf
    left = position_table_size(model_config) - 2 * model_config.max_model_len
    return max(0.0, float(left / per_second))


class VllmEngine:
    """A ChatEngine whose EngineCore runs in its own process.

    Args:
        settings: the server's settings.
        model: directory or name of the model, as vLLM takes it.
        client_factory: makes the EngineClient; AsyncLLM by default.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        model: str,
        client_factory: ClientFactory = AsyncLLM.from_vllm_config,
    ) -> None:
        self._settings = settings
        self._model = model
        self._client_factory = client_factory
        self._client: Any = None
        self._chat: WatchedServingChat | None = None
        self._models: JsonObject = {}
        self._facts: ModelFacts | None = None
        self._connecting: asyncio.Future[Any] | None = None
        self._stopping = False

    @property
    def has_died(self) -> bool:
        """Whether EngineCore ended by itself; it does not come back."""
        return self._client is not None and bool(self._client.errored)

    @property
    def facts(self) -> ModelFacts:
        """The served model."""
        if self._facts is None:
            raise EngineUnavailable(_LOADING)
        return self._facts

    async def start(self) -> None:
        """Load the model in a thread, so that health checks are answered meanwhile."""
        config, pruning_methods = await asyncio.to_thread(
            create_vllm_config, self._settings, self._model
        )
        self._refuse_when_stopping()
        try:
            self._connecting = asyncio.ensure_future(
                asyncio.to_thread(self._client_factory, config)
            )
            self._client = await self._connecting
        except (RuntimeError, ValueError, OSError) as error:
            self._refuse_when_stopping()
            text = " ".join(str(error).split())
            raise ConfigurationError(f"the engine did not start: {text}") from error
        if self._stopping:
            await self.stop()
        self._refuse_when_stopping()
        self._chat, models = create_serving(
            self._client,
            model_name=self._settings.public_model_name,
            video_token_id=getattr(self._hf_processor(), "video_token_id", None),
        )
        self._models = (await models.show_available_models()).model_dump(mode="json")
        self._facts = self._gather_facts(pruning_methods)

    def _refuse_when_stopping(self) -> None:
        if self._stopping:
            raise EngineUnavailable("The server is stopping.")

    def _hf_processor(self) -> Any:
        """Returns the model's processor as Hugging Face or vLLM has it, without vLLM's wrapping."""
        return self._client.renderer.get_mm_processor().info.get_hf_processor()

    def _gather_facts(self, pruning_methods: tuple[str, ...]) -> ModelFacts:
        processor = self._client.renderer.get_mm_processor()
        if pruning_methods and not getattr(processor, "prunes_per_video", False):
            raise ConfigurationError(
                "the EVS plugin is not in force in vLLM; install this package (make setup) and let "
                "VLLM_PLUGINS, where it is set, include per_request_evs"
            )
        tokenizer = self._client.renderer.tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        reserved = {str(token) for token in added if token.special}
        return ModelFacts(
            name=self._settings.public_model_name,
            max_model_len=self._client.model_config.max_model_len,
            max_video_tokens=self._client.input_processor.mm_encoder_cache_size,
            pruning_methods=pruning_methods,
            reserved_texts=frozenset(reserved | set(tokenizer.all_special_tokens)),
            geometry=geometry_of(self._hf_processor()),
            max_video_seconds=max_video_seconds(self._client.model_config),
        )

    async def stop(self) -> None:
        """Stop EngineCore and wait for it, also while it is loading."""
        self._stopping = True
        while self._connecting is not None and not self._connecting.done():
            # Its thread waits for an EngineCore that may not exist yet; it returns when that ends.
            for child in multiprocessing.active_children():
                if child.name.startswith("EngineCore"):
                    child.terminate()
            await asyncio.wait({self._connecting}, timeout=0.1)
        client, self._client, self._chat, self._facts = self._client, None, None, None
        if client is not None:
            # Left running, it takes EngineCore's end for a crash and logs it as one.
            if (output_handler := getattr(client, "output_handler", None)) is not None:
                output_handler.cancel()
            await asyncio.to_thread(client.shutdown, timeout=STOP_TIMEOUT_SECONDS)

    async def check_health(self) -> None:
        """Ask EngineCore for a sign of life, not only whether its process exists."""
        if self._client is None or self._facts is None:
            raise EngineUnavailable(_LOADING)
        try:
            await self._client.check_health()
            async with asyncio.timeout(HEALTH_TIMEOUT_SECONDS):
                await self._sign_of_life()
        except TimeoutError as error:
            raise EngineUnavailable("The engine does not respond.") from error
        except Exception as error:
            logger.debug("health check failed", exc_info=True)
            raise EngineUnavailable("The engine has stopped.") from error

    async def _sign_of_life(self) -> None:
        """Return when EngineCore has answered; raise as soon as it is known to be dead."""
        client = self._client
        answer = asyncio.ensure_future(client.is_paused())
        try:
            while not (await asyncio.wait({answer}, timeout=0.25))[0]:
                if client.errored:
                    raise client.dead_error
            await answer
        finally:
            answer.cancel()

    def models(self) -> JsonObject:
        """Returns the body of ``GET /v1/models``."""
        if self._facts is None:
            raise EngineUnavailable(_LOADING)
        return self._models

    async def prompt_tokens(
        self, body: Mapping[str, Any], videos: Sequence[PreparedVideo], trace: EngineTrace
    ) -> int:
        """Returns how many tokens the prompt of a request has, without running it."""
        body = {**body, "stream": False, "stream_options": None}
        return int(await self._create(body, videos, Call(trace), counts_only=True))

    async def complete(
        self, body: Mapping[str, Any], videos: Sequence[PreparedVideo], trace: EngineTrace
    ) -> JsonObject:
        """Returns a whole ``chat.completion`` object."""
        call = Call(trace)
        try:
            response = await self._create({**body, "stream": False}, videos, call)
            answer: JsonObject = response.model_dump(mode="json")
            return answer
        except InternalFault as error:
            self._raise_if_dead(error)
            raise
        finally:
            await call.close()

    async def stream(
        self, body: Mapping[str, Any], videos: Sequence[PreparedVideo], trace: EngineTrace
    ) -> AsyncGenerator[JsonObject, None]:
        """Yields ``chat.completion.chunk`` objects."""
        call = Call(trace)
        try:
            events = await self._create({**body, "stream": True}, videos, call)
            async for event in events:
                chunk = parsed_event(event)
                if chunk is None:
                    return
                yield chunk
        except InternalFault as error:
            self._raise_if_dead(error)
            raise
        finally:
            await call.close()

    def _raise_if_dead(self, error: InternalFault) -> None:
        """Raise what to tell the client: vLLM reports a dead engine as any other failure."""
        if self._client is None or self._client.errored:
            raise EngineUnavailable("The engine has stopped.") from error

    async def _create(
        self,
        body: dict[str, Any],
        videos: Sequence[PreparedVideo],
        call: Call,
        *,
        counts_only: bool = False,
    ) -> Any:
        """Returns vLLM's response, event stream or count; every failure as one of our errors."""
        if self._chat is None:
            raise EngineUnavailable(_LOADING)
        if videos and self.facts.supports_pruning:
            body["mm_processor_kwargs"] = pruning_kwargs(videos)
        try:
            request = WatchedRequest.of(body, call)
            with connector.offering([video.clip for video in videos]):
                if counts_only:
                    response = await self._chat.count_prompt(request)
                else:
                    response = await self._chat.create_chat_completion(request)
        except VideoChatError:
            raise
        except Exception as error:
            logger.debug("vLLM refused a request", exc_info=True)
            raise raised_error(error) from error
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # vLLM makes an error response of a cancellation; it is not its to swallow.
            raise asyncio.CancelledError
        if hasattr(response, "error"):
            raise reported_error(response.error.model_dump())
        return response
