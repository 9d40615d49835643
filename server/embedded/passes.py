"""The model's arithmetic on whole batches: what transformers computes, for clips of one size.

transformers runs the vision tower grid by grid and knows neither pruned videos nor several
questions about one clip. Here all grids go through at once, and a mask keeps questions apart.
The parameters are those of the model it is given; ``tests/unit/embedded`` compares the results.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from server.embedded.architecture import MERGED_PATCHES
from server.evs.arithmetic import retained_tokens
from server.evs.plan import PruningChoice, PruningPlan
from server.evs.retention import retained_indices


@dataclass(frozen=True, slots=True)
class VideoTokens:
    """What the vision tower makes of a batch of clips."""

    merged: torch.Tensor
    """Shape (clips, grids * tokens_per_grid, hidden)."""
    deepstack: tuple[torch.Tensor, ...]
    """Added to the first layers of the language model; the same shape each."""


def video_tokens(model: Any, patches: torch.Tensor, grid: tuple[int, int, int]) -> VideoTokens:
    """Returns the video tokens of clips that share their grid.

    Args:
        model: a ``Qwen3VLForConditionalGeneration``.
        patches: normalised pixels, shape (clips, t * h * w, channels * pixels).
        grid: t, h and w in patches.
    """
    visual = model.model.visual
    clips, (t, h, w) = len(patches), grid
    hidden = functional.linear(
        patches.reshape(clips * t, h * w, -1),
        visual.patch_embed.proj.weight.flatten(1),
        visual.patch_embed.proj.bias,
    )
    places, cos, sin = _vision_places(visual, h, w)
    hidden = hidden + places
    deepstack = []
    for index, block in enumerate(visual.blocks):
        hidden = hidden + _vision_attention(block.attn, block.norm1(hidden), cos, sin)
        hidden = hidden + block.mlp(block.norm2(hidden))
        if index in visual.deepstack_visual_indexes:
            merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(index)]
            deepstack.append(_merged(merger, hidden, clips))
    return VideoTokens(_merged(visual.merger, hidden, clips), tuple(deepstack))


def _merged(merger: Any, hidden: torch.Tensor, clips: int) -> torch.Tensor:
    rows: torch.Tensor = merger(hidden.reshape(-1, hidden.shape[-1]))
    return rows.view(clips, -1, rows.shape[-1])


def _vision_places(visual: Any, h: int, w: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from transformers.vision_utils import (
        get_vision_interpolation_indices_and_weights,
        get_vision_position_ids,
    )

    grid = torch.tensor([[1, h, w]])
    indices, weights = get_vision_interpolation_indices_and_weights(
        grid,
        num_grid_per_side=visual.num_grid_per_side,
        mode=visual.interpolation_mode,
        align_corners=visual.interpolation_align_corners,
        spatial_merge_size=MERGED_PATCHES,
    )
    places = (visual.pos_embed(indices) * weights[:, :, None]).sum(1)
    cos, sin = visual.rotary_pos_emb(places, get_vision_position_ids(grid, MERGED_PATCHES))
    return places, cos, sin


def _vision_attention(
    attention: Any, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    grids, patches, width = hidden.shape
    qkv = attention.qkv(hidden).view(grids, patches, 3, attention.num_heads, -1)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    mixed = functional.scaled_dot_product_attention(
        _rotated(query, cos, sin), _rotated(key, cos, sin), value
    )
    return attention.proj(mixed.transpose(1, 2).reshape(grids, patches, width))


def _rotated(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-high, low), dim=-1) * sin


def kept_tokens(tokens: VideoTokens, *, num_grids: int, rate: float) -> torch.Tensor:
    """Returns the indices that EVS keeps of each clip's tokens, shape (clips, kept), ascending."""
    # vLLM compares the rows as they leave the tower, deepstack levels beside them.
    rows = torch.cat([tokens.merged, *tokens.deepstack], dim=-1).detach()
    total = rows.shape[1]
    kept = retained_tokens(tokens_per_grid=total // num_grids, num_grids=num_grids, rate=rate)
    plan = PruningPlan(PruningChoice(rate, "evs"), total, kept, fingerprint=1)
    return torch.stack([retained_indices(clip, num_grids=num_grids, plan=plan) for clip in rows])


def answer_states(
    model: Any,
    embeddings: torch.Tensor,
    positions: torch.Tensor,
    mask: torch.Tensor,
    deepstack: tuple[torch.Tensor, ...] = (),
) -> list[torch.Tensor]:
    """Returns the language model's hidden states, shape (batch, length, hidden) each.

    Those after each layer, and at last the normalised ones that words are chosen by.

    Args:
        model: a ``Qwen3VLForConditionalGeneration``.
        embeddings: shape (batch, length, hidden).
        positions: of M-RoPE, shape (3, batch, length).
        mask: which columns a row attends to, shape (batch, 1, length, length), bool.
        deepstack: what the first layers' outputs are increased by; zero where no video token is.
    """
    text = model.model.language_model
    cos, sin = text.rotary_emb(embeddings, positions)
    cos, sin = cos[:, None], sin[:, None]
    hidden = embeddings
    states = []
    for index, layer in enumerate(text.layers):
        hidden = hidden + _text_attention(
            layer.self_attn, normed(layer.input_layernorm, hidden), cos, sin, mask
        )
        hidden = hidden + layer.mlp(normed(layer.post_attention_layernorm, hidden))
        if index < len(deepstack):
            hidden = hidden + deepstack[index]
        states.append(hidden)
    return [*states, normed(text.norm, hidden)]


def normed(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Returns the states as one of the language model's norms scales them."""
    return functional.rms_norm(hidden, hidden.shape[-1:], norm.weight, norm.variance_epsilon)


def query_and_key(
    attention: Any, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns both as they are compared, shape (batch, heads, length, head_dim) each."""
    shape = (*hidden.shape[:2], -1, attention.head_dim)
    query = normed(attention.q_norm, attention.q_proj(hidden).view(shape)).transpose(1, 2)
    key = normed(attention.k_norm, attention.k_proj(hidden).view(shape)).transpose(1, 2)
    return _rotated(query, cos, sin), _rotated(key, cos, sin)


def _text_attention(
    attention: Any, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    batch, length, _ = hidden.shape
    query, key = query_and_key(attention, hidden, cos, sin)
    value = attention.v_proj(hidden).view(batch, length, -1, attention.head_dim).transpose(1, 2)
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return attention.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
