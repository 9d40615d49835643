"""What vLLM 0.32.0's runners lack for pruning, supplied by wrapping one method of each."""

import functools
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

    upstream = CPUModelRunner.load_model
    if hasattr(upstream, _MARK):
        return

    @functools.wraps(upstream)
    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        upstream(self, *args, **kwargs)
        config = self.model_config.multimodal_config
        self.is_multimodal_pruning_enabled = (
            config is not None
            and config.is_multimodal_pruning_enabled()
            and supports_multimodal_pruning(self.get_model())
        )

    setattr(load_model, _MARK, True)
    CPUModelRunner.load_model = load_model


def keep_delta_in_rope_state() -> None:
    """Let Model Runner V2 keep the delta that a request was laid out with.

    ``RopeState.update_prefill_positions`` takes the delta as a host integer, which a model could
    only know by waiting for the device. Ours is final from the start, so it passes None.
    """
    from vllm.v1.worker.gpu.mm.rope import RopeState

    upstream = RopeState.update_prefill_positions
    if hasattr(upstream, _MARK):
        return

    @functools.wraps(upstream)
    def update_prefill_positions(self: Any, req_idx: int, positions: Any, delta: Any) -> None:
        if delta is None:
            delta = self.prefill_delta.np[req_idx]
        upstream(self, req_idx, positions, delta)

    setattr(update_prefill_positions, _MARK, True)
    RopeState.update_prefill_positions = update_prefill_positions


def keep_drift_of_drafts() -> None:
    """Let Model Runner V1 keep the positions that it has corrected for rejected drafts.

    With speculation under asynchronous scheduling, the host counts on every draft, and the device's
    positions are moved back by those rejected. ``GPUModelRunner._gather_mm_embeddings`` then writes
    the host's once more, for pruning's sake. Only marks need that.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    upstream = GPUModelRunner._gather_mm_embeddings
    if hasattr(upstream, _MARK):
        return

    @functools.wraps(upstream)
    def gather_mm_embeddings(
        self: Any, scheduler_output: Any, shift_computed_tokens: int = 0
    ) -> tuple[list[Any], Any]:
        if not (self.use_async_spec_decode and self.uses_mrope):
            gathered: tuple[list[Any], Any] = upstream(
                self, scheduler_output, shift_computed_tokens
            )
            return gathered
        window = self.mrope_positions.gpu[:, : scheduler_output.total_num_scheduled_tokens]
        corrected = window.clone()
        gathered = upstream(self, scheduler_output, shift_computed_tokens)
        window.copy_(window.where(corrected < 0, corrected))
        return gathered

    setattr(gather_mm_embeddings, _MARK, True)
    GPUModelRunner._gather_mm_embeddings = gather_mm_embeddings
