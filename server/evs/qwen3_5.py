"""Qwen3.5, dense and mixture of experts: Qwen3-VL's video over a hybrid language model."""

from vllm.model_executor.models import qwen3_5, qwen3_vl
from vllm.multimodal import MULTIMODAL_REGISTRY

from server.evs.qwen3_vl import InterleavedPruning, Qwen3VLMultiModalProcessor


@MULTIMODAL_REGISTRY.register_processor(
    Qwen3VLMultiModalProcessor,
    info=qwen3_5.Qwen3_5ProcessingInfo,
    dummy_inputs=qwen3_vl.Qwen3VLDummyInputsBuilder,
)
class Qwen3_5ForConditionalGeneration(InterleavedPruning, qwen3_5.Qwen3_5ForConditionalGeneration):
    """vLLM's model with a rate and a method for each video and exact positions.

    Upstream's dies on the first pruned video: it never sets ``video_pruning_method``.
    """


@MULTIMODAL_REGISTRY.register_processor(
    Qwen3VLMultiModalProcessor,
    info=qwen3_5.Qwen3_5MoeProcessingInfo,
    dummy_inputs=qwen3_vl.Qwen3VLDummyInputsBuilder,
)
class Qwen3_5MoeForConditionalGeneration(
    InterleavedPruning, qwen3_5.Qwen3_5MoeForConditionalGeneration
):
    """As Qwen3_5ForConditionalGeneration, with a mixture of experts."""
