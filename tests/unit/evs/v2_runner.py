"""vLLM's Model Runner V2, of its own classes, without weights.

What stands in for something real:

- the vision tower hands out its input, the language model is one table of embeddings;
- ``VllmConfig`` and ``ModelConfig`` hold what ``DefaultModelState`` reads of them, unvalidated;
- on a CPU, V2's kernels run in Triton's interpreter, and V2's own ``NonUvaBuffer`` takes the place
  of pinned memory. On a GPU neither is replaced.
"""

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import Qwen2_5_VLConfig, Qwen3VLConfig
from vllm.config import ModelConfig, MultiModalConfig
from vllm.multimodal.utils import strip_covered_mm_data
from vllm.transformers_utils.model_arch_config_convertor import (
    MODEL_ARCH_CONFIG_CONVERTORS,
    ModelArchConfigConvertorBase,
)
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache
from vllm.v1.worker.gpu.mm.rope import RopeState
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.states import RequestState

from tests.unit.evs.v2_prompts import (
    DEVICE,
    END,
    HIDDEN,
    IMAGE,
    MAX_REQUESTS,
    MAX_TOKENS,
    MERGE,
    QWEN2_5,
    START,
    TOKENS_PER_SECOND,
    VIDEO,
    VOCABULARY,
    Family,
    Prompt,
    table,
)


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
        raise NotImplementedError  # vLLM wants the method; these tests end where it would begin


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


def rope_state() -> RopeState:
    return RopeState(3, MAX_REQUESTS, MAX_TOKENS, MAX_TOKENS, DEVICE)
