"""vLLM's chat serving class, watched: what it queued, when, and with how many video tokens."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pydantic import PrivateAttr
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.outputs import RequestOutput
from vllm.renderers.online_renderer import OnlineRenderer

from server.engine.base import EngineTrace


@dataclass(slots=True)
class Call:
    """One request on its way through vLLM's serving class."""

    trace: EngineTrace
    outputs: AsyncGenerator[RequestOutput, None] | None = None
    """The engine's outputs; closing them aborts the request in the engine."""

    async def close(self) -> None:
        """Abort what still runs; does nothing for a finished request."""
        if self.outputs is not None:
            await self.outputs.aclose()


class WatchedRequest(ChatCompletionRequest):
    """A chat request that carries its ``Call`` to where the engine's outputs come by."""

    _call: Call = PrivateAttr()

    @classmethod
    def of(cls, body: dict[str, Any], call: Call) -> "WatchedRequest":
        """Returns the validated request for ``body``.

        Raises:
            pydantic.ValidationError, vllm.exceptions.VLLMValidationError: the body is wrong.
        """
        request = cls.model_validate(body)
        request._call = call
        return request

    @property
    def call(self) -> Call:
        """The call that this request belongs to."""
        return self._call


class WatchedServingChat(OpenAIServingChat):
    """OpenAIServingChat whose engine outputs pass by the request's ``Call``."""

    video_token_id: int | None = None
    """What a video token is in a prompt; None if all that stands for a video is video tokens."""

    async def render_chat_request(self, request: Any) -> Any:
        """Returns what upstream returns, after noting the video placeholders."""
        rendered = await super().render_chat_request(request)
        if not isinstance(rendered, ErrorResponse):
            (engine_input,) = rendered[1]
            request.call.trace.video_tokens_after = video_token_counts(
                engine_input, self.video_token_id
            )
        return rendered

    async def count_prompt(self, request: Any) -> Any:
        """Returns the number of tokens of a request's prompt, or upstream's error response.

        Notes the video tokens as rendering for an answer does, but leaves alone the cache of media
        that EngineCore mirrors: it will never be sent this prompt.
        """
        rendered = await self.online_renderer.render_chat(request, skip_mm_cache=True)
        if isinstance(rendered, ErrorResponse):
            return rendered
        (engine_input,) = rendered[1]
        request.call.trace.video_tokens_after = video_token_counts(
            engine_input, self.video_token_id
        )
        return len(engine_input["prompt_token_ids"])

    def chat_completion_stream_generator(
        self, request: Any, result_generator: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[str, None]:
        """Returns upstream's event stream over watched outputs."""
        request.call.outputs = _watched(result_generator, request.call.trace)
        return super().chat_completion_stream_generator(
            request, request.call.outputs, *args, **kwargs
        )

    async def chat_completion_full_generator(
        self, request: Any, result_generator: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Returns upstream's response over watched outputs."""
        request.call.outputs = _watched(result_generator, request.call.trace)
        return await super().chat_completion_full_generator(
            request, request.call.outputs, *args, **kwargs
        )


async def _watched(
    outputs: AsyncIterator[RequestOutput], trace: EngineTrace
) -> AsyncGenerator[RequestOutput, None]:
    """Yields ``outputs``, noting the engine's own times from the first one that has them."""
    async with aclosing(outputs) as source:  # type: ignore[type-var]  # generate() is a generator
        async for output in source:
            metrics = output.metrics
            if metrics is not None and trace.first_token_at is None and metrics.first_token_ts > 0:
                trace.queued_at = metrics.queued_ts
                trace.scheduled_at = metrics.scheduled_ts
                trace.first_token_at = metrics.first_token_ts
            yield output


def video_token_counts(engine_input: Any, video_token_id: int | None) -> tuple[int, ...]:
    """Returns how many video tokens each video of a rendered prompt has.

    What stands for a video may hold text too, such as a timestamp for each temporal grid.
    """
    placeholders = (engine_input.get("mm_placeholders") or {}).get("video", ())
    if video_token_id is None:
        return tuple(place.get_num_embeds() for place in placeholders)
    token_ids = engine_input["prompt_token_ids"]
    return tuple(
        token_ids[place.offset : place.offset + place.length].count(video_token_id)
        for place in placeholders
    )


def create_serving(
    client: Any, *, model_name: str, video_token_id: int | None
) -> tuple[WatchedServingChat, OpenAIServingModels]:
    """Returns vLLM's serving objects over an EngineClient, as its own server builds them."""
    models = OpenAIServingModels(
        engine_client=client,
        # The path goes into public answers, where a directory of this machine has no place.
        base_model_paths=[BaseModelPath(name=model_name, model_path=model_name)],
    )
    renderer = OnlineRenderer(
        model_config=client.model_config,
        renderer=client.renderer,
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
        # Our own allow-list stands before it; the rates travel in mm_processor_kwargs.
        trust_request_mm_kwargs=True,
    )
    chat = WatchedServingChat(
        client,
        models,
        "assistant",
        online_renderer=renderer,
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
        enable_prompt_tokens_details=True,
        enable_per_request_metrics=True,
    )
    chat.video_token_id = video_token_id
    return chat, models
