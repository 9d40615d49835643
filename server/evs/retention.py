"""Which tokens EVS keeps: the model half's only decision."""

import torch


def retained_indices(
    embeddings: torch.Tensor, *, num_grids: int, num_retained: int
) -> torch.Tensor:
    """Returns the ascending indices of the tokens to keep, shape (num_retained,).

    The rule is vLLM's ``compute_retention_mask``: the first grid whole, then the tokens with the
    lowest cosine similarity to the same place one grid earlier, ties to the earlier token. The
    number of tokens is given rather than a rate, so that it can not differ from the number of
    placeholders, and no tensor's shape depends on values on the device.

    Args:
        embeddings: one video's tokens, shape (num_grids * tokens_per_grid, hidden).
        num_grids: temporal grids.
        num_retained: tokens to keep, at least one grid.
    """
    num_tokens, hidden = embeddings.shape
    if num_retained == num_tokens:
        return torch.arange(num_tokens, device=embeddings.device)
    grids = embeddings.view(num_grids, num_tokens // num_grids, hidden)
    similarity = torch.nn.functional.cosine_similarity(grids[1:], grids[:-1], dim=-1)
    first_grid = torch.full_like(grids[0, :, 0], torch.inf)
    change = torch.cat([first_grid, (1 - similarity).flatten()])
    order = torch.argsort(change, descending=True, stable=True)
    return order[:num_retained].sort().values
