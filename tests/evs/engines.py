"""Real engines in this process, and how their answers are compared."""

import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR"
)

from server.evs.arithmetic import ENABLED_AT_RATE_ZERO
from tests.evs.cases import Case
from tests.families import Family, checkpoint

NUM_TOKENS, TOP = 6, 5
_UNASKABLE = "llvmlite.binding.ffi"


@dataclass(frozen=True)
class Answer:
    """What an engine or the reference said to one prompt."""

    case: str
    tokens: tuple[int, ...]
    logprobs: tuple[dict[int, float], ...]
    """The likeliest tokens of each step."""


class Engine:
    """A vLLM engine, which prunes nothing unless asked; gone when the ``with`` block ends.

    Args:
        family: whose checkpoint it serves.
        dtype: of its weights.
        arguments: of ``LLM``; ``video_pruning_rate=None`` starts it without pruning.
    """

    _standing: ClassVar[list[object]] = []

    def __init__(self, family: Family, dtype: str, **arguments: Any) -> None:
        self.family = family
        self._arguments = {
            "dtype": dtype,
            "enforce_eager": True,
            "max_model_len": 20480,
            "max_num_batched_tokens": 20480,
            "max_num_seqs": 16,
            "kv_cache_memory_bytes": 160 << 20,
            "limit_mm_per_prompt": {"video": 4, "image": 2},
            "enable_prefix_caching": False,
            "video_pruning_rate": ENABLED_AT_RATE_ZERO,
            "trust_remote_code": family.trust_remote_code,
            **arguments,
        }
        self.llm: Any = None

    def __enter__(self) -> Self:
        from vllm import LLM

        # They share a process's distributed state, and would tear it down for one another.
        assert not self._standing, "one engine at a time"
        self._standing.append(self)
        # vLLM asks everything in every module whether it is a kernel; llvmlite's library, which
        # comes with n-grams, does not bear it.
        hidden = sys.modules.pop(_UNASKABLE, None)
        try:
            self.llm = LLM(str(checkpoint(self.family.name)), **self._arguments)
        finally:
            if hidden is not None:
                sys.modules[_UNASKABLE] = hidden
        return self

    def __exit__(self, *_: object) -> None:
        # Left to the garbage collector, it would tear down what the next engine has set up.
        self.llm.llm_engine.engine_core.shutdown()
        self.llm = None
        self._standing.clear()
        gc.collect()

    def ask(self, cases: Sequence[Case], *, alone: bool = False, **sampling: Any) -> list[Answer]:
        """Returns the greedy answers.

        Args:
            cases: the prompts.
            alone: one after the other; otherwise all at once.
            sampling: further sampling parameters.
        """
        from vllm import SamplingParams

        params = SamplingParams(
            **{
                "max_tokens": NUM_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
                "logprobs": TOP,
                **sampling,
            }
        )
        requests = [case.request(self.family) for case in cases]
        batches = [[request] for request in requests] if alone else [requests]
        outputs = [o for some in batches for o in self.llm.generate(some, params, use_tqdm=False)]
        return [_answer(*pair) for pair in zip(cases, outputs, strict=True)]

    def forget_media(self) -> None:
        """Empty the encoder's cache, so that the next prompt's media are encoded again."""
        self.llm.llm_engine.reset_encoder_cache()


def _answer(case: Case, output: Any) -> Answer:
    completion = output.outputs[0]
    steps = tuple({t: e.logprob for t, e in step.items()} for step in completion.logprobs)
    return Answer(case.name, tuple(completion.token_ids), steps)


def distance(expected: Answer, found: Answer) -> float:
    """Returns the largest difference of a logprob, over the steps that have the same past.

    Where the two choose differently, what the choice cost in the expected one counts, and the
    steps behind it have another past and are not compared.
    """
    largest = 0.0
    for step, (ours, theirs) in enumerate(zip(expected.logprobs, found.logprobs, strict=True)):
        common = ours.keys() & theirs.keys()
        if not common:
            return float("inf")
        largest = max(largest, *(abs(ours[token] - theirs[token]) for token in common))
        chosen, other = expected.tokens[step], found.tokens[step]
        if chosen != other:
            return max(largest, ours[chosen] - ours.get(other, min(ours.values())))
    return largest


def distances(expected: Sequence[Answer], found: Sequence[Answer]) -> dict[str, float]:
    """Returns the distance of each case."""
    pairs = zip(expected, found, strict=True)
    return {ours.case: distance(ours, theirs) for ours, theirs in pairs}
