"""Processor half: each video's rate becomes its number of placeholders and part of its identity.

The rate arrives in ``mm_processor_kwargs`` as ``video_pruning_rate``: one number, or a list with
one entry for each video. Here it is taken out before the HF processor sees it, folded into each
video's hash (so that encoder, processor and prefix cache never mix rates), and turned into the
number of tokens to retain, which travels to the model as a field of the video.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.multimodal.processing.processor import BaseMultiModalProcessor

from server.evs.arithmetic import rates_per_video, retained_tokens

RATE_KWARG = "video_pruning_rate"
"""Key in ``mm_processor_kwargs``."""
RETAINED_FIELD = "num_retained_video_tokens"
"""Field of each video item, int64, shape ()."""


def prunes_per_video(
    processor: type[BaseMultiModalProcessor[Any]],
) -> type[BaseMultiModalProcessor[Any]]:
    """Returns a subclass of a Qwen-VL style processor in which every video has its own rate."""
    return type(f"PerVideoPruning{processor.__name__}", (_PerVideoPruning, processor), {})


class _PerVideoPruning(BaseMultiModalProcessor[Any]):
    """Overrides of vLLM 0.32.0's BaseMultiModalProcessor; each calls upstream without the rate."""

    def _take_rates(
        self, kwargs: Mapping[str, object], num_videos: int
    ) -> tuple[dict[str, object], list[float]]:
        others = dict(kwargs)
        default = self.info.ctx.get_mm_config().video_pruning_rate or 0.0
        rates = rates_per_video(
            others.pop(RATE_KWARG, None), num_videos=num_videos, default=default
        )
        return others, rates

    def _get_mm_hashes(self, inputs: ProcessorInputs) -> Any:
        # Upstream folds all kwargs into the hash of every item, images included.
        num_videos = inputs.mm_data_items.get_all_counts().get("video", 0)
        others, rates = self._take_rates(inputs.hf_processor_mm_kwargs, num_videos)
        unpruned = dataclasses.replace(inputs, hf_processor_mm_kwargs=others)
        hashes = dict(super()._get_mm_hashes(unpruned))
        if num_videos:
            algorithm = self.info.ctx.get_mm_config().mm_hasher_algorithm
            hashes["video"] = [
                MultiModalHasher.hash_kwargs(algorithm, video=video_hash, rate=rate)
                for video_hash, rate in zip(hashes["video"], rates, strict=True)
            ]
        return hashes

    def _get_cache_missing_processor_kwargs(
        self, inputs: ProcessorInputs, mm_is_cached: Any
    ) -> Mapping[str, object]:
        # A list of rates must match the videos that are left to process.
        is_cached = mm_is_cached.get("video", [])
        others, rates = self._take_rates(inputs.hf_processor_mm_kwargs, len(is_cached))
        unpruned = dataclasses.replace(inputs, hf_processor_mm_kwargs=others)
        missing = dict(super()._get_cache_missing_processor_kwargs(unpruned, mm_is_cached))
        missing[RATE_KWARG] = [
            rate for rate, cached in zip(rates, is_cached, strict=True) if not cached
        ]
        return missing

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        num_videos = mm_items.get_all_counts().get("video", 0)
        others, rates = self._take_rates(hf_kwargs, num_videos)
        processed = super()._apply_hf_processor_main(mm_items, others)
        if num_videos:
            merge_size = self.info.get_hf_config().vision_config.spatial_merge_size
            counts = [
                retained_tokens(
                    tokens_per_grid=(height // merge_size) * (width // merge_size),
                    num_grids=num_grids,
                    rate=rate,
                )
                for (num_grids, height, width), rate in zip(
                    processed["video_grid_thw"].tolist(), rates, strict=True
                )
            ]
            processed[RETAINED_FIELD] = torch.tensor(counts, dtype=torch.int64)
        return processed

    def _get_mm_fields_config(
        self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]
    ) -> Mapping[str, MultiModalFieldConfig]:
        others = {k: v for k, v in hf_processor_mm_kwargs.items() if k != RATE_KWARG}
        return {
            **super()._get_mm_fields_config(hf_inputs, others),
            RETAINED_FIELD: MultiModalFieldConfig.batched("video", keep_on_cpu=True),
        }

    def _get_prompt_updates(
        self,
        mm_items: Any,
        hf_processor_mm_kwargs: Mapping[str, object],
        out_mm_kwargs: Any,
    ) -> Sequence[Any]:
        others = {k: v for k, v in hf_processor_mm_kwargs.items() if k != RATE_KWARG}
        updates = super()._get_prompt_updates(mm_items, others, out_mm_kwargs)
        return [
            dataclasses.replace(update, replacement=partial(self._video_placeholder, out_mm_kwargs))
            if update.modality == "video"
            else update
            for update in updates
        ]

    def _video_placeholder(self, out_mm_kwargs: Any, item_idx: int) -> list[int]:
        count = int(out_mm_kwargs["video"][item_idx][RETAINED_FIELD].data)
        return [self.info.get_hf_config().video_token_id] * count
