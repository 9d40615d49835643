"""The CPU runner's missing switch.

vLLM 0.32.0's ``CPUModelRunner.load_model`` replaces ``GPUModelRunner.load_model`` and leaves
``is_multimodal_pruning_enabled`` at False, so the position channels are never stripped and the
engine dies on the first pruned video.
"""

import functools
from typing import Any


def enable_pruning_on_cpu() -> None:
    """Make the CPU runner decide, after loading a model, whether its embeddings are pruned."""
    from vllm.model_executor.models.interfaces import supports_multimodal_pruning
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    upstream = CPUModelRunner.load_model
    if getattr(upstream, "enables_pruning", False):
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

    load_model.enables_pruning = True  # type: ignore[attr-defined]  # marks it for the next call
    CPUModelRunner.load_model = load_model
