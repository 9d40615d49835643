import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from server.evs.plan import MAX_FINGERPRINT, PruningChoice, PruningPlan

PLANS = st.builds(
    lambda rate, method, total, share, fingerprint: PruningPlan(
        PruningChoice(rate, method), total, max(1, int(total * share)), fingerprint
    ),
    rate=st.floats(0, 1, exclude_max=True),
    method=st.sampled_from(["evs", "vidcom2"]),
    total=st.integers(1, 2**40),
    share=st.floats(0, 1),
    fingerprint=st.integers(1, MAX_FINGERPRINT),
)


@given(PLANS)
def test_a_plan_travels_without_loss(plan):
    tensor = plan.to_tensor()

    assert tensor.dtype == torch.int64
    assert PruningPlan.from_tensor(tensor) == plan


@pytest.mark.parametrize(
    ("total", "retained", "fingerprint"), [(8, 9, 1), (8, 0, 1), (8, 8, 0), (8, 8, 2**31)]
)
def test_an_impossible_plan_can_not_be_made(total, retained, fingerprint):
    with pytest.raises(ValueError, match=r"no pruning|fingerprint"):
        PruningPlan(PruningChoice(0.5, "evs"), total, retained, fingerprint)


def test_a_choice_outside_the_range_can_not_be_made():
    with pytest.raises(ValueError, match="video_pruning_rate"):
        PruningChoice(1.0, "evs")
    with pytest.raises(ValueError, match="video_pruning_method"):
        PruningChoice(0.5, "random")
