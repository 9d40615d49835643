"""What vLLM 0.32.0's runners lack for pruning, supplied by wrapping one method of each."""

import functools
from collections.abc import Callable
from typing import Any

_MARK = "supplied_by_evs"


def enable_pruning_on_cpu() -> None:
    """Make the CPU runner decide, after loading a model, whether its embeddings are pruned.

    ``CPUModelRunner.load_model`` replaces ``GPUModelRunner.load_model`` and leaves
    ``is_multimodal_pruning_enabled`` at False, so the position channels are never stripped and the
    engine dies on the first pruned video.
    """
    from vllm.model_executor.models.interfaces import supports_multimodal_pruning
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    def load_model(upstream: Callable[..., None], runner: Any, *args: Any, **kwargs: Any) -> None:
        upstream(runner, *args, **kwargs)
        config = runner.model_config.multimodal_config
        runner.is_multimodal_pruning_enabled = (
            config is not None
            and config.is_multimodal_pruning_enabled()
            and supports_multimodal_pruning(runner.get_model())
        )

    _wrap_once(CPUModelRunner, "load_model", load_model)


def keep_delta_in_rope_state() -> None:
    """Let Model Runner V2 keep the delta that a request was laid out with.

    ``RopeState.update_prefill_positions`` takes the delta as a host integer, which a model could
    only know by waiting for the device. Ours is final from the start, so it passes None.
    """
    from vllm.v1.worker.gpu.mm.rope import RopeState

    def update_prefill_positions(
        upstream: Callable[..., None], state: Any, req_idx: int, positions: Any, delta: Any
    ) -> None:
        if delta is None:
            delta = state.prefill_delta.np[req_idx]
        upstream(state, req_idx, positions, delta)

    _wrap_once(RopeState, "update_prefill_positions", update_prefill_positions)


def lay_out_marks_alone() -> None:
    """Let Model Runner V1 write a step's positions a second time only where marks were.

    For pruning's sake ``GPUModelRunner._gather_mm_embeddings`` lays out the whole batch once more,
    in every step. A step without media has no marks, and nothing to lay out. In one with media,
    the positions that were none stay as they are: with speculation under asynchronous scheduling
    the host counts on every draft, and only the device's positions are moved back by those
    rejected.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    def gather_mm_embeddings(
        upstream: Callable[..., Any],
        runner: Any,
        scheduler_output: Any,
        shift_computed_tokens: int = 0,
    ) -> Any:
        if not (runner.is_multimodal_pruning_enabled and runner.uses_mrope):
            return upstream(runner, scheduler_output, shift_computed_tokens)
        if not _reaches_media(runner, scheduler_output, shift_computed_tokens):
            runner.is_multimodal_pruning_enabled = False
            try:
                return upstream(runner, scheduler_output, shift_computed_tokens)
            finally:
                runner.is_multimodal_pruning_enabled = True
        window = runner.mrope_positions.gpu[:, : scheduler_output.total_num_scheduled_tokens]
        corrected = window.clone() if runner.use_async_spec_decode else None
        gathered = upstream(runner, scheduler_output, shift_computed_tokens)
        if corrected is not None:
            window.copy_(window.where(corrected < 0, corrected))
        return gathered

    _wrap_once(GPUModelRunner, "_gather_mm_embeddings", gather_mm_embeddings)


def _reaches_media(runner: Any, scheduler_output: Any, shift_computed_tokens: int) -> bool:
    """Whether any request computes a token of an image or a video in this step."""
    from vllm.multimodal.utils import get_mm_features_in_window

    for name, num_tokens in scheduler_output.num_scheduled_tokens.items():
        request = runner.requests[name]
        start = request.num_computed_tokens + shift_computed_tokens
        first, end = get_mm_features_in_window(request.mm_features, start, start + num_tokens)
        if first < end:
            return True
    return False


def _wrap_once(owner: type, name: str, around: Callable[..., Any]) -> None:
    """Let ``around`` be called in place of a method, with the method first; once for a process."""
    upstream = getattr(owner, name)
    if hasattr(upstream, _MARK):
        return

    @functools.wraps(upstream)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(upstream, self, *args, **kwargs)

    setattr(wrapper, _MARK, True)
    setattr(owner, name, wrapper)
