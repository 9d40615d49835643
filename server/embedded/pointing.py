"""A loss that makes questions look at what they name by its shape.

``What colour is the triangle?`` has to find tokens by their shape. The language loss alone leaves
that at chance: after 4,000 steps all else was right, and this was still guessed among the clip's
colours. So some heads of one layer are pulled, from the token before the answer, to the tokens of
that shape. Nothing is left of the loss in the checkpoint.
"""

from typing import Any

import torch

from server.embedded import passes
from server.embedded.batches import Batch
from server.embedded.reading import Reading

_LAYER = 2
"""The first layer above the one that is asked for changes and for whose they are."""
_NUM_HEADS = 2


def loss(model: Any, batch: Batch, reading: Reading) -> tuple[torch.Tensor, float]:
    """Returns by how much the right tokens are missed, and the share of attention they get."""
    clip, turn = batch.pointed.nonzero(as_tuple=True)
    wanted = _tokens_of_shape(batch, reading, clip, batch.pointed[clip, turn])
    is_there = wanted.any(dim=1)
    if not is_there.any():
        return reading.turns.new_zeros(()), 1.0
    clip, place = clip[is_there], turn[is_there] + reading.num_opening_tokens
    query, key = _query_and_key(model, reading)
    # (questions, heads, tokens)
    scores = torch.einsum("qhd,qhnd->qhn", query[clip, :, place], key[clip]) * key.shape[-1] ** -0.5
    seen = reading.mask[clip, 0, place][:, None]
    shares = scores.masked_fill(~seen, float("-inf")).log_softmax(dim=-1)
    found = shares.masked_fill(~wanted[is_there][:, None], float("-inf")).logsumexp(dim=-1)
    return -found.mean(), float(found.detach().exp().mean())


def _tokens_of_shape(
    batch: Batch, reading: Reading, clip: torch.Tensor, shape: torch.Tensor
) -> torch.Tensor:
    """Returns which tokens show each question's shape, shape (questions, tokens)."""
    shows = batch.token_labels["shape"].gather(1, reading.kept)[clip] == shape[:, None]
    wanted = torch.zeros(len(clip), reading.positions.shape[-1], dtype=torch.bool)
    is_video = reading.is_video[clip]
    wanted[:, : reading.num_opening_tokens][is_video] = shows.flatten()
    return wanted


def _query_and_key(model: Any, reading: Reading) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns those of the layer's first heads, shape (clips, heads, tokens, head_dim) each."""
    text = model.model.language_model
    layer = text.layers[_LAYER]
    cos, sin = text.rotary_emb(reading.states[_LAYER - 1], reading.positions)
    hidden = passes.normed(layer.input_layernorm, reading.states[_LAYER - 1])
    query, key = passes.query_and_key(layer.self_attn, hidden, cos[:, None], sin[:, None])
    return query[:, :_NUM_HEADS], key[:, :_NUM_HEADS]
