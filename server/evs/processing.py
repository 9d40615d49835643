"""Processor half: each video's rate and method become its placeholder and part of its identity.

They arrive in ``mm_processor_kwargs`` as ``video_pruning_rate`` and ``video_pruning_method``: one
value, or a list with one entry for each video. Here they are taken out before the HF processor sees
them, folded into each video's hash (so that encoder, processor and prefix cache never mix them),
and turned into the number of tokens to retain, which travels to the model as a field of the video.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.multimodal.processing.processor import BaseMultiModalProcessor, PromptUpdateDetails

from server.evs.arithmetic import checked_method, checked_rate, per_video, retained_tokens
from server.evs.contract import PROCESSOR_METHODS, require_upstream_of
from server.evs.plan import MAX_FINGERPRINT, PruningChoice, PruningPlan
from server.evs.walks import Skeleton, Walk

RATE_KWARG = "video_pruning_rate"
METHOD_KWARG = "video_pruning_method"
"""Keys in ``mm_processor_kwargs``."""
PLAN_FIELD = "video_pruning_plan"
"""Field of each video item: a PruningPlan as a tensor."""
SKELETON_FIELD = "video_skeleton_ids"
"""Field of each video item whose grids have text between them: token ids of its Skeleton."""

_IDENTITY_KWARG = "video_pruning_identity"
"""Where rates and methods are kept, resolved, while one prompt is processed."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """One prompt's media, hashed, and what was asked for its videos."""

    hashes: dict[str, list[str]]
    choices: list[PruningChoice]
    fingerprints: list[int]

    def of_missing(self, is_cached: Sequence[bool]) -> "_Identity":
        """Returns the part that belongs to the videos that are not cached."""
        missing = [i for i, cached in enumerate(is_cached) if not cached]
        return _Identity(
            hashes=self.hashes,
            choices=[self.choices[i] for i in missing],
            fingerprints=[self.fingerprints[i] for i in missing],
        )


@dataclass
class _Placeholder(PromptUpdateDetails):
    """What stands for one video; vLLM caches it beside the video's item."""

    extent: int = 0
    """How far the unpruned video pushes the positions of what follows."""


