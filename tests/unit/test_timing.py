"""The stopwatch: stages add up to the time to first token, whatever order the times come in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.timing import STAGES, Stopwatch

MOMENTS = st.floats(min_value=0, max_value=1e6)


def test_consecutive_stages_are_measured_and_add_up() -> None:
    watch = Stopwatch(first_byte_at=10.0)
    for seconds, stage in enumerate(STAGES, start=1):
        watch.end(stage, at=10.0 + seconds)

    assert dict.fromkeys(STAGES, 1.0) == watch.stage_seconds
    assert watch.time_to_first_token_seconds == 6.0


def test_there_is_no_time_to_first_token_before_prefill_has_ended() -> None:
    watch = Stopwatch(first_byte_at=10.0)
    watch.end("receive", at=11.0)

    assert watch.time_to_first_token_seconds is None
    assert {k: v for k, v in watch.stage_seconds.items() if v} == {"receive": 1.0}


def test_the_first_end_of_a_stage_counts() -> None:
    watch = Stopwatch(first_byte_at=0.0)
    watch.end("receive", at=1.0)
    watch.end("receive", at=5.0)

    assert watch.stage_seconds["receive"] == 1.0


def test_a_stage_that_did_not_run_takes_no_time() -> None:
    watch = Stopwatch(first_byte_at=0.0)
    watch.end("receive", at=1.0)
    watch.end("decode", at=3.0)

    assert {"receive": 1.0, "fetch": 0.0, "decode": 2.0}.items() <= watch.stage_seconds.items()


def test_a_time_before_the_stage_before_is_moved_up() -> None:
    watch = Stopwatch(first_byte_at=0.0)
    watch.end("preprocess", at=5.0)
    watch.end("queue", at=4.0)

    assert watch.stage_seconds["queue"] == 0.0


def test_without_a_given_start_the_clock_starts_now() -> None:
    watch = Stopwatch()
    for stage in STAGES:
        watch.end(stage)

    assert watch.time_to_first_token_seconds is not None
    assert 0 <= watch.time_to_first_token_seconds < 60


@given(first_byte_at=MOMENTS, moments=st.lists(MOMENTS, min_size=6, max_size=6))
def test_stages_always_add_up(first_byte_at: float, moments: list[float]) -> None:
    watch = Stopwatch(first_byte_at=first_byte_at)
    for stage, moment in zip(STAGES, moments, strict=True):
        watch.end(stage, at=moment)

    assert all(seconds >= 0 for seconds in watch.stage_seconds.values())
    assert sum(watch.stage_seconds.values()) == pytest.approx(
        watch.time_to_first_token_seconds, abs=1e-6
    )
