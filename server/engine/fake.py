"""An EngineClient that follows a script instead of computing: for fast tests and for faults.

Everything in front of it stays real: vLLM's renderer, processors and OpenAI serving classes, with a
real model's tokenizer and processor. Only what EngineCore would do is made up.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from vllm.config import VllmConfig
from vllm.engine.protocol import EngineClient
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers import renderer_from_config
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.metrics.stats import RequestStateStats


@dataclass(frozen=True, slots=True)
class Script:
    """What the engine does with every request."""

    words: tuple[str, ...] = (" a", " red", " circle")
    """The answer, a token each."""
    seconds_before_first: float = 0.0
    """Time from queueing to the first token."""
    seconds_between: float = 0.0
    """Time between tokens."""
    dies_after: int | None = None
    """Number of tokens after which the engine dies, for this request and for good."""


class ScriptedClient(EngineClient):
    """Answers every prompt with ``script``; notes which requests were finished and aborted."""

    def __init__(self, vllm_config: VllmConfig, script: Script) -> None:
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.renderer = renderer_from_config(vllm_config)
        self.input_processor = InputProcessor(vllm_config, self.renderer)
        self.script = script
        self.running: set[str] = set()
        """Requests being answered now."""
        self.aborted: list[str] = []
        """Requests that were closed before their last token."""
        self.num_requests = 0
        """Requests that came, however they ended."""
        self._dead = False

    @property
    def is_running(self) -> bool:
        """Whether the engine is alive."""
        return not self._dead

    @property
    def is_stopped(self) -> bool:
        """Whether the engine has died."""
        return self._dead

    @property
    def errored(self) -> bool:
        """Whether the engine has died."""
        return self._dead

    @property
    def dead_error(self) -> BaseException:
        """What to raise for every request once the engine has died."""
        return EngineDeadError()

    async def check_health(self) -> None:
        """Raises once the engine has died."""
        if self._dead:
            raise self.dead_error

    async def is_paused(self) -> bool:
        """Returns False: a sign of life."""
        return False

    def shutdown(self, timeout: float | None = None) -> None:
        """Release the renderer's threads."""
        self.renderer.shutdown()

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **_: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields the script, token by token or as a whole, as the request asks."""
        stats = RequestStateStats(arrival_time=time.time())
        stats.queued_ts = stats.scheduled_ts = time.monotonic()
        self.num_requests += 1
        self.running.add(request_id)
        finished = False
        try:
            async for output in self._outputs(prompt, sampling_params, request_id, stats):
                finished = output.finished
                yield output
        finally:
            self.running.discard(request_id)
            if not finished:
                self.aborted.append(request_id)

    async def _outputs(
        self, prompt: Any, params: SamplingParams, request_id: str, stats: RequestStateStats
    ) -> AsyncGenerator[RequestOutput, None]:
        words = self.script.words[: params.max_tokens]
        whole = params.output_kind == RequestOutputKind.FINAL_ONLY
        for index, word in enumerate(words):
            pause = self.script.seconds_between if index else self.script.seconds_before_first
            await asyncio.sleep(pause)
            if index == self.script.dies_after:
                self._dead = True
            if self._dead:
                raise self.dead_error
            stats.last_token_ts = time.monotonic()
            stats.first_token_ts = stats.first_token_ts or stats.last_token_ts
            is_last = index == len(words) - 1
            if whole and not is_last:
                continue
            yield RequestOutput(
                request_id,
                None,
                prompt["prompt_token_ids"],
                None,
                [_completion("".join(words) if whole else word, index, whole, is_last)],
                is_last,
                metrics=stats,
                num_cached_tokens=0,
            )


def _completion(text: str, index: int, whole: bool, is_last: bool) -> CompletionOutput:
    token_ids = list(range(index + 1)) if whole else [index]
    return CompletionOutput(
        0, text, token_ids, None, None, finish_reason="stop" if is_last else None
    )


def _unsupported(name: str) -> Any:
    async def method(self: ScriptedClient, *args: Any, **kwargs: Any) -> Any:
        # Not reached by any request; should one come to, the failure names what is missing.
        raise NotImplementedError(f"a scripted engine has no {name}")

    return method


# The many operations that no request of this server needs.
for _name in sorted(ScriptedClient.__abstractmethods__):
    setattr(ScriptedClient, _name, _unsupported(_name))
ScriptedClient.__abstractmethods__ = frozenset()
