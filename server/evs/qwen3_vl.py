"""Qwen3-VL, dense and mixture of experts: a timestamp before each grid, deepstack features."""

from collections.abc import Mapping
from typing import Any, ClassVar

from vllm.model_executor.models import qwen3_vl, qwen3_vl_moe
from vllm.multimodal import MULTIMODAL_REGISTRY

from server.evs import mrope, processing
from server.evs.walks import Walk, interleaved_walk


class Qwen3VLMultiModalProcessor(processing.PruningProcessor, qwen3_vl.Qwen3VLMultiModalProcessor):
    """vLLM's processor with a rate and a method for each video."""

    pruning_methods: ClassVar[tuple[str, ...]] = ("evs", "vidcom2")

    def _grid_sizes(self, processed: Mapping[str, Any]) -> list[tuple[int, int]]:
        return processing.merged_grid_sizes(processed, self.info)

    def _walk(self, item: Mapping[str, Any]) -> Walk:
        return walk(item, self.info.get_hf_config())

    def _skeleton_ids(self, processed: Mapping[str, Any]) -> list[list[int]]:
        config = self.info.get_hf_config()
        return [
            self.get_video_repl(
                tokens_per_frame=[1] * len(timestamps),
                timestamps=timestamps,
                tokenizer=self.info.get_tokenizer(),
                vision_start_token_id=config.vision_start_token_id,
                vision_end_token_id=config.vision_end_token_id,
                video_token_id=config.video_token_id,
            ).full
            for timestamps in processed["timestamps"]
        ]


class InterleavedPruning(mrope.PruningModel):
    """Pruning for placeholders with text between the grids."""

    def _walk(self, fields: Mapping[str, Any]) -> Walk:
        return walk(fields, self.config)


def walk(fields: Mapping[str, Any], config: Any) -> Walk:
    """Returns the unpruned placeholder of a video from its fields."""
    num_grids, height, width = processing.token_grid(fields["video_grid_thw"], config)
    skeleton = mrope.skeleton_of(fields, num_grids=num_grids, config=config)
    return interleaved_walk(skeleton, height, width)


@MULTIMODAL_REGISTRY.register_processor(
    Qwen3VLMultiModalProcessor,
    info=qwen3_vl.Qwen3VLProcessingInfo,
    dummy_inputs=qwen3_vl.Qwen3VLDummyInputsBuilder,
)
class Qwen3VLForConditionalGeneration(InterleavedPruning, qwen3_vl.Qwen3VLForConditionalGeneration):
    """vLLM's model with a rate and a method for each video and exact positions."""


@MULTIMODAL_REGISTRY.register_processor(
    Qwen3VLMultiModalProcessor,
    info=qwen3_vl_moe.Qwen3VLMoeProcessingInfo,
    dummy_inputs=qwen3_vl.Qwen3VLDummyInputsBuilder,
)
class Qwen3VLMoeForConditionalGeneration(
    InterleavedPruning, qwen3_vl_moe.Qwen3VLMoeForConditionalGeneration
):
    """vLLM's model with a rate and a method for each video and exact positions."""
