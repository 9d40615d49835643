import pytest
import torch
from vllm.multimodal.video_prune import evs, vidcom2

from server.evs.arithmetic import retained_tokens
from server.evs.plan import PruningChoice, PruningPlan
from server.evs.retention import retained_indices

VLLM = {"evs": evs.compute_retention_mask, "vidcom2": vidcom2.compute_retention_mask}


def keep(embeddings, num_grids, rate, method="evs"):
    per_grid = len(embeddings) // num_grids
    count = retained_tokens(tokens_per_grid=per_grid, num_grids=num_grids, rate=rate, method=method)
    plan = PruningPlan(PruningChoice(rate, method), len(embeddings), count, fingerprint=1)
    return retained_indices(embeddings, num_grids=num_grids, plan=plan)


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5, 0.75, 0.9, 0.99])
@pytest.mark.parametrize("grid", [(1, 2, 2), (2, 4, 6), (7, 6, 4), (60, 4, 4)])
@pytest.mark.parametrize(
    ("method", "dtype"),
    [(method, dtype) for method in VLLM for dtype in (torch.float32, torch.bfloat16)],
)
def test_the_tokens_kept_are_those_that_vllm_keeps(grid, rate, method, dtype):
    num_grids, height, width = grid
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.randn(num_grids * height * width // 4, 32, generator=generator).to(dtype)

    # VidCom2 is computed in float32 here, whatever the embeddings are.
    given = embeddings.float() if method == "vidcom2" else embeddings
    mask = VLLM[method](given, grid, spatial_merge_size=2, q=rate)

    assert mask.nonzero().flatten().tolist() == keep(embeddings, num_grids, rate, method).tolist()


def test_what_moves_is_kept_and_what_stands_still_is_not():
    embeddings = torch.ones(6, 4, 8)
    embeddings[3, 2] = torch.tensor([1.0, -1.0] * 4)

    kept = keep(embeddings.reshape(24, 8), 6, 0.75).tolist()

    assert kept == [0, 1, 2, 3, 14, 18]  # the change, and the change back


def test_ties_go_to_the_earlier_token():
    assert list(range(8)) == keep(torch.zeros(16, 4), 4, 0.5).tolist()


def test_a_token_that_is_not_a_number_harms_nothing():
    embeddings = torch.randn(16, 4)
    embeddings[9] = torch.nan

    assert len(set(keep(embeddings, 4, 0.5).tolist())) == 8


@pytest.mark.parametrize("method", ["evs", "vidcom2"])
def test_nothing_is_asked_of_values_on_the_device(method):
    """Meta tensors have no values, so whatever would wait for a GPU fails on them."""
    kept = keep(torch.empty(60, 8, device="meta"), 5, 0.75, method)

    assert kept.shape == (15,)
