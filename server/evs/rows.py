"""Embedding rows of a pruned video: what is left of its placeholder, in the prompt's order."""

from typing import Any

import torch
from torch.nn.functional import pad
from vllm.utils.torch_utils import async_tensor_h2d

from server.evs.plan import PruningPlan
from server.evs.positions import NUM_CHANNELS, to_channels
from server.evs.retention import retained_indices
from server.evs.walks import Skeleton, Walk


def retained_rows(
    embeddings: torch.Tensor, text: torch.Tensor, walk: Walk, plan: PruningPlan, *, num_grids: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the rows that replace a pruned video's placeholder, and their relative positions.

    Args:
        embeddings: all of the video's tokens, shape (V, hidden).
        text: the text tokens between its grids, shape (T, text_hidden), text_hidden <= hidden.
        walk: the unpruned placeholder, V + T tokens.
        plan: what to keep of the V.
        num_grids: temporal grids.

    Returns:
        Rows of shape (plan.num_retained + T, hidden) and positions of shape (..., 3), both on the
        embeddings' device. Every shape is known on the host.
    """
    device = embeddings.device
    keep = retained_indices(embeddings, num_grids=num_grids, plan=plan)
    is_video = torch.from_numpy(walk.is_video)
    video_places = async_tensor_h2d(is_video.nonzero().flatten(), device)[keep]
    text_places = async_tensor_h2d((~is_video).nonzero().flatten(), device)
    places, order = torch.cat([video_places, text_places]).sort()
    # Deepstack widens video rows; text has nothing there.
    widened = pad(text, (0, embeddings.shape[1] - text.shape[1])).to(embeddings.dtype)
    rows = torch.cat([embeddings[keep], widened])[order]
    return rows, async_tensor_h2d(torch.from_numpy(walk.relative), device)[places]


def with_positions(rows: torch.Tensor, relative: torch.Tensor, plan: PruningPlan) -> torch.Tensor:
    """Returns rows widened by the channels that carry their positions."""
    channels = to_channels(relative, fingerprint=plan.fingerprint)
    return torch.cat([rows, channels.to(rows.dtype)], dim=1)


def without_positions(rows: torch.Tensor) -> torch.Tensor:
    """Returns rows of the same width that write no position: those of a medium kept whole."""
    return pad(rows, (0, NUM_CHANNELS))


def text_embeddings(model: Any, skeleton: Skeleton, device: torch.device) -> torch.Tensor:
    """Returns the embeddings of a skeleton's text, shape (T, hidden).

    They come from the base weights: inside the encoder a LoRA adapter has no entry for them.
    """
    embed = model.get_language_model().model.embed_tokens
    embed = getattr(embed, "base_layer", embed)
    embedded: torch.Tensor = embed(async_tensor_h2d(torch.from_numpy(skeleton.text_ids), device))
    return embedded
