"""Pruning under vLLM's Model Runner V2, by its own classes, without weights.

What stands in for something real:

- the vision tower hands out its input, the language model is one table of embeddings;
- ``VllmConfig`` and ``ModelConfig`` hold what ``DefaultModelState`` reads of them, unvalidated;
- on a CPU, V2's kernels run in Triton's interpreter, and V2's own ``NonUvaBuffer`` takes the place
  of pinned memory. On a GPU neither is replaced.
"""

import dataclasses
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2_5_VLConfig, Qwen3VLConfig
from vllm.config import ModelConfig, MultiModalConfig
from vllm.multimodal.inputs import (
    MultiModalFeatureSpec,
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.multimodal.utils import strip_covered_mm_data
from vllm.multimodal.video_prune import evs, vidcom2
from vllm.platforms import current_platform
from vllm.transformers_utils.model_arch_config_convertor import (
    MODEL_ARCH_CONFIG_CONVERTORS,
    ModelArchConfigConvertorBase,
)
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.mm import rope
from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache
from vllm.v1.worker.gpu.mm.encoder_runner import EncoderRunner
from vllm.v1.worker.gpu.mm.rope import RopeState
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.model_states.interface import ModelState
from vllm.v1.worker.gpu.states import RequestState

from server.evs import qwen2_5_vl, qwen3_vl
from server.evs.arithmetic import ENABLED_AT_RATE_ZERO
from server.evs.plan import MAX_FINGERPRINT, PruningChoice, PruningPlan
from server.evs.positions import NUM_CHANNELS
from server.evs.processing import PLAN_FIELD, SKELETON_FIELD
from server.evs.runner import keep_delta_in_rope_state

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


class Tower(torch.nn.Module):
    """A vision tower whose pixels are its embeddings."""

    spatial_merge_size = MERGE

    def forward(self, pixels: torch.Tensor, grid_thw: Any) -> torch.Tensor:
        return pixels


class Language(torch.nn.Module):
    """A language model that only embeds."""

    def __init__(self, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding.from_pretrained(vllm_config)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model.embed_tokens(input_ids)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def config_of(family: Family) -> Any:
    tokens = {
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": START,
        "vision_end_token_id": END,
    }
    text = {
        "hidden_size": HIDDEN,
        "vocab_size": VOCABULARY,
        "num_hidden_layers": 3,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]},
    }
    vision = {"spatial_merge_size": MERGE, "out_hidden_size": HIDDEN}
    if family is QWEN2_5:
        vision["tokens_per_second"] = TOKENS_PER_SECOND
        return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **tokens)
    levels = list(range(family.deepstack_levels))
    return Qwen3VLConfig(
        text_config=text,
        vision_config={**vision, "deepstack_visual_indexes": levels},
        **tokens,
    )


def model_of(
    family: Family,
    dtype: torch.dtype = torch.float32,
    device: torch.device = DEVICE,
    *,
    prunes: bool = True,
) -> Any:
    """Our class as vLLM makes it, but for its weights."""
    model: Any = family.model_class.__new__(family.model_class)
    torch.nn.Module.__init__(model)
    model.config = config_of(family)
    model.is_multimodal_pruning_enabled = prunes
    model.use_data_parallel = False
    model.visual = Tower()
    model.language_model = Language(table(dtype).to(device))
    model.use_deepstack = family.deepstack_levels > 0
    model.deepstack_num_level = family.deepstack_levels
    model.visual_dim = HIDDEN
    model.multiscale_dim = HIDDEN * family.deepstack_levels
    if model.use_deepstack:
        model.deepstack_input_embeds = [
            torch.zeros(MAX_TOKENS, HIDDEN, dtype=dtype, device=device)
            for _ in range(family.deepstack_levels)
        ]
        model.deepstack_input_embeds_num_tokens = 0
    return model


def model_config_of(
    family: Family, dtype: torch.dtype = torch.float32, *, rate: float | None = 0.5
) -> ModelConfig:
    """vLLM's own answers about a configuration that it has not looked up on disk."""
    config = ModelConfig.__new__(ModelConfig)
    config.hf_config = config_of(family)
    config.hf_text_config = config.hf_config.get_text_config()
    assert config.hf_config.model_type not in MODEL_ARCH_CONFIG_CONVERTORS
    convertor = ModelArchConfigConvertorBase(config.hf_config, config.hf_text_config)
    config.model_arch_config = types.SimpleNamespace(hidden_size=convertor.get_hidden_size())
    config.multimodal_config = MultiModalConfig(video_pruning_rate=rate)
    config.max_model_len = MAX_TOKENS
    config.dtype = dtype
    config.enforce_eager = True
    config.enable_prompt_embeds = False
    return config


