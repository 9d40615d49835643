"""Which plans are refused before a frame is decoded."""

import dataclasses

import pytest

from server.conversation import SamplingWish, UrlSource, VideoRequest
from server.errors import ContextLengthExceeded
from server.media.clip import FramePlan, VideoFacts
from server.pipeline import _TokenBudget
from tests.unit.api.stubs import model_facts

FACTS = VideoFacts("mp4", "h264", 64, 64, 0, (0.0,), 8.0)


def video(index, rate=0.0):
    return VideoRequest(UrlSource("data:,"), f"messages[{index}]", SamplingWish(), rate, "evs")


def check(budget, index, num_frames):
    """Ask about a plan; every frame is a token."""
    budget.checker_of(index)(FACTS, FramePlan(tuple(range(num_frames)), 64, 64))


def limits(**changes):
    return dataclasses.replace(model_facts(), **changes)


def test_a_video_above_the_limit_of_one_video_is_refused_with_the_cure():
    budget = _TokenBudget(limits(max_video_tokens=100), [video(0)])
    check(budget, 0, 100)
    with pytest.raises(ContextLengthExceeded, match=r"has 101 video tokens; .* 100 a") as caught:
        check(budget, 0, 101)
    assert caught.value.param == "messages[0]"
    assert "video_pruning_rate" in str(caught.value)


def test_videos_that_fill_the_context_together_are_refused():
    budget = _TokenBudget(limits(max_model_len=100), [video(0), video(1)])
    check(budget, 0, 60)
    check(budget, 1, 39)
    with pytest.raises(ContextLengthExceeded, match="the prompt to 100 video tokens") as caught:
        check(budget, 1, 40)
    assert caught.value.param == "messages[1]"


def test_what_pruning_removes_does_not_count():
    check(_TokenBudget(limits(max_model_len=100), [video(0, rate=0.5)]), 0, 190)


def test_videos_that_span_more_time_than_the_model_has_positions_for_are_refused():
    budget = _TokenBudget(limits(max_video_seconds=16.0), [video(0), video(1), video(2)])
    check(budget, 0, 2)
    check(budget, 1, 2)
    with pytest.raises(ContextLengthExceeded, match=r"to 24\.0 s of video; .* 16 s") as caught:
        check(budget, 2, 2)
    assert caught.value.param == "messages[2]"
