"""Prompts with media, counted token by token, as Model Runner V2 is handed them after pruning."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import pad
from vllm.multimodal.inputs import (
    MultiModalFeatureSpec,
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.multimodal.video_prune import evs, vidcom2
from vllm.platforms import current_platform

from server.evs import qwen2_5_vl, qwen3_vl
from server.evs.plan import MAX_FINGERPRINT, PruningChoice, PruningPlan
from server.evs.processing import PLAN_FIELD, SKELETON_FIELD

DEVICE = torch.device(current_platform.device_type)
HIDDEN = 8
IMAGE, VIDEO, START, END, TIMESTAMP, WORD = 1, 2, 3, 4, 5, 10
"""Token ids; TIMESTAMP and WORD begin ranges, of 5 and of the rest."""
VOCABULARY = 64
MERGE = 2
"""Patches along each edge of a token."""
TOKENS_PER_SECOND = 2
MAX_REQUESTS, MAX_TOKENS = 4, 512
VLLM_KEEPS = {"evs": evs.compute_retention_mask, "vidcom2": vidcom2.compute_retention_mask}


@dataclass(frozen=True)
class Image:
    """A picture of so many rows and columns of tokens."""

    height: int
    width: int
    seed: int


@dataclass(frozen=True)
class Video:
    """A video, pruned at its own rate."""

    num_grids: int
    height: int
    width: int
    seed: int
    rate: float = 0.0
    fingerprint: int = 1
    method: str = "evs"
    seconds: float = 1.5
    """Per temporal grid."""

    @property
    def grid(self) -> tuple[int, int, int]:
        """As processors count, in patches."""
        return self.num_grids, self.height * MERGE, self.width * MERGE


@dataclass(frozen=True)
class Family:
    """What differs between the model classes."""

    name: str
    model_class: type
    has_timestamps: bool
    deepstack_levels: int = 0

    @property
    def width(self) -> int:
        """Of a video token's embedding, deepstack included."""
        return HIDDEN * (1 + self.deepstack_levels)


QWEN2_5 = Family("qwen2_5_vl", qwen2_5_vl.Qwen2_5_VLForConditionalGeneration, False)
QWEN3_FLAT = Family("qwen3_flat", qwen3_vl.Qwen3VLForConditionalGeneration, True)
"""Without deepstack, as Qwen3.5 is."""
QWEN3 = Family("qwen3_vl", qwen3_vl.Qwen3VLForConditionalGeneration, True, deepstack_levels=2)
each_family = pytest.mark.parametrize(
    "family", [QWEN2_5, QWEN3_FLAT, QWEN3], ids=lambda family: family.name
)

HALF = Video(3, 2, 3, seed=1, rate=0.5, fingerprint=MAX_FINGERPRINT)
QUARTER = Video(3, 2, 3, seed=1, rate=0.75, fingerprint=7)
WHOLE = Video(2, 3, 2, seed=2, fingerprint=8)
PROMPTS: dict[str, Sequence[Any]] = {
    "text": [5],
    "mixed": [2, Image(2, 2, seed=9), 1, HALF, 3, WHOLE, 2],
    "other rate": [3, QUARTER, 2, Video(2, 2, 2, seed=4, rate=0.4, fingerprint=2**30), 1],
    "same video": [6, HALF, 1],
}
"""Numbers are words of text. All at once in one batch; two share a video."""


@dataclass(frozen=True)
class Token:
    """One token of a pruned prompt, and what the language model must be given for it."""

    token_id: int
    position: tuple[int, int, int]
    """In the unpruned prompt."""
    row: torch.Tensor
    """Its embedding, deepstack behind it. Shape (width,)."""
    medium: int | None = None
    """Index of the image or video that its row comes from."""


@dataclass
class Prompt:
    """A prompt after pruning, as the processor half and the scheduler hand it to the runner."""

    tokens: list[Token] = field(default_factory=list)
    features: list[MultiModalFeatureSpec] = field(default_factory=list)
    next_position: int = 0

    @property
    def token_ids(self) -> list[int]:
        """The placeholders' ids lump what is kept, so they are not in the tokens' order."""
        ids = [token.token_id for token in self.tokens]
        for feature in self.features:
            place = feature.mm_position
            if feature.modality == "video" and place.is_embed is None:
                span = ids[place.offset : place.offset + place.length]
                kept = [i for i in span if i == VIDEO]
                text = [i for i in span if i != VIDEO]
                first = text.index(START) + 1 if text else 0
                ids[place.offset : place.offset + place.length] = text[:first] + kept + text[first:]
        return ids

    def positions(self) -> list[tuple[int, int, int]]:
        return [token.position for token in self.tokens]

    def rows(self) -> torch.Tensor:
        return torch.stack([token.row for token in self.tokens])


def table(dtype: torch.dtype) -> torch.Tensor:
    """The language model's embeddings."""
    return random_rows(VOCABULARY, HIDDEN, 0, dtype)


def random_rows(count: int, width: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator).to(dtype)


def prompt_of(
    family: Family, parts: Sequence[Any], dtype: torch.dtype = torch.float32, *, prune: bool = True
) -> Prompt:
    """Counts positions token by token, and then leaves out what vLLM's rule does not keep."""
    prompt = Prompt()
    words = iter(range(WORD, VOCABULARY))
    for part in parts:
        if isinstance(part, int):
            for _ in range(part):
                prompt.tokens.append(text_token(family, next(words), prompt.next_position, dtype))
                prompt.next_position += 1
        else:
            add_medium(prompt, family, part, dtype, prune=prune)
    return prompt


