"""What the language model makes of a batch: pruned videos, and questions that do not meet."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from server.embedded import passes
from server.embedded.batches import Batch


@dataclass(frozen=True, slots=True)
class Reading:
    """Hidden states of openings and turns, N tokens in all, of which n are left of the openings."""

    states: list[torch.Tensor]
    """After each layer, and at last those that words are chosen by; shape (clips, N, hidden)."""
    positions: torch.Tensor
    """Of M-RoPE, shape (3, clips, N)."""
    mask: torch.Tensor
    """Who sees whom, shape (clips, 1, N, N), bool."""
    is_video: torch.Tensor
    """Shape (clips, n)."""
    kept: torch.Tensor
    """Which video tokens survive pruning, shape (clips, kept)."""

    @property
    def num_opening_tokens(self) -> int:
        """Where the turns begin."""
        return self.is_video.shape[1]

    @property
    def turns(self) -> torch.Tensor:
        """The last states of the turns, shape (clips, M, hidden)."""
        return self.states[-1][:, self.num_opening_tokens :]

    def watched(self, layer: int) -> torch.Tensor:
        """Returns the video tokens after a layer, shape (clips, kept, hidden)."""
        opening = self.states[layer][:, : self.num_opening_tokens]
        return opening[self.is_video].view(*self.kept.shape, -1)


def read(model: Any, batch: Batch, tokens: passes.VideoTokens) -> Reading:
    """Returns what the language model makes of a batch whose videos became ``tokens``."""
    num_turn_tokens = batch.turn_ids.shape[1]
    embed = model.model.language_model.embed_tokens
    kept = passes.kept_tokens(tokens, num_grids=batch.grid[0], rate=batch.rate)
    places = _places(batch, kept)
    opening = embed(batch.opening_ids)
    opening[:, batch.is_video] = tokens.merged
    rows = torch.arange(len(kept))[:, None]
    embeddings = torch.cat([opening[rows, places], embed(batch.turn_ids)], dim=1)
    deepstack = []
    for level in tokens.deepstack:
        whole = torch.zeros_like(opening)
        whole[:, batch.is_video] = level
        deepstack.append(functional.pad(whole[rows, places], (0, 0, 0, num_turn_tokens)))
    positions = _positions(batch, places)
    mask = _mask(batch.question, places.shape[1])
    states = passes.answer_states(model, embeddings, positions, mask, tuple(deepstack))
    return Reading(states, positions, mask, batch.is_video[places], kept)


def _positions(batch: Batch, places: torch.Tensor) -> torch.Tensor:
    extent = int(batch.opening_positions.max()) + 1
    turn_positions = (batch.offsets + extent)[..., None].expand(-1, -1, 3)
    positions = torch.cat([batch.opening_positions[places], turn_positions], dim=1)
    return positions.permute(2, 0, 1)


def _places(batch: Batch, kept: torch.Tensor) -> torch.Tensor:
    """Returns which places of the opening survive pruning, shape (clips, n), ascending."""
    video_places = batch.is_video.nonzero().flatten()
    text_places = (~batch.is_video).nonzero().flatten()
    places = torch.cat([video_places[kept], text_places.expand(len(kept), -1)], dim=1)
    return places.sort(dim=1).values


def _mask(question: torch.Tensor, num_opening_tokens: int) -> torch.Tensor:
    """Returns who sees whom: all the opening, no question another one, nobody what follows."""
    owner = functional.pad(question, (num_opening_tokens, 0))
    length = owner.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    related = (owner[:, :, None] == owner[:, None, :]) | (torch.arange(length) < num_opening_tokens)
    return (causal & related)[:, None]
