"""Model half: vLLM's model classes with exact positions and each video pruned at its own rate."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.model_executor.models import qwen2_5_vl
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.utils.torch_utils import async_tensor_h2d

from server.evs import positions
from server.evs.processing import RETAINED_FIELD, prunes_per_video
from server.evs.retention import retained_indices


@MULTIMODAL_REGISTRY.register_processor(
    prunes_per_video(qwen2_5_vl.Qwen2_5_VLMultiModalProcessor),
    info=qwen2_5_vl.Qwen2_5_VLProcessingInfo,
    dummy_inputs=qwen2_5_vl.Qwen2_5_VLDummyInputsBuilder,
)
class Qwen2_5_VLForConditionalGeneration(qwen2_5_vl.Qwen2_5_VLForConditionalGeneration):
    """Qwen2.5-VL, vLLM 0.32.0, with pruning that moves no token.

    Overridden, each because upstream takes one rate for the whole engine or moves positions:
    ``embed_multimodal``, ``get_mrope_input_positions``, ``recompute_mrope_positions``.
    Without pruning (no rate at engine start) all three are upstream's.
    """

    def embed_multimodal(self, **kwargs: object) -> Any:
        """Returns one tensor per media item: retained embeddings and their position channels.

        Upstream prunes every video at ``self.video_pruning_rate`` and appends positions that the
        model's own float type rounds.
        """
        counts = kwargs.pop(RETAINED_FIELD, None)
        if not self.is_multimodal_pruning_enabled:
            return super().embed_multimodal(**kwargs)
        rows: list[torch.Tensor] = []
        for modality, media in self._parse_and_validate_multimodal_inputs(**kwargs).items():
            if modality == "image":
                embeddings = self._process_image_input(media)
                grids = media["image_grid_thw"].tolist()
                rows += [
                    self._with_image_positions(*item)
                    for item in zip(embeddings, grids, strict=True)
                ]
            else:
                rows += self._retained_rows(media, counts)
        return tuple(rows)

    def _with_image_positions(self, embeddings: torch.Tensor, grid_thw: list[int]) -> torch.Tensor:
        return _with_channels(embeddings, self._coordinates(grid_thw, t_factor=1.0))

    def _retained_rows(self, video_input: Any, counts: Any) -> list[torch.Tensor]:
        """Returns the retained rows of each video in the batch."""
        seconds = video_input.get("second_per_grid_ts")
        if counts is None or seconds is None:
            raise ValueError(f"a video reached the model without {RETAINED_FIELD} or its timing")
        tokens_per_second = getattr(self.config.vision_config, "tokens_per_second", 1.0)
        rows = []
        for embeddings, grid_thw, count, second_per_grid in zip(
            self._process_video_input(video_input),
            video_input["video_grid_thw"].tolist(),
            torch.as_tensor(counts).flatten().tolist(),
            seconds.flatten().tolist(),
            strict=True,
        ):
            coordinates = self._coordinates(grid_thw, t_factor=second_per_grid * tokens_per_second)
            keep = retained_indices(embeddings, num_grids=grid_thw[0], num_retained=count)
            rows.append(_with_channels(embeddings, coordinates)[keep])
        return rows

    def _coordinates(self, grid_thw: list[int], *, t_factor: float) -> NDArray[np.int64]:
        """Returns the unpruned positions of one media item from its own start, shape (N, 3)."""
        merge_size = self.config.vision_config.spatial_merge_size
        num_grids, height, width = grid_thw
        grid = np.indices((num_grids, height // merge_size, width // merge_size))
        # In double precision and truncated, as upstream's get_mrope_input_positions does.
        grid[0] = (grid[0] * t_factor).astype(np.int64)
        return grid.reshape(3, -1).T

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[Any]
    ) -> tuple[torch.Tensor, int]:
        """Returns positions (3, N), final for text, and the delta of generated tokens.

        Upstream walks the unpruned grids over the pruned placeholders, so everything behind the
        first video is shifted, and a second video makes it fail.
        """
        if not self.is_multimodal_pruning_enabled:
            return super().get_mrope_input_positions(input_tokens, mm_features)
        spans = [
            self._span(feature)
            for feature in sorted(mm_features, key=lambda f: f.mm_position.offset)
        ]
        return positions.lay_out(len(input_tokens), spans)

    def _span(self, feature: Any) -> positions.MediaSpan:
        (_, num_grids, height, width, t_factor) = next(self.iter_mm_grid_thw([feature]))
        extent = max(int((num_grids - 1) * t_factor) + 1, height, width)
        return positions.MediaSpan(
            offset=feature.mm_position.offset, length=feature.mm_position.length, extent=extent
        )

    def recompute_mrope_positions(
        self,
        input_ids: list[int] | torch.Tensor,
        multimodal_embeddings: Sequence[torch.Tensor],
        mrope_positions: torch.Tensor,
        num_computed_tokens: int,
    ) -> tuple[Sequence[torch.Tensor], torch.Tensor, int]:
        """Returns embeddings without channels, the prompt's positions, and the delta.

        Called for each request in each step; without media in the chunk it costs O(1). Upstream
        clones and reduces the whole prompt's positions each time.
        """
        if multimodal_embeddings:
            device = mrope_positions.device
            blocks = [
                positions.from_channels(rows[:, -positions.NUM_CHANNELS :]).to(device)
                for rows in multimodal_embeddings
            ]
            token_ids = (
                input_ids.long()
                if isinstance(input_ids, torch.Tensor)
                else torch.tensor(input_ids, dtype=torch.long, device=device)
            )
            positions.write_retained(
                token_ids,
                blocks,
                mrope_positions,
                num_computed_tokens=num_computed_tokens,
                media_token_ids=(self.config.image_token_id, self.config.video_token_id),
            )
        embeddings = [rows[:, : -positions.NUM_CHANNELS] for rows in multimodal_embeddings]
        # The last token of a chat prompt is text, and text positions are final.
        delta = int(mrope_positions[0, -1]) + 1 - mrope_positions.shape[1]
        return embeddings, mrope_positions, delta


def _with_channels(embeddings: torch.Tensor, coordinates: NDArray[np.int64]) -> torch.Tensor:
    channels = positions.to_channels(torch.from_numpy(coordinates)).to(embeddings.dtype)
    return torch.cat([embeddings, async_tensor_h2d(channels, embeddings.device)], dim=1)