def text_token(family: Family, token_id: int, position: int, dtype: torch.dtype) -> Token:
    row = pad(table(dtype)[token_id], (0, family.width - HIDDEN))
    return Token(token_id, (position,) * 3, row)


def add_medium(
    prompt: Prompt, family: Family, medium: Any, dtype: torch.dtype, *, prune: bool
) -> None:
    index, offset = len(prompt.features), len(prompt.tokens)
    walk = walked(family, medium, prompt.next_position)
    is_visual = [token_id in (IMAGE, VIDEO) for token_id, _ in walk]
    rows = random_rows(sum(is_visual), family.width, medium.seed, dtype)
    keep = [True] * len(rows)
    if isinstance(medium, Video) and medium.rate and prune:
        vllm_keeps = VLLM_KEEPS[medium.method]
        keep = vllm_keeps(rows, medium.grid, spatial_merge_size=MERGE, q=medium.rate).tolist()
    of_visual = iter(zip(rows, keep, strict=True))
    for token_id, position in walk:
        if token_id in (IMAGE, VIDEO):
            row, is_kept = next(of_visual)
            if is_kept:
                prompt.tokens.append(Token(token_id, position, row, index))
        else:
            # The text of a pruned video's placeholder comes from the encoder, too.
            text = text_token(family, token_id, position[0], dtype)
            owner = None if all(keep) else index
            prompt.tokens.append(dataclasses.replace(text, medium=owner))
    prompt.next_position = 1 + max(max(position) for _, position in walk)
    prompt.features.append(
        feature_of(family, medium, rows, sum(keep), prompt.tokens[offset:], offset)
    )


def walked(family: Family, medium: Any, start: int) -> list[tuple[int, tuple[int, int, int]]]:
    """Returns token ids and positions of an unpruned medium that starts there."""
    walk: list[tuple[int, tuple[int, int, int]]] = []
    if isinstance(medium, Image):
        for y, x in np.ndindex(medium.height, medium.width):
            walk.append((IMAGE, (start, start + y, start + x)))
    elif not family.has_timestamps:
        for grid, y, x in np.ndindex(medium.num_grids, medium.height, medium.width):
            time = start + int(grid * medium.seconds * TOKENS_PER_SECOND)
            walk.append((VIDEO, (time, start + y, start + x)))
    else:
        for grid in range(medium.num_grids):
            for token_id in timestamp(grid):
                walk.append((token_id, (start,) * 3))
                start += 1
            for y, x in np.ndindex(medium.height, medium.width):
                walk.append((VIDEO, (start, start + y, start + x)))
            start += max(medium.height, medium.width)
            walk.append((END, (start,) * 3))
            start += 1
    return walk


def timestamp(grid: int) -> list[int]:
    """Returns the text before a grid, of one word or two."""
    return [TIMESTAMP + grid] * (1 + grid % 2) + [START]


def feature_of(
    family: Family,
    medium: Any,
    rows: torch.Tensor,
    num_retained: int,
    tokens: Sequence[Token],
    offset: int,
) -> MultiModalFeatureSpec:
    kind = "video" if isinstance(medium, Video) else "image"
    is_embed = None
    if any(token.medium is None for token in tokens):
        is_embed = torch.tensor([token.medium is not None for token in tokens])
    if kind == "image":
        item = image_item(medium, rows)
    else:
        plan = PruningPlan(
            PruningChoice(medium.rate, medium.method), len(rows), num_retained, medium.fingerprint
        )
        item = video_item(family, medium, rows, plan)
    return MultiModalFeatureSpec(
        data=item,
        modality=kind,
        identifier=repr(medium),
        mm_position=PlaceholderRange(offset, len(tokens), is_embed),
    )


def image_item(image: Image, rows: torch.Tensor) -> MultiModalKwargsItem:
    inputs = {
        "pixel_values": rows,
        "image_grid_thw": torch.tensor([[1, image.height * MERGE, image.width * MERGE]]),
    }
    fields = {
        "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", torch.tensor([len(rows)])),
        "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
    }
    return MultiModalKwargsItems.from_hf_inputs(inputs, fields)["image"][0]


def video_item(
    family: Family, video: Video, rows: torch.Tensor, plan: PruningPlan
) -> MultiModalKwargsItem:
    inputs: dict[str, Any] = {
        "pixel_values_videos": rows,
        "video_grid_thw": torch.tensor([video.grid]),
        PLAN_FIELD: plan.to_tensor()[None],
    }
    if family.has_timestamps:
        skeleton = [[*timestamp(grid), VIDEO, END] for grid in range(video.num_grids)]
        inputs[SKELETON_FIELD] = [torch.tensor([i for ids in skeleton for i in ids])]
    else:
        inputs["second_per_grid_ts"] = torch.tensor([video.seconds])
    fields = dict.fromkeys(inputs, MultiModalFieldConfig.batched("video", keep_on_cpu=True))
    fields["pixel_values_videos"] = MultiModalFieldConfig.flat_from_sizes(
        "video", torch.tensor([len(rows)])
    )
    return MultiModalKwargsItems.from_hf_inputs(inputs, fields)["video"][0]