def state_of(
    family: Family, dtype: torch.dtype = torch.float32, *, rate: float | None = 0.5
) -> DefaultModelState:
    config: Any = types.SimpleNamespace(
        model_config=model_config_of(family, dtype, rate=rate),
        scheduler_config=types.SimpleNamespace(
            max_num_seqs=MAX_REQUESTS, max_num_batched_tokens=MAX_TOKENS
        ),
        compilation_config=types.SimpleNamespace(cudagraph_mm_encoder=False),
        observability_config=None,
    )
    return DefaultModelState(config, model_of(family, dtype), EncoderCache(), DEVICE)


@dataclass(frozen=True)
class Window:
    """What the language model is given for one request in one step."""

    positions: list[tuple[int, ...]]
    rows: torch.Tensor


class Runner:
    """Around a DefaultModelState, what V2's GPUModelRunner does before and after a forward pass."""

    def __init__(self, family: Family, dtype: torch.dtype = torch.float32) -> None:
        self.state = state_of(family, dtype)
        self.model: Any = self.state.model
        self.cache = self.state.encoder_cache
        self.requests = RequestState(
            MAX_REQUESTS, MAX_TOKENS, MAX_TOKENS, 0, VOCABULARY, device=DEVICE
        )

    def add(
        self, name: str, prompt: Prompt, *, generated: Sequence[int] = (), num_computed: int = 0
    ) -> None:
        token_ids = [*prompt.token_ids, *generated]
        data = NewRequestData(
            req_id=name,
            prompt_token_ids=prompt.token_ids,
            mm_features=strip_covered_mm_data(prompt.features, num_computed, uses_mrope=True),
            sampling_params=None,
            pooling_params=None,
            block_ids=([],),
            num_computed_tokens=num_computed,
            lora_request=None,
            prefill_token_ids=token_ids,
        )
        self.requests.add_request(name, len(prompt.tokens), token_ids, num_computed, 1)
        self.cache.add_request(name, data.mm_features)
        self.state.add_request(self.requests.req_id_to_index[name], data)
        self.requests.apply_staged_writes()
        self.state.apply_staged_writes()

    def remove(self, name: str) -> None:
        self.requests.remove_request(name)
        self.cache.remove_request(name)
        self.state.remove_request(name)

    def unprefilled(self, name: str) -> int:
        """How many prompt tokens are still to be computed."""
        index = self.requests.req_id_to_index[name]
        return int(
            self.requests.prefill_len.np[index] - self.requests.num_computed_tokens_np[index]
        )

    def batch(self, windows: dict[str, int]) -> InputBatch:
        """Returns the batch of a step that computes so many tokens of each request."""
        slots = np.array([self.requests.req_id_to_index[name] for name in windows])
        scheduled = np.array(list(windows.values()), dtype=np.int32)
        starts = np.concatenate([[0], np.cumsum(scheduled)]).astype(np.int32)
        computed = self.requests.num_computed_tokens_np[slots]
        prefill = self.requests.prefill_len.np[slots]
        num_reqs, num_tokens = len(slots), int(scheduled.sum())
        mapping = torch.from_numpy(slots).to(DEVICE)
        input_ids = torch.cat(
            [
                self.requests.all_token_ids.gpu[slot, start : start + count]
                for slot, start, count in zip(slots, computed, scheduled, strict=True)
            ]
        )
        lengths = torch.from_numpy(computed + scheduled)
        unused: Any = None
        return InputBatch(
            req_ids=list(windows),
            num_reqs=num_reqs,
            num_reqs_after_padding=num_reqs,
            idx_mapping=mapping,
            idx_mapping_np=slots,
            expanded_idx_mapping=mapping,
            expanded_local_pos=unused,
            num_scheduled_tokens=scheduled,
            num_tokens=num_tokens,
            num_tokens_after_padding=num_tokens,
            num_draft_tokens=0,
            num_draft_tokens_per_req=None,
            query_start_loc=torch.from_numpy(starts).to(DEVICE),
            query_start_loc_np=starts,
            seq_lens=lengths.to(DEVICE),
            seq_lens_cpu_upper_bound=lengths,
            dcp_local_seq_lens=None,
            num_computed_tokens_np=computed,
            prefill_len_np=prefill,
            num_computed_prefill_tokens_np=np.minimum(computed, prefill),
            is_prefilling_np=computed < prefill,
            has_prefill=bool((computed < prefill).any()),
            decode_graph_eligible=False,
            input_ids=input_ids,
            positions=unused,
            is_padding=unused,
            logits_indices=unused,
            cu_num_logits=unused,
            cu_num_logits_np=unused,
            has_structured_output_reqs=False,
            prompt_lens=None,
        )

    def encoder_inputs(self, batch: InputBatch) -> dict[str, list[int]]:
        """What the scheduler has encoded for the batch: the media that its windows touch."""
        ends = batch.num_computed_tokens_np + batch.num_scheduled_tokens
        return {
            name: [
                index
                for index, feature in enumerate(self.cache.mm_features[name])
                if feature.mm_position.offset < end
                and feature.mm_position.offset + feature.mm_position.length > start
            ]
            for name, start, end in zip(
                batch.req_ids, batch.num_computed_tokens_np, ends, strict=True
            )
        }

    def forward(self, batch: InputBatch) -> dict[str, Window]:
        """Returns what the language model is given."""
        embeds = self.state.prepare_inputs_embeds(
            self.encoder_inputs(batch), batch, self.requests
        ).clone()
        if self.model.use_deepstack:
            levels = self.model._get_deepstack_input_embeds(batch.num_tokens)
            embeds = torch.cat([embeds, *(levels[name] for name in levels.tensors)], dim=1)
            self.model._clear_deepstack_input_embeds(batch.num_tokens)
        positions = self.state.prepare_inputs(batch, self.requests)["positions"]
        assert positions is not None
        rows = embeds.cpu()
        triples = [tuple(triple) for triple in positions.T.tolist()]
        spans = zip(batch.query_start_loc_np, batch.query_start_loc_np[1:], strict=False)
        return {
            name: Window(triples[start:end], rows[start:end])
            for name, (start, end) in zip(batch.req_ids, spans, strict=True)
        }

    def finish(self, batch: InputBatch) -> None:
        """Count the batch's tokens as computed."""
        for slot, count in zip(batch.idx_mapping_np, batch.num_scheduled_tokens, strict=True):
            self.requests.num_computed_tokens_np[slot] += count
            computed = int(self.requests.num_computed_tokens_np[slot])
            self.requests.num_computed_tokens.stage_write_elem(int(slot), computed)
        self.requests.apply_staged_writes()

    def step(self, windows: dict[str, int]) -> dict[str, Window]:
        batch = self.batch(windows)
        given = self.forward(batch)
        self.finish(batch)
        return given

    def stored_positions(self, name: str, prompt: Prompt) -> list[tuple[int, ...]]:
        index = self.requests.req_id_to_index[name]
        stored = self.state.rope_state.read_prefill_positions(index, len(prompt.tokens))
        return [tuple(triple) for triple in stored.T.tolist()]