class PruningProcessor(BaseMultiModalProcessor[Any]):
    """Overrides of vLLM 0.32.0's BaseMultiModalProcessor; each calls upstream without our keys.

    To be mixed into a model's processor, which says how its videos are made of grids.
    """

    prunes_per_video: ClassVar[bool] = True
    pruning_methods: ClassVar[tuple[str, ...]] = ("evs",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_upstream_of(cls, PruningProcessor, PROCESSOR_METHODS)

    @abstractmethod
    def _grid_sizes(self, processed: Mapping[str, Any]) -> list[tuple[int, int]]:
        """Returns temporal grids and tokens per grid of each processed video."""

    def _skeleton_ids(self, processed: Mapping[str, Any]) -> list[list[int]] | None:
        """Returns each video's text with one video token per grid; None for a family without."""
        return None

    @abstractmethod
    def _walk(self, item: Mapping[str, Any]) -> Walk | None:
        """Returns the unpruned placeholder of a processed video; None for a family without M-RoPE.

        Args:
            item: the video's fields, by name.
        """

    def _video_token_id(self) -> int:
        return int(self.info.get_hf_config().video_token_id)

    def _cached_apply_hf_processor(self, inputs: ProcessorInputs, timing_ctx: Any) -> Any:
        # Everything below gets the resolved choices; a wrong one is refused here, once.
        kwargs = dict(inputs.hf_processor_mm_kwargs)
        num_videos = inputs.mm_data_items.get_all_counts().get("video", 0)
        choices = self._take_choices(kwargs, num_videos)
        unpruned = dataclasses.replace(inputs, hf_processor_mm_kwargs=kwargs)
        if self._is_enabled():
            kwargs[_IDENTITY_KWARG] = self._identify(unpruned, choices)
        processed = super()._cached_apply_hf_processor(unpruned, timing_ctx)
        self._check_reach(processed)
        return processed

    def _check_reach(self, processed: Any) -> None:
        """Refuse a prompt whose positions go beyond vLLM's table, which would end the engine.

        Positions are those of the unpruned prompt, so they may outgrow the tokens that are left.
        """
        contents = [
            update.content
            for updates in processed.prompt_updates.get("video", [])
            for update in updates
        ]
        extents = [content.extent for content in contents if isinstance(content, _Placeholder)]
        config = self.info.ctx.model_config
        # Text, images and the answer take no more than the longest prompt has tokens.
        reach = sum(extents) + config.max_model_len
        table = position_table_size(config)
        if any(extents) and reach > table:
            raise ValueError(
                f"the prompt's videos span {sum(extents)} positions before pruning, and with "
                f"{config.max_model_len} tokens of text exceed the {table} that the model's "
                "position table has; send shorter or fewer videos"
            )

    def _is_enabled(self) -> bool:
        return bool(self.info.ctx.get_mm_config().is_multimodal_pruning_enabled())

    def _take_choices(self, kwargs: dict[str, Any], num_videos: int) -> list[PruningChoice]:
        config = self.info.ctx.get_mm_config()
        for key in (RATE_KWARG, METHOD_KWARG):
            if key in (config.mm_processor_kwargs or {}):
                raise ValueError(f"{key} is an argument of the engine; not in mm_processor_kwargs")
        scoped = kwargs.get("videos_kwargs")
        if isinstance(scoped, Mapping) and scoped.keys() & {RATE_KWARG, METHOD_KWARG}:
            # What vLLM lets one say for videos only, says the same here.
            kwargs["videos_kwargs"] = remaining = dict(scoped)
            for key in remaining.keys() & {RATE_KWARG, METHOD_KWARG}:
                kwargs[key] = remaining.pop(key)
        rates = per_video(
            kwargs.pop(RATE_KWARG, None),
            field=RATE_KWARG,
            num_videos=num_videos,
            default=config.video_pruning_rate or 0.0,
            check=checked_rate,
        )
        methods = per_video(
            kwargs.pop(METHOD_KWARG, None),
            field=METHOD_KWARG,
            num_videos=num_videos,
            default=config.video_pruning_method,
            check=partial(checked_method, supported=self.pruning_methods),
        )
        if any(rates) and not self._is_enabled():
            raise ValueError(
                "video_pruning_rate above 0 needs an engine started with a video_pruning_rate "
                "above 0; a very small one, such as 1e-17, prunes nothing by itself"
            )
        return [PruningChoice(*choice) for choice in zip(rates, methods, strict=True)]

    def _identify(self, inputs: ProcessorInputs, choices: list[PruningChoice]) -> _Identity:
        # Upstream folds all kwargs into the hash of every item, images included.
        hashes = dict(super()._get_mm_hashes(inputs))
        algorithm = self.info.ctx.get_mm_config().mm_hasher_algorithm
        if choices:
            hashes["video"] = [
                MultiModalHasher.hash_kwargs(
                    algorithm, video=video_hash, rate=choice.rate, method=choice.method
                )
                for video_hash, choice in zip(hashes["video"], choices, strict=True)
            ]
        videos = hashes.get("video", [])
        fingerprints = [1 + int(video[:16], 16) % MAX_FINGERPRINT for video in videos]
        if len(set(fingerprints)) < len(set(videos)):
            raise ValueError("two videos of this prompt can not be told apart; change one's rate")
        return _Identity(hashes=hashes, choices=choices, fingerprints=fingerprints)

    def _get_mm_hashes(self, inputs: ProcessorInputs) -> Any:
        identity = inputs.hf_processor_mm_kwargs.get(_IDENTITY_KWARG)
        if isinstance(identity, _Identity):
            return identity.hashes
        return super()._get_mm_hashes(inputs)

    def _get_cache_missing_processor_kwargs(
        self, inputs: ProcessorInputs, mm_is_cached: Any
    ) -> Mapping[str, object]:
        kwargs, identity = _split(inputs.hf_processor_mm_kwargs)
        others = dataclasses.replace(inputs, hf_processor_mm_kwargs=kwargs)
        missing = dict(super()._get_cache_missing_processor_kwargs(others, mm_is_cached))
        if identity is not None:
            missing[_IDENTITY_KWARG] = identity.of_missing(mm_is_cached.get("video", []))
        return missing

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        kwargs, identity = _split(hf_kwargs)
        processed = super()._apply_hf_processor_main(mm_items, kwargs)
        if identity is not None and identity.choices:
            processed[PLAN_FIELD] = torch.stack(
                [plan.to_tensor() for plan in self._plans(processed, identity)]
            )
            skeletons = self._skeleton_ids(processed)
            if skeletons is not None:
                processed[SKELETON_FIELD] = [torch.tensor(ids) for ids in skeletons]
        return processed

    def _plans(self, processed: Mapping[str, Any], identity: _Identity) -> Iterable[PruningPlan]:
        for (num_grids, tokens_per_grid), choice, fingerprint in zip(
            self._grid_sizes(processed), identity.choices, identity.fingerprints, strict=True
        ):
            yield PruningPlan(
                choice=choice,
                num_video_tokens=num_grids * tokens_per_grid,
                num_retained=retained_tokens(
                    tokens_per_grid=tokens_per_grid,
                    num_grids=num_grids,
                    rate=choice.rate,
                    method=choice.method,
                ),
                fingerprint=fingerprint,
            )

    def _get_mm_fields_config(
        self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]
    ) -> Mapping[str, MultiModalFieldConfig]:
        kwargs, identity = _split(hf_processor_mm_kwargs)
        fields = dict(super()._get_mm_fields_config(hf_inputs, kwargs))
        if identity is not None:
            for name in (PLAN_FIELD, SKELETON_FIELD):
                fields[name] = MultiModalFieldConfig.batched("video", keep_on_cpu=True)
        return fields

    def _get_prompt_updates(
        self, mm_items: Any, hf_processor_mm_kwargs: Mapping[str, object], out_mm_kwargs: Any
    ) -> Sequence[Any]:
        kwargs, identity = _split(hf_processor_mm_kwargs)
        updates = super()._get_prompt_updates(mm_items, kwargs, out_mm_kwargs)
        if identity is None:
            return updates
        return [
            dataclasses.replace(update, replacement=partial(self._placeholder, out_mm_kwargs))
            if update.modality == "video"
            else update
            for update in updates
        ]

    def _placeholder(self, out_mm_kwargs: Any, item_idx: int) -> PromptUpdateDetails:
        item = out_mm_kwargs["video"][item_idx]
        fields = {name: element.data for name, element in item.items()}
        details = self._details(fields, PruningPlan.from_tensor(fields[PLAN_FIELD]))
        walk = self._walk(fields)
        return _Placeholder(details.full, details.is_embed, 0 if walk is None else walk.extent)

    def _details(self, fields: Mapping[str, Any], plan: PruningPlan) -> PromptUpdateDetails:
        video_token_id = self._video_token_id()
        if SKELETON_FIELD not in fields:
            return PromptUpdateDetails.from_seq([video_token_id] * plan.num_retained)
        skeleton = Skeleton.of(fields[SKELETON_FIELD].numpy(), video_token_id=video_token_id)
        ids = skeleton.placeholder(
            tokens_per_grid=plan.num_video_tokens // skeleton.num_grids,
            num_retained=plan.num_retained,
        )
        if plan.prunes:
            return PromptUpdateDetails.from_seq(ids)
        return self._whole_placeholder(ids)

    def _whole_placeholder(self, token_ids: list[int]) -> PromptUpdateDetails:
        """Returns the placeholder of a video of which nothing is removed."""
        return PromptUpdateDetails.select_token_id(token_ids, self._video_token_id())


def _split(kwargs: Mapping[str, object]) -> tuple[dict[str, object], _Identity | None]:
    others = dict(kwargs)
    identity = others.pop(_IDENTITY_KWARG, None)
    return others, identity if isinstance(identity, _Identity) else None


def position_table_size(model_config: Any) -> int:
    """Returns how many positions vLLM's MRotaryEmbedding has a table for."""
    return 4 * int(model_config.hf_text_config.max_position_embeddings)


def merged_grid_sizes(processed: Mapping[str, Any], info: Any) -> list[tuple[int, int]]:
    """Returns temporal grids and tokens per grid of videos that have a ``video_grid_thw``."""
    config = info.get_hf_config()
    grids = [token_grid(grid_thw, config) for grid_thw in processed["video_grid_thw"]]
    return [(num_grids, height * width) for num_grids, height, width in grids]


def token_grid(grid_thw: torch.Tensor, hf_config: Any) -> tuple[int, int, int]:
    """Returns temporal grids, rows and columns of tokens from those of patches."""
    merge_size = hf_config.vision_config.spatial_merge_size
    num_grids, height, width = grid_thw.tolist()
    return num_grids, height // merge_size, width // merge_size
