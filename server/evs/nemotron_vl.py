"""Nemotron Nano VL: frame separators as text, a hybrid language model without rotary positions."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from vllm.model_executor.models import nano_nemotron_vl
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing.processor import PromptUpdateDetails

from server.evs import processing
from server.evs.contract import NEMOTRON_METHODS, require
from server.evs.plan import PruningPlan, plans_from_field
from server.evs.processing import PLAN_FIELD, SKELETON_FIELD
from server.evs.rows import retained_rows, text_embeddings
from server.evs.walks import Skeleton, interleaved_walk


class NanoNemotronVLMultiModalProcessor(
    processing.PruningProcessor, nano_nemotron_vl.NanoNemotronVLMultiModalProcessor
):
    """vLLM's processor with a rate for each video."""

    def _video_token_id(self) -> int:
        return int(self.info.get_hf_processor().video_token_id)

    def _grid_sizes(self, processed: Mapping[str, Any]) -> list[tuple[int, int]]:
        processor = self.info.get_hf_processor()
        height, width = processed["pixel_values_flat_video"].shape[-2:]
        patches = height * width // processor.config.patch_size**2
        tokens_per_grid = int(patches * processor.config.downsample_ratio**2)
        frames_per_grid = processor.video_temporal_patch_size
        return [
            (math.ceil(num_frames / frames_per_grid), tokens_per_grid)
            for num_frames in processed["video_num_patches"].tolist()
        ]

    def _walk(self, item: Mapping[str, Any]) -> None:
        return None

    def _skeleton_ids(self, processed: Mapping[str, Any]) -> list[list[int]]:
        processor = self.info.get_hf_processor()
        return [
            processor.get_video_repl(
                tokens_per_frame=[1] * num_grids,
                frames_indices=torch.as_tensor(frames_indices).tolist(),
                frame_duration_ms=int(frame_duration_ms),
                tokenizer=processor.tokenizer,
                img_start_token_ids=processor._img_start_token_ids,
                img_end_token_ids=processor._img_end_token_ids,
                img_context_token_ids=processor._img_context_token_ids,
                video_temporal_patch_size=processor.video_temporal_patch_size,
            ).full
            for (num_grids, _), frames_indices, frame_duration_ms in zip(
                self._grid_sizes(processed),
                processed["frames_indices"],
                processed["frame_duration_ms"],
                strict=True,
            )
        ]

    def _whole_placeholder(self, token_ids: list[int]) -> PromptUpdateDetails:
        # Upstream's encoder brings rows for the text of an unpruned video too.
        return PromptUpdateDetails.from_seq(token_ids)


require(nano_nemotron_vl.NemotronH_Nano_VL_V2, NEMOTRON_METHODS)


@MULTIMODAL_REGISTRY.register_processor(
    NanoNemotronVLMultiModalProcessor,
    info=nano_nemotron_vl.NanoNemotronVLProcessingInfo,
    dummy_inputs=nano_nemotron_vl.NanoNemotronVLDummyInputsBuilder,
)
class NemotronH_Nano_VL_V2(nano_nemotron_vl.NemotronH_Nano_VL_V2):
    """vLLM's model with a rate for each video.

    Overridden: ``embed_multimodal``, because upstream prunes every video at the engine's rate. Its
    attention has no positions, so there are none to keep.
    """

    def embed_multimodal(self, **kwargs: Any) -> Any:
        """Returns one tensor per media item; those of pruned videos hold what is retained."""
        plans = kwargs.pop(PLAN_FIELD, None)
        skeletons = kwargs.pop(SKELETON_FIELD, None)
        if plans is None:
            return super().embed_multimodal(**kwargs)
        media = self._parse_and_validate_video_input(**kwargs)
        if self.video_temporal_patch_size > 1:
            videos = self._extract_video_embeddings_temporal(media)
        else:
            videos = self._process_image_input(media)
        return tuple(
            map(
                self._video_rows, videos, plans_from_field(plans, num_videos=len(videos)), skeletons
            )
        )

    def _video_rows(
        self, embeddings: torch.Tensor, plan: PruningPlan, skeleton_ids: torch.Tensor
    ) -> torch.Tensor:
        (video_token_id,) = self._img_context_token_ids
        skeleton = Skeleton.of(skeleton_ids.numpy(), video_token_id=video_token_id)
        # Only the order of the walk is used; what counts as a row or column does not matter.
        walk = interleaved_walk(skeleton, 1, len(embeddings) // skeleton.num_grids)
        text = text_embeddings(self, skeleton, embeddings.device)
        rows, _ = retained_rows(embeddings, text, walk, plan, num_grids=skeleton.num_grids)
        return rows