@pytest.fixture(autouse=True)
def kernels_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs V2's kernels in Triton's interpreter on a CPU, for which vLLM switches Triton off."""
    if not current_platform.is_cpu():
        return
    import triton.language
    from triton.runtime.interpreter import InterpretedFunction

    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
    for module, name in (
        (buffer_utils, "_apply_write_kernel"),
        (rope, "_prepare_rope_positions_kernel"),
    ):
        monkeypatch.setattr(module, "tl", triton.language)
        monkeypatch.setattr(module, name, InterpretedFunction(getattr(module, name)))


@pytest.fixture
def upstream_update(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """vLLM's own update, in force until the test changes it and again after the test."""
    update = RopeState.update_prefill_positions
    upstream: Callable[..., None] = getattr(update, "__wrapped__", update)
    monkeypatch.setattr(RopeState, "update_prefill_positions", upstream)
    return upstream


@pytest.fixture
def kept_delta(upstream_update: Callable[..., None]) -> None:
    """The plugin's one change to V2, taken back after the test."""
    keep_delta_in_rope_state()


def rope_state() -> RopeState:
    return RopeState(3, MAX_REQUESTS, MAX_TOKENS, MAX_TOKENS, DEVICE)


def prompts_of(family: Family, dtype: torch.dtype = torch.float32) -> dict[str, Prompt]:
    return {name: prompt_of(family, parts, dtype) for name, parts in PROMPTS.items()}


