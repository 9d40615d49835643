"""The vLLM methods that are overridden, with the parameters they were written for.

Checked when a class that overrides them is made, so that a vLLM in which one is missing or changed
fails at start, by name, and not in the middle of a request.
"""

import inspect
from collections.abc import Mapping, Sequence

PROCESSOR_METHODS: Mapping[str, Sequence[str]] = {
    "_cached_apply_hf_processor": ["inputs", "timing_ctx"],
    "_get_mm_hashes": ["inputs"],
    "_get_cache_missing_processor_kwargs": ["inputs", "mm_is_cached"],
    "_apply_hf_processor_main": ["mm_items", "hf_kwargs"],
    "_get_mm_fields_config": ["hf_inputs", "hf_processor_mm_kwargs"],
    "_get_prompt_updates": ["mm_items", "hf_processor_mm_kwargs", "out_mm_kwargs"],
}
"""Of every model's multimodal processor."""
MROPE_METHODS: Mapping[str, Sequence[str]] = {
    "embed_multimodal": ["kwargs"],
    "get_mrope_input_positions": ["input_tokens", "mm_features"],
    "recompute_mrope_positions": [
        "input_ids",
        "multimodal_embeddings",
        "mrope_positions",
        "num_computed_tokens",
    ],
    # Called, not overridden.
    "_parse_and_validate_multimodal_inputs": ["kwargs"],
    "_process_image_input": ["image_input"],
    "_process_video_input": ["video_input"],
    "get_language_model": [],
}
"""Of the model classes with M-RoPE."""
NEMOTRON_METHODS: Mapping[str, Sequence[str]] = {
    "embed_multimodal": ["kwargs"],
    # Called, not overridden.
    "_parse_and_validate_video_input": ["kwargs"],
    "_extract_video_embeddings_temporal": ["video_input"],
    "_process_image_input": ["image_input"],
    "get_language_model": [],
}
"""Of Nemotron Nano VL's model class."""


def require(upstream: type, methods: Mapping[str, Sequence[str]]) -> None:
    """Check that ``upstream`` has the methods, with these parameters.

    Raises:
        RuntimeError: one is missing or takes others; the message names it.
    """
    for method_name, expected in methods.items():
        place = f"vLLM's {upstream.__module__}.{upstream.__name__}.{method_name}"
        method = getattr(upstream, method_name, None)
        if method is None:
            raise RuntimeError(f"{place}, which server.evs needs, is missing")
        found = [
            parameter for parameter in inspect.signature(method).parameters if parameter != "self"
        ]
        if found != list(expected):
            raise RuntimeError(
                f"{place} takes ({', '.join(found)}); server.evs was written for "
                f"({', '.join(expected)})"
            )


def require_upstream_of(cls: type, mixin: type, methods: Mapping[str, Sequence[str]]) -> None:
    """Check, by ``require``, the vLLM class that ``mixin`` is mixed in before, where there is one.

    A mixin that refines another has none yet.
    """
    order = cls.__mro__
    following = order[order.index(mixin) + 1 :]
    upstream = next((base for base in following if base.__module__.startswith("vllm.")), None)
    if upstream is not None:
        require(upstream, methods)
