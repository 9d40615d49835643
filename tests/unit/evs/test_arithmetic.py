import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.multimodal.video_prune import evs, vidcom2

from server.evs.arithmetic import (
    ENABLED_AT_RATE_ZERO,
    checked_method,
    checked_rate,
    per_video,
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
    size = {"tokens_per_grid": tokens_per_grid, "num_grids": num_grids, "rate": rate}
    by_evs = retained_tokens(**size)
    by_vidcom2 = retained_tokens(**size, method="vidcom2")

    assert evs.compute_retained_tokens_count(tokens_per_grid, num_grids, rate) == by_evs
    assert vidcom2.compute_retained_tokens_count(tokens_per_grid, num_grids, rate) == by_vidcom2
    assert tokens_per_grid <= by_evs <= tokens_per_grid * num_grids
    assert num_grids <= by_vidcom2 <= tokens_per_grid * num_grids


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
    "value", [1, 1.0, -0.1, float("nan"), float("inf"), 10**400, True, False, "0.5", None, [0.5]]
)
def test_what_is_no_rate_is_refused(value):
    with pytest.raises(ValueError, match="video_pruning_rate must be"):
        checked_rate(value)


def rates_of(value, num_videos=2):
    return per_video(
        value, field="video_pruning_rate", num_videos=num_videos, default=0.1, check=checked_rate
    )


def test_one_rate_goes_for_all_videos_and_a_list_one_by_one():
    assert rates_of(0.5) == [0.5, 0.5]
    assert rates_of([0, None]) == [0.0, 0.1]
    assert rates_of(None) == [0.1, 0.1]


def test_a_list_of_another_length_is_refused():
    with pytest.raises(ValueError, match="video_pruning_rate lists 1 values for 2 videos"):
        rates_of([0.5])


@pytest.mark.parametrize("value", ["EVS", "random", "", 1, None, ["evs"]])
def test_what_is_no_method_is_refused(value):
    with pytest.raises(ValueError, match="video_pruning_method must be one of 'evs', 'vidcom2'"):
        checked_method(value)


def test_a_method_that_the_model_lacks_is_refused():
    with pytest.raises(ValueError, match="video_pruning_method must be one of 'evs' here"):
        checked_method("vidcom2", supported=("evs",))


def test_a_video_has_tokens():
    with pytest.raises(ValueError, match="is not a video"):
        retained_tokens(tokens_per_grid=0, num_grids=3, rate=0.5)
