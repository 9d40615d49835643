"""Qwen2.5-VL: one block of grids for each video, time in the first coordinate."""

from collections.abc import Mapping
from typing import Any

from vllm.model_executor.models import qwen2_5_vl
from vllm.multimodal import MULTIMODAL_REGISTRY

from server.evs import mrope, processing
from server.evs.walks import Walk, contiguous_walk


class Qwen2_5_VLMultiModalProcessor(
    processing.PruningProcessor, qwen2_5_vl.Qwen2_5_VLMultiModalProcessor
):
    """vLLM's processor with a rate for each video."""

    def _grid_sizes(self, processed: Mapping[str, Any]) -> list[tuple[int, int]]:
        return processing.merged_grid_sizes(processed, self.info)

    def _walk(self, item: Mapping[str, Any]) -> Walk:
        return walk(item, self.info.get_hf_config())


@MULTIMODAL_REGISTRY.register_processor(
    Qwen2_5_VLMultiModalProcessor,
    info=qwen2_5_vl.Qwen2_5_VLProcessingInfo,
    dummy_inputs=qwen2_5_vl.Qwen2_5_VLDummyInputsBuilder,
)
class Qwen2_5_VLForConditionalGeneration(
    mrope.PruningModel, qwen2_5_vl.Qwen2_5_VLForConditionalGeneration
):
    """vLLM's model with a rate for each video and exact positions."""

    def _walk(self, fields: Mapping[str, Any]) -> Walk:
        return walk(fields, self.config)


def walk(fields: Mapping[str, Any], config: Any) -> Walk:
    """Returns the unpruned placeholder of a video from its fields."""
    seconds = fields.get("second_per_grid_ts")
    tokens_per_second = getattr(config.vision_config, "tokens_per_second", 1.0)
    # Embeddings may come without their time; a second a grid, as upstream has it.
    seconds_per_grid = 1.0 if seconds is None else seconds.item()
    grid = processing.token_grid(fields["video_grid_thw"], config)
    return contiguous_walk(*grid, t_factor=seconds_per_grid * tokens_per_second)
