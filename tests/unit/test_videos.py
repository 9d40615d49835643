"""Which plans are refused before a frame is decoded."""

import dataclasses

import pytest

from server.conversation import PixelLimits, SamplingWish, UrlSource, VideoRequest
from server.errors import ContextLengthExceeded
from server.media.clip import FramePlan, VideoFacts
from server.media.planning import ClipPlan
from server.media.sampling import Sampling
from server.videos import VideoFit
from tests.unit.api.stubs import model_facts

FACTS = VideoFacts("mp4", "h264", 64, 64, 0, (0.0,), 8.0)


def video(index):
    return VideoRequest(UrlSource("data:,"), f"messages[{index}]", SamplingWish(), 0.0, "evs")


def check(fit, index, num_frames, span_seconds=8.0, rate=0.0):
    """Ask about a plan; every frame is a token."""
    indices = tuple(range(num_frames))
    sampling = Sampling(indices, 0.0, span_seconds, SamplingWish())
    fit.checker_of(index)(
        FACTS, ClipPlan(sampling, FramePlan(indices, 64, 64), PixelLimits(), rate)
    )


def limits(**changes):
    return dataclasses.replace(model_facts(), **changes)


def test_a_video_above_the_limit_of_one_video_is_refused_with_the_cure():
    fit = VideoFit(limits(max_video_tokens=100), [video(0)])
    check(fit, 0, 100)
    with pytest.raises(ContextLengthExceeded, match=r"has 101 video tokens; .* 100 a") as caught:
        check(fit, 0, 101)
    assert caught.value.param == "messages[0]"
    assert "video_pruning_rate" in str(caught.value)


def test_videos_that_fill_the_context_together_are_refused():
    fit = VideoFit(limits(max_model_len=100), [video(0), video(1)])
    check(fit, 0, 60)
    check(fit, 1, 39)
    with pytest.raises(ContextLengthExceeded, match="the prompt to 100 video tokens") as caught:
        check(fit, 1, 40)
    assert caught.value.param == "messages[1]"


def test_what_pruning_removes_does_not_count():
    check(VideoFit(limits(max_model_len=100), [video(0)]), 0, 190, rate=0.5)


def test_videos_that_span_more_time_than_the_model_has_positions_for_are_refused():
    fit = VideoFit(limits(max_video_seconds=16.0), [video(0), video(1), video(2)])
    check(fit, 0, 2)
    check(fit, 1, 2)
    with pytest.raises(ContextLengthExceeded, match=r"to 24\.0 s of video; .* 16 s") as caught:
        check(fit, 2, 2)
    assert caught.value.param == "messages[2]"


def test_only_the_sampled_stretch_counts_as_time():
    fit = VideoFit(limits(max_video_seconds=3.0), [video(0)])
    check(fit, 0, 2, span_seconds=2.5)
    with pytest.raises(ContextLengthExceeded, match="start_offset"):
        check(fit, 0, 2, span_seconds=3.5)