@each_family
def test_the_loop_that_counts_positions_here_agrees_with_vllm(family):
    prompt = prompt_of(family, PROMPTS["mixed"], prune=False)

    positions, delta = model_of(family, prunes=False).get_mrope_input_positions(
        prompt.token_ids, prompt.features
    )

    assert [tuple(triple) for triple in positions.T.tolist()] == prompt.positions()
    assert len(prompt.tokens) + delta == prompt.next_position


@each_family
def test_marks_and_positions_survive_the_states_of_several_requests(family):
    state, model = rope_state(), model_of(family)
    prompts = prompts_of(family)
    laid_out = [model.get_mrope_input_positions(p.token_ids, p.features) for p in prompts.values()]

    for index, prompt in enumerate(prompts.values()):
        state.init_prefill_positions(index, model, prompt.token_ids, prompt.features)
    state.apply_staged_writes()

    for index, (positions, delta) in enumerate(laid_out):
        stored = state.read_prefill_positions(index, positions.shape[1])
        assert stored.dtype == torch.int32
        assert stored.tolist() == positions.tolist()
        assert state.prefill_delta.np[index] == delta
    lowest = [int(positions.min()) for positions, _ in laid_out]
    assert lowest == [0, -1 - MAX_FINGERPRINT, -1 - 2**30, -1 - MAX_FINGERPRINT]


@each_family
def test_only_tokens_of_pruned_videos_wait_for_the_encoder(family):
    model = model_of(family)

    for prompt in prompts_of(family).values():
        positions, delta = model.get_mrope_input_positions(prompt.token_ids, prompt.features)
        plans = [
            PruningPlan.from_tensor(f.data[PLAN_FIELD].data) if f.modality == "video" else None
            for f in prompt.features
        ]
        for token, triple in zip(prompt.tokens, positions.T.tolist(), strict=True):
            plan = None if token.medium is None else plans[token.medium]
            if plan is not None and plan.prunes:
                assert max(triple) < 0
            else:
                assert tuple(triple) == token.position
        assert len(prompt.tokens) + delta == prompt.next_position


def test_final_positions_written_back_leave_other_requests_alone(kept_delta):
    state, model = rope_state(), model_of(QWEN3)
    prompts = list(prompts_of(QWEN3).values())
    for index, prompt in enumerate(prompts):
        state.init_prefill_positions(index, model, prompt.token_ids, prompt.features)
    state.apply_staged_writes()
    before = state.prefill_positions.gpu.clone()

    final = torch.tensor(prompts[1].positions(), device=DEVICE).T
    state.update_prefill_positions(1, final, None)

    assert state.read_prefill_positions(1, final.shape[1]).tolist() == final.tolist()
    others = [row for row in range(3 * MAX_REQUESTS) if row not in (3, 4, 5)]
    assert torch.equal(state.prefill_positions.gpu[others], before[others])


def test_the_delta_of_the_layout_outlives_an_update_without_one(kept_delta):
    state, model = rope_state(), model_of(QWEN2_5)
    prompt = prompt_of(QWEN2_5, PROMPTS["mixed"])
    state.init_prefill_positions(2, model, prompt.token_ids, prompt.features)
    state.apply_staged_writes()

    state.update_prefill_positions(2, state.read_prefill_positions(2, 4).long(), None)

    assert state.prefill_delta.np[2] == prompt.next_position - len(prompt.tokens)


def test_a_delta_that_is_given_is_still_taken(kept_delta):
    state = rope_state()

    state.update_prefill_positions(1, torch.zeros(3, 2, dtype=torch.long), 17)

    assert state.prefill_delta.np[1] == 17


def test_without_the_plugins_change_an_update_without_delta_fails_loudly(upstream_update):
    with pytest.raises(TypeError, match="NoneType"):
        rope_state().update_prefill_positions(1, torch.zeros(3, 2, dtype=torch.long), None)


def test_the_change_is_made_once(upstream_update):
    keep_delta_in_rope_state()
    once = RopeState.update_prefill_positions
    keep_delta_in_rope_state()

    assert RopeState.update_prefill_positions is once
    assert once.__wrapped__ is upstream_update


