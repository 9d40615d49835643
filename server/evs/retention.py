"""Which tokens pruning keeps: the model half's only decision.

The rules are those of vLLM's ``compute_retention_mask``. The number of tokens is given, rather than
derived once more from the rate, so that it can not differ from the number of placeholders, and no
tensor's shape depends on values on the device, so that a GPU is not waited for.
"""

import torch
from torch.nn.functional import cosine_similarity, normalize

from server.evs.plan import PruningPlan

_BANDWIDTHS = tuple(2.0**exponent for exponent in range(-3, 2))
_TEMPERATURE = 0.01


def retained_indices(
    embeddings: torch.Tensor, *, num_grids: int, plan: PruningPlan
) -> torch.Tensor:
    """Returns the ascending indices of the tokens to keep, shape (plan.num_retained,).

    Args:
        embeddings: one video's tokens, shape (num_grids * tokens_per_grid, hidden).
        num_grids: temporal grids.
        plan: how many to keep, and by which method.
    """
    if not plan.prunes:
        return torch.arange(len(embeddings), device=embeddings.device)
    grids = embeddings.view(num_grids, -1, embeddings.shape[-1])
    if plan.choice.method == "vidcom2":
        order = _most_distinctive(grids, num_retained=plan.num_retained, rate=plan.choice.rate)
    else:
        order = _most_changed(grids)
    return order[: plan.num_retained].sort().values


def _most_changed(grids: torch.Tensor) -> torch.Tensor:
    """Returns all indices, best first: the first grid, then the least like the grid before.

    Ties go to the earlier token. EVS, arXiv 2510.14624.
    """
    similarity = cosine_similarity(grids[1:], grids[:-1], dim=-1)
    first_grid = torch.full_like(grids[0, :, 0], torch.inf)
    change = torch.cat([first_grid, (1 - similarity).flatten()])
    return torch.argsort(change, descending=True, stable=True)


def _most_distinctive(grids: torch.Tensor, *, num_retained: int, rate: float) -> torch.Tensor:
    """Returns all indices, best first: each grid's share of its least redundant tokens.

    VidCom2, arXiv 2505.14454: redundant is what lies close to the centre of the video and of its
    grid, in the half of the channels that varies least; a grid far from the centre gets a larger
    share. What rounding leaves over is settled by redundancy alone. Computed in float32, since in
    16 bits rounding would decide between most tokens; vLLM computes in the type of the embeddings.
    """
    grids = grids.float()
    num_grids, tokens_per_grid, hidden = grids.shape
    variance = grids.flatten(0, 1).var(dim=0, unbiased=False)
    steady = torch.topk(variance, max(1, hidden // 2), largest=False).indices
    tokens = normalize(grids.index_select(-1, steady), dim=-1)
    to_video = _closeness(tokens, tokens.mean(dim=(0, 1), keepdim=True))
    redundancy = to_video + _closeness(tokens, tokens.mean(dim=1, keepdim=True))
    distinction = -to_video.mean(dim=-1)
    weights = ((distinction - distinction.max()) / _TEMPERATURE).softmax(dim=0)
    shares = ((1.0 - rate) * (1.0 + weights - weights.mean())).clamp(max=1.0)
    budgets = (shares * tokens_per_grid).round().long().clamp(min=1, max=tokens_per_grid)
    order = redundancy.argsort(dim=-1, stable=True)
    ranks = torch.empty_like(order).scatter_(
        1, order, torch.arange(tokens_per_grid, device=order.device).expand(num_grids, -1)
    )
    is_within = (ranks < budgets[:, None]).flatten()
    by_redundancy = redundancy.flatten().argsort(stable=True)
    within_first = (~is_within[by_redundancy]).long().argsort(stable=True)
    return by_redundancy[within_first]


def _closeness(tokens: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """Returns the sum of Gaussian kernels of the distance to ``centre``, without the last axis."""
    distance = ((tokens - centre) ** 2).sum(dim=-1)
    kernels = [torch.exp(-distance / (2.0 * bandwidth)) for bandwidth in _BANDWIDTHS]
    return torch.stack(kernels).sum(dim=0)
