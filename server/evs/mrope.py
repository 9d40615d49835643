"""Model half of the families with M-RoPE: exact positions, each video pruned by its own plan."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.platforms import current_platform

from server.evs import positions
from server.evs.contract import MROPE_METHODS, require_upstream_of
from server.evs.plan import PruningPlan, plans_from_field
from server.evs.processing import PLAN_FIELD, SKELETON_FIELD, token_grid
from server.evs.rows import retained_rows, text_embeddings, with_positions, without_positions
from server.evs.runner import keep_delta_in_rope_state, lay_out_marks_alone
from server.evs.walks import Skeleton, Walk, image_grid

_DELTA = "mrope_position_delta"
"""Attribute of the positions that a request was laid out with."""


class PruningModel:
    """Overrides of vLLM 0.32.0's Qwen-VL model classes, to be mixed in before one of them.

    Each because upstream takes one rate for the whole engine or moves positions:
    ``embed_multimodal``, ``get_mrope_input_positions``, ``recompute_mrope_positions``.
    Without pruning (no rate at engine start) all three are upstream's.
    """

    config: Any
    is_multimodal_pruning_enabled: bool
    prunes_per_video: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_upstream_of(cls, PruningModel, MROPE_METHODS)

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]  # upstream's
        if self.is_multimodal_pruning_enabled and get_pp_group().world_size > 1:
            raise ValueError(
                "video pruning needs pipeline_parallel_size 1: only the first stage sees the "
                "encoder's rows, and every stage needs the positions that they bring"
            )
        if self.is_multimodal_pruning_enabled:
            lay_out_marks_alone()
            # Model Runner V2 is not to be had on a CPU, where importing it costs Triton.
            if not current_platform.is_cpu():
                keep_delta_in_rope_state()

    @abstractmethod
    def _walk(self, fields: Mapping[str, Any]) -> Walk:
        """Returns the unpruned placeholder of a video.

        Args:
            fields: the video's fields, by name: of one item, no batch.
        """

    def embed_multimodal(self, **kwargs: Any) -> Any:
        """Returns one tensor per media item: retained embeddings and their position channels.

        Upstream prunes every video at ``self.video_pruning_rate`` and appends positions that the
        model's own float type rounds.
        """
        plans = kwargs.pop(PLAN_FIELD, None)
        skeletons = kwargs.pop(SKELETON_FIELD, None)
        if not self.is_multimodal_pruning_enabled:
            return super().embed_multimodal(**kwargs)  # type: ignore[misc]  # upstream's
        rows: list[torch.Tensor] = []
        model: Any = self
        for modality, media in model._parse_and_validate_multimodal_inputs(**kwargs).items():
            if modality == "image":
                rows += map(without_positions, model._process_image_input(media))
            else:
                videos = model._process_video_input(media)
                fields = self._video_fields(media, skeletons, num_videos=len(videos))
                rows += map(
                    self._video_rows,
                    videos,
                    plans_from_field(plans, num_videos=len(videos)),
                    fields,
                )
        return tuple(rows)

    def _video_fields(
        self, media: Any, skeletons: Any, *, num_videos: int
    ) -> Iterator[dict[str, Any]]:
        for index in range(num_videos):
            fields = {name: media[name] for name in ("video_grid_thw", "second_per_grid_ts")}
            fields[SKELETON_FIELD] = skeletons
            yield {k: values[index] for k, values in fields.items() if values is not None}

    def _video_rows(
        self, embeddings: torch.Tensor, plan: PruningPlan, fields: dict[str, Any]
    ) -> torch.Tensor:
        if not plan.prunes:
            return without_positions(embeddings)
        num_grids, _, _ = token_grid(fields["video_grid_thw"], self.config)
        skeleton = skeleton_of(fields, num_grids=num_grids, config=self.config)
        rows, relative = retained_rows(
            embeddings,
            text_embeddings(self, skeleton, embeddings.device),
            self._walk(fields),
            plan,
            num_grids=num_grids,
        )
        return with_positions(rows, relative, plan)

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[Any]
    ) -> tuple[torch.Tensor, int]:
        """Returns positions and marks (3, N), final for text, and the delta of generated tokens.

        Upstream walks the pruned placeholders, so everything behind the first video is shifted.
        """
        if not self.is_multimodal_pruning_enabled:
            laid_out: tuple[torch.Tensor, int] = super().get_mrope_input_positions(  # type: ignore[misc]  # upstream's
                input_tokens, mm_features
            )
            return laid_out
        features = sorted(mm_features, key=lambda feature: int(feature.mm_position.offset))
        prompt, delta = positions.lay_out(len(input_tokens), [self._span(f) for f in features])
        setattr(prompt, _DELTA, delta)
        return prompt, delta

    def _span(self, feature: Any) -> positions.MediaSpan:
        offset = feature.mm_position.offset
        fields = {name: element.data for name, element in feature.data.items()}
        if feature.modality == "image":
            _, height, width = token_grid(fields["image_grid_thw"], self.config)
            return positions.WholeSpan(offset, image_grid(height, width))
        plan = PruningPlan.from_tensor(fields[PLAN_FIELD])
        walk = self._walk(fields)
        if not plan.prunes:
            return positions.WholeSpan(offset, walk.relative)
        return positions.PrunedSpan(
            offset, feature.mm_position.length, walk.extent, plan.fingerprint
        )

    def recompute_mrope_positions(
        self,
        input_ids: list[int] | torch.Tensor,
        multimodal_embeddings: Sequence[torch.Tensor],
        mrope_positions: torch.Tensor,
        num_computed_tokens: int,
    ) -> tuple[Sequence[torch.Tensor], torch.Tensor, int | None]:
        """Returns embeddings without channels, the prompt's positions, and the delta.

        Called for each request in each step; without media in the chunk it costs O(1). Upstream
        clones and reduces the whole prompt's positions each time.

        The delta never changes. Model Runner V2 comes with positions read back from the device,
        which do not carry it, and gets None: its RopeState keeps what it has (server.evs.runner).
        """
        width = positions.NUM_CHANNELS
        if multimodal_embeddings:
            positions.write_retained(
                [rows[:, -width:] for rows in multimodal_embeddings],
                mrope_positions,
                num_computed_tokens=num_computed_tokens,
            )
        embeddings = [rows[:, :-width] for rows in multimodal_embeddings]
        return embeddings, mrope_positions, getattr(mrope_positions, _DELTA, None)


def skeleton_of(fields: Mapping[str, Any], *, num_grids: int, config: Any) -> Skeleton:
    """Returns the skeleton of a video from its fields."""
    token_ids = fields.get(SKELETON_FIELD)
    if token_ids is None:
        return Skeleton.without_text(num_grids, video_token_id=config.video_token_id)
    return Skeleton.of(token_ids.numpy(), video_token_id=config.video_token_id)