@pytest.mark.parametrize(
    ("chunk", "dtype"),
    [
        (1, torch.float32),
        (3, torch.float32),
        (7, torch.bfloat16),
        (MAX_TOKENS, torch.float32),
    ],
    ids=str,
)
@each_family
def test_every_request_of_a_batch_is_exact_in_chunks_of_any_size(family, chunk, dtype, kept_delta):
    runner, prompts = Runner(family, dtype), prompts_of(family, dtype)
    for name, prompt in prompts.items():
        runner.add(name, prompt)
    given: dict[str, list[Window]] = {name: [] for name in prompts}

    # Requests that are done with their prompt decode beside the others, and all of them at last.
    left = {name: runner.unprefilled(name) for name in prompts}
    while any(count > -2 for count in left.values()):
        windows = runner.step({name: min(chunk, max(1, count)) for name, count in left.items()})
        for name, window in windows.items():
            given[name].append(window)
        left = {name: runner.unprefilled(name) for name in prompts}

    for name, prompt in prompts.items():
        positions = [triple for window in given[name] for triple in window.positions]
        rows = torch.cat([window.rows for window in given[name]])
        num_generated = len(positions) - len(prompt.tokens)
        assert num_generated >= 2
        assert positions == prompt.positions() + decoded(prompt, num_generated)
        assert torch.equal(rows[: len(prompt.tokens)], prompt.rows())
        assert runner.stored_positions(name, prompt) == prompt.positions()


def decoded(prompt: Prompt, count: int) -> list[tuple[int, ...]]:
    """Positions of generated tokens."""
    return [(prompt.next_position + index,) * 3 for index in range(count)]


@pytest.mark.parametrize("chunk", [1, 3, 7, MAX_TOKENS])
@each_family
def test_the_pruner_hands_on_what_is_retained_in_order(family, chunk, kept_delta):
    runner, prompts = Runner(family), prompts_of(family)
    for name, prompt in prompts.items():
        runner.add(name, prompt)

    while left := {name: n for name in prompts if (n := runner.unprefilled(name)) > 0}:
        batch = runner.batch({name: min(chunk, count) for name, count in left.items()})
        runner.state.execute_mm_encoder(runner.encoder_inputs(batch))
        gathered, is_embed = ModelState.gather_mm_embeddings(runner.state, batch)
        cleaned = runner.state.mm_pruner.recompute(gathered, batch, runner.requests)

        expected = [
            token
            for name, start, count in scheduled(batch)
            for token in prompts[name].tokens[start : start + count]
        ]
        rows = [token.row for token in expected if token.medium is not None]
        assert [rows.shape[1] for rows in gathered] == [family.width + NUM_CHANNELS] * len(gathered)
        assert is_embed.tolist() == [token.medium is not None for token in expected]
        assert torch.equal(
            torch.cat([torch.zeros(0, family.width), *(c.cpu() for c in cleaned)]),
            torch.cat([torch.zeros(0, family.width), *(row[None] for row in rows)]),
        )
        assert [c.modality for c in cleaned] == [g.modality for g in gathered]
        runner.finish(batch)

    for name, prompt in prompts.items():
        assert runner.stored_positions(name, prompt) == prompt.positions()


def scheduled(batch: InputBatch) -> Iterator[tuple[str, int, int]]:
    """Yields each request, its computed tokens, and its tokens in the batch."""
    return zip(
        batch.req_ids,
        batch.num_computed_tokens_np.tolist(),
        batch.num_scheduled_tokens.tolist(),
        strict=True,
    )


@each_family
def test_a_chunk_may_end_before_inside_or_behind_a_video_or_inside_its_text(family, kept_delta):
    runner, prompt = Runner(family), prompt_of(family, PROMPTS["mixed"])

    for border in range(1, len(prompt.tokens)):
        runner.add("request", prompt)
        first = runner.step({"request": border})["request"]
        second = runner.step({"request": len(prompt.tokens) - border})["request"]
        runner.remove("request")

        assert first.positions + second.positions == prompt.positions()
        assert torch.equal(torch.cat([first.rows, second.rows]), prompt.rows())


@each_family
def test_a_prefix_found_in_the_cache_may_end_anywhere(family, kept_delta):
    prompt = prompt_of(family, PROMPTS["mixed"])

    for border in range(1, len(prompt.tokens)):
        runner = Runner(family)
        runner.add("request", prompt, num_computed=border)
        given = runner.step({"request": len(prompt.tokens) - border})["request"]

        assert given.positions == prompt.positions()[border:]
        assert torch.equal(given.rows, prompt.rows()[border:])


