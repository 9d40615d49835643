"""M-RoPE positions that pruning does not move.

Let P be the positions of the unpruned prompt. Text gets its positions of P before any encoder has
run, because how far a video pushes the text behind it depends on its grid alone. A retained video
token's position depends on which tokens were retained, which only the encoder knows; it travels
with the token's embedding, relative to the start of its video, and is written into the prompt's
positions when the embedding is used. Writing twice writes the same.

Six extra channels carry the three coordinates as base-256 digits: integers below 256 are exact in
bfloat16 and float16, where a plain integer above 256 (or 2048) would be rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

BASE = 256
NUM_CHANNELS = 6
"""Trailing channels of an embedding row: three high digits, then three low digits."""


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """One image or video in a prompt."""

    offset: int
    """Index of its first placeholder token."""
    length: int
    """Placeholder tokens in the prompt, after pruning."""
    extent: int
    """How far it pushes what follows: its largest unpruned coordinate plus one."""


def to_channels(positions: torch.Tensor) -> torch.Tensor:
    """Returns positions of shape (N, 3), each below 65536, as digits of shape (N, 6)."""
    return torch.cat([positions // BASE, positions % BASE], dim=1)


def from_channels(channels: torch.Tensor) -> torch.Tensor:
    """Returns int64 positions of shape (N, 3) from digits of shape (N, 6) in any float type."""
    digits = channels.long()
    return digits[:, :3] * BASE + digits[:, 3:]


def lay_out(num_tokens: int, spans: Sequence[MediaSpan]) -> tuple[torch.Tensor, int]:
    """Returns positions of shape (3, num_tokens) and the delta for generated tokens.

    Text is final. A media token holds a placeholder, the start of its span, until
    ``write_retained`` replaces it; the delta is final: token i of the answer has position
    num_tokens + i + delta.
    """
    positions: NDArray[np.int64] = np.empty((3, num_tokens), dtype=np.int64)
    index, position = 0, 0
    for span in spans:
        text = span.offset - index
        positions[:, index : span.offset] = np.arange(position, position + text)
        position += text
        positions[:, span.offset : span.offset + span.length] = position
        position += span.extent
        index = span.offset + span.length
    text = num_tokens - index
    positions[:, index:] = np.arange(position, position + text)
    return torch.from_numpy(positions), position + text - num_tokens


def write_retained(
    token_ids: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    positions: torch.Tensor,
    *,
    num_computed_tokens: int,
    media_token_ids: Sequence[int],
) -> None:
    """Write the positions of retained media tokens into ``positions``, in place.

    Args:
        token_ids: the whole prompt, shape (N,).
        blocks: relative positions of shape (K_i, 3) of the media tokens that the coming chunk
            uses, in prompt order.
        positions: positions of the whole prompt, shape (3, N).
        num_computed_tokens: where the chunk starts; the blocks belong to the first media tokens
            from there on. Every shape below is known on the host, so that a GPU is not waited for.
        media_token_ids: the placeholder token ids.
    """
    relative = torch.cat(list(blocks))
    is_media = torch.zeros_like(token_ids, dtype=torch.bool)
    for media_token_id in media_token_ids:
        is_media |= token_ids == media_token_id
    ranks = is_media.cumsum(0)
    seen_before = ranks[num_computed_tokens - 1] if num_computed_tokens else ranks.new_zeros(())
    rows = (ranks - seen_before - 1).clamp(0, len(relative) - 1)
    index = torch.arange(len(token_ids), device=token_ids.device)
    is_written = is_media & (index >= num_computed_tokens)
    is_written &= ranks - seen_before <= len(relative)
    # The span starts one behind the last text token before it, wherever the chunk begins.
    last_text = torch.where(is_media, torch.full_like(index, -1), index).cummax(0).values
    start = torch.where(last_text >= 0, positions[0, last_text.clamp(min=0)] + 1, 0)
    absolute = relative[rows].T.to(positions) + start
    torch.where(is_written, absolute, positions, out=positions)
