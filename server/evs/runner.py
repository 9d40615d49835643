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


def keep_drift_of_drafts() -> None:
    """Let Model Runner V1 keep the positions that it has corrected for rejected drafts.

    With speculation under asynchronous scheduling, the host counts on every draft, and the device's
    positions are moved back by those rejected. ``GPUModelRunner._gather_mm_embeddings`` then writes
    the host's once more, for pruning's sake. Only marks need that.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    def gather_mm_embeddings(
        upstream: Callable[..., Any], runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not (runner.use_async_spec_decode and runner.uses_mrope):
            return upstream(runner, scheduler_output, *args, **kwargs)
        window = runner.mrope_positions.gpu[:, : scheduler_output.total_num_scheduled_tokens]
        corrected = window.clone()
        gathered = upstream(runner, scheduler_output, *args, **kwargs)
        window.copy_(window.where(corrected < 0, corrected))
        return gathered

    _wrap_once(GPUModelRunner, "_gather_mm_embeddings", gather_mm_embeddings)


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