@pytest.mark.parametrize("num_cached", [0, 20, "all but one"])
@each_family
def test_a_preempted_request_goes_on_where_it_was(family, num_cached, kept_delta):
    runner, prompt = Runner(family), prompt_of(family, PROMPTS["mixed"])
    generated = [WORD, WORD + 1, WORD + 2]
    runner.add("preempted", prompt)
    runner.step({"preempted": 20})
    runner.step({"preempted": len(prompt.tokens) - 20})
    for _ in generated:
        runner.step({"preempted": 1})

    runner.remove("preempted")
    runner.cache.reset_encoder_cache()
    runner.add("takes its slot", prompt_of(family, PROMPTS["other rate"]))
    num_tokens = len(prompt.tokens) + len(generated)
    num_computed = num_tokens - 1 if num_cached == "all but one" else num_cached
    runner.add("preempted", prompt, generated=generated, num_computed=num_computed)
    resumed = runner.step({"preempted": num_tokens - num_computed, "takes its slot": 1})
    after = runner.step({"preempted": 1})

    expected = prompt.positions() + decoded(prompt, len(generated) + 1)
    assert resumed["preempted"].positions + after["preempted"].positions == expected[num_computed:]
    num_rows = len(prompt.tokens) - num_computed
    if num_rows > 0:
        assert torch.equal(resumed["preempted"].rows[:num_rows], prompt.rows()[num_computed:])


def test_tokens_kept_by_vidcom2_keep_their_positions_too(kept_delta):
    video = Video(4, 2, 3, seed=5, rate=0.6, fingerprint=99, method="vidcom2")
    runner, prompt = Runner(QWEN3), prompt_of(QWEN3, [2, video, 2])
    runner.add("request", prompt)

    given = [runner.step({"request": 9}), runner.step({"request": len(prompt.tokens) - 9})]

    assert [p for step in given for p in step["request"].positions] == prompt.positions()
    assert torch.equal(torch.cat([step["request"].rows for step in given]), prompt.rows())


@each_family
def test_a_drafter_is_given_plain_embeddings_one_token_ahead(family, kept_delta):
    runner, prompt = Runner(family), prompt_of(family, PROMPTS["mixed"])
    runner.add("request", prompt)

    while (left := runner.unprefilled("request")) > 0:
        batch = runner.batch({"request": min(3, left)})
        runner.forward(batch)
        stored = runner.stored_positions("request", prompt)
        drafted, is_embed = runner.state.gather_mm_embeddings(batch, draft_lookahead=1)

        ((_, start, count),) = scheduled(batch)
        ahead = prompt.tokens[start + 1 : start + count + 1]
        features = [
            repr(None) if t.medium is None else prompt.features[t.medium].identifier for t in ahead
        ]
        is_known = [name in runner.cache.encoder_outputs for name in features]
        rows = [t.row[:HIDDEN] for t, known in zip(ahead, is_known, strict=True) if known]
        assert is_embed.tolist()[: len(ahead)] == is_known
        assert not is_embed[len(ahead) :].any()
        assert [list(d.shape[1:]) for d in drafted] == [[HIDDEN]] * len(drafted)
        assert sum(len(d) for d in drafted) == len(rows)
        if rows:
            assert torch.equal(torch.cat(drafted).cpu(), torch.stack(rows))
        assert runner.stored_positions("request", prompt) == stored
        runner.finish(batch)


@each_family
def test_stripping_leaves_what_a_drafter_adds_up_with_text_embeddings(family):
    """So deepstack columns go with the channels: no drafter of vLLM takes them."""
    pruner = state_of(family).mm_pruner
    rows = torch.arange(2.0 * (family.width + NUM_CHANNELS)).view(2, -1)
    rows.modality = "video"

    (stripped,) = pruner.strip([rows])

    assert model_config_of(family).get_inputs_embeds_size() == HIDDEN
    assert torch.equal(stripped, rows[:, :HIDDEN])
    assert stripped.modality == "video"


@pytest.mark.parametrize("rate", [ENABLED_AT_RATE_ZERO, 0.5])
@each_family
def test_an_engine_that_prunes_has_a_pruner(family, rate):
    pruner = state_of(family, rate=rate).mm_pruner

    assert isinstance(pruner.model, family.model_class)


