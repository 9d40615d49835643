import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.multimodal.video_prune.evs import compute_retained_tokens_count

from server.evs.arithmetic import (
    ENABLED_AT_RATE_ZERO,
    checked_rate,
    rates_per_video,
    retained_tokens,
)

rates = st.floats(min_value=0, max_value=1, exclude_max=True)


@pytest.mark.parametrize(
    ("tokens_per_grid", "num_grids", "rate", "expected"),
    [
        (100, 1, 0.9, 100),  # a single grid is never pruned
        (100, 2, 0.5, 100),
        (100, 3, 0.7, 100),  # only the first grid survives
        (100, 4, 0.7, 120),
        (100, 10, 0.99, 100),
        (100, 10, 0.0, 1000),
        (72, 8, 0.75, 144),
    ],
)
def test_counts_are_those_of_the_evs_rule(tokens_per_grid, num_grids, rate, expected):
    assert expected == retained_tokens(
        tokens_per_grid=tokens_per_grid, num_grids=num_grids, rate=rate
    )


@given(st.integers(1, 4096), st.integers(1, 800), rates)
def test_counts_agree_with_vllm(tokens_per_grid, num_grids, rate):
    ours = retained_tokens(tokens_per_grid=tokens_per_grid, num_grids=num_grids, rate=rate)

    assert compute_retained_tokens_count(tokens_per_grid, num_grids, rate) == ours
    assert tokens_per_grid <= ours <= tokens_per_grid * num_grids


@given(st.integers(1, 4096), st.integers(1, 800), rates, rates)
def test_a_higher_rate_never_keeps_more(tokens_per_grid, num_grids, one, other):
    low, high = sorted((one, other))

    assert retained_tokens(
        tokens_per_grid=tokens_per_grid, num_grids=num_grids, rate=low
    ) >= retained_tokens(tokens_per_grid=tokens_per_grid, num_grids=num_grids, rate=high)


@given(st.integers(1, 4096), st.integers(1, 800))
def test_the_rate_that_only_enables_pruning_removes_nothing(tokens_per_grid, num_grids):
    kept = retained_tokens(
        tokens_per_grid=tokens_per_grid, num_grids=num_grids, rate=ENABLED_AT_RATE_ZERO
    )

    assert ENABLED_AT_RATE_ZERO > 0
    assert tokens_per_grid * num_grids == kept


@pytest.mark.parametrize(
    "value", [1, 1.0, -0.1, float("nan"), float("inf"), True, False, "0.5", None, [0.5]]
)
def test_what_is_no_rate_is_refused(value):
    with pytest.raises(ValueError, match="video_pruning_rate must be"):
        checked_rate(value)


def test_one_rate_goes_for_all_videos_and_a_list_one_by_one():
    assert rates_per_video(0.5, num_videos=2, default=0.1) == [0.5, 0.5]
    assert rates_per_video([0, None], num_videos=2, default=0.1) == [0.0, 0.1]
    assert rates_per_video(None, num_videos=2, default=0.1) == [0.1, 0.1]


def test_a_list_of_another_length_is_refused():
    with pytest.raises(ValueError, match="lists 1 rates for 2 videos"):
        rates_per_video([0.5], num_videos=2, default=0.0)


def test_a_video_has_tokens():
    with pytest.raises(ValueError, match="is not a video"):
        retained_tokens(tokens_per_grid=0, num_grids=3, rate=0.5)