@pytest.mark.parametrize("rate", [None, 0.0])
@each_family
def test_an_engine_that_does_not_prune_has_none(family, rate):
    assert state_of(family, rate=rate).mm_pruner is None


class WaitsForDeviceError(Exception):
    """A value on the device was asked for."""


class NoWaiting(TorchDispatchMode):
    """Meta tensors play the device: they have no values, and few operations can do without.

    What can, though it waits on a GPU, is refused by name.
    """

    ASKING = frozenset(
        {
            "aten::_local_scalar_dense",
            "aten::is_nonzero",
            "aten::equal",
            "aten::nonzero",
            "aten::nonzero_numpy",
            "aten::masked_select",
            "aten::_unique2",
            "aten::bincount",
        }
    )
    INDEXING = frozenset({"aten::index", "aten::index_put", "aten::index_put_"})

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.name().split(".")[0]
        on_device = [leaf for leaf in tree_leaves((args, kwargs)) if is_on_device(leaf)]
        if on_device and name in self.ASKING:
            raise WaitsForDeviceError(name)
        if name in self.INDEXING and any(map(is_mask, tree_leaves(args[1]))):
            raise WaitsForDeviceError(name)
        found = func(*args, **kwargs)
        is_copied_back = any(isinstance(t, torch.Tensor) and t.is_cpu for t in tree_leaves(found))
        if on_device and is_copied_back:
            raise WaitsForDeviceError(name)
        return found


def is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta


def is_mask(index: Any) -> bool:
    return is_on_device(index) and index.dtype in (torch.bool, torch.uint8)


WAITING: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda t: t[0].item(),
    "int": lambda t: int(t[0]),
    "if": lambda t: bool(t[0] > 0),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "copy": lambda t: torch.zeros(4).copy_(t),
    "numpy": lambda t: t.numpy(),
    "mask": lambda t: t[t > 0],
    "mask assigned": lambda t: t.index_put_((t > 0,), torch.zeros((), device="meta")),
    "masked_select": lambda t: t.masked_select(t > 0),
    "nonzero": lambda t: (t > 0).nonzero(),
    "where": lambda t: torch.where(t > 0),
    "unique": lambda t: t.unique(),
    "repeat_interleave": lambda t: torch.repeat_interleave(t, t.long()),
    "equal": lambda t: torch.equal(t, t),
    "slice": lambda t: t[: t.long()[0]],
}
"""What would wait for a GPU, as someone might write it."""


@pytest.mark.parametrize("written", WAITING)
def test_the_guard_notices_what_would_wait_for_a_gpu(written):
    waits = (WaitsForDeviceError, NotImplementedError, RuntimeError, TypeError)

    with NoWaiting(), pytest.raises(waits):
        WAITING[written](torch.zeros(4, device="meta"))


@pytest.mark.parametrize(
    ("family", "method"),
    [(QWEN2_5, "evs"), (QWEN3_FLAT, "evs"), (QWEN3, "evs"), (QWEN3, "vidcom2")],
    ids=lambda value: getattr(value, "name", value),
)
def test_nothing_is_asked_of_values_on_the_device(family, method):
    meta = torch.device("meta")
    model = model_of(family, device=meta)
    pruned = Video(4, 2, 3, seed=5, rate=0.5, fingerprint=MAX_FINGERPRINT, method=method)
    prompt = prompt_of(family, [2, Image(2, 2, seed=9), 1, pruned, 1, WHOLE, 2])
    encoder = EncoderRunner(model, MAX_TOKENS, HIDDEN, EncoderCache(), torch.float32, meta)
    positions, _ = model.get_mrope_input_positions(prompt.token_ids, prompt.features)
    stored = positions.to(meta, torch.int32)
    media = [(feature.modality, feature.data) for feature in prompt.features]

    with NoWaiting():
        rows = encoder.execute_mm_encoder(media)
        cleaned, updated, delta = model.recompute_mrope_positions(
            input_ids=torch.tensor(prompt.token_ids, device=meta, dtype=torch.int32),
            multimodal_embeddings=rows,
            mrope_positions=stored.long(),
            num_computed_tokens=1,
        )

    counts = [feature.mm_position.get_num_embeds() for feature in prompt.features]
    assert [tuple(c.shape) for c in cleaned] == [(count, family.width) for count in counts]
    assert updated.is_meta
    assert updated.shape == positions.shape
    assert delta is None
