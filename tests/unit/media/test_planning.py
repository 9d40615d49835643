"""From facts and wishes to a clip's plan, for models of a simple kind."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.conversation import PixelLimits, SamplingWish, TokenBudget, UrlSource, VideoRequest
from server.engine.base import VideoTokens
from server.errors import InvalidRequest
from server.evs.arithmetic import retained_tokens
from server.media.clip import FramePlan, VideoFacts
from server.media.planning import ClipPlanner, granted_limits
from server.settings import VideoSettings

FACTS = VideoFacts("mp4", "h264", 640, 480, 0, tuple(n / 30 for n in range(300)), 10.0)


class Tiles:
    """A model that sees frames in tiles of 10 pixels, from 2x2 tiles on."""

    temporal_patch_size = 2

    def frame_size(self, *, width, height, num_frames, limits):
        edge = int(min(limits.most_pixels(num_frames), width * height) ** 0.5)
        edge = max(20, min(edge, limits.max_side or edge) // 10 * 10)
        return edge, edge

    def video_tokens(self, *, width, height, num_frames, pruning_rate, pruning_method):
        per_grid, grids = width * height // 400, -(-num_frames // 2)
        after = retained_tokens(
            tokens_per_grid=per_grid, num_grids=grids, rate=pruning_rate, method=pruning_method
        )
        return VideoTokens(per_grid * grids, after)


class SharedTiles(Tiles):
    """As Qwen3-VL: a clip has a number of pixels, shared out among its frames."""

    def frame_size(self, *, width, height, num_frames, limits):
        share = PixelLimits(max_pixels=int(min(limits.most_pixels(num_frames), 4e6 / num_frames)))
        return super().frame_size(width=width, height=height, num_frames=num_frames, limits=share)


def video(pixels=PixelLimits(), **wish):  # noqa: B008  # frozen
    return VideoRequest(
        UrlSource("data:,"), "messages[0]", SamplingWish(**wish), 0.0, "evs", pixels
    )


def planned(request, geometry=None, **settings):
    return ClipPlanner(VideoSettings(**settings), geometry or Tiles()).plan(FACTS, request)


def budgeted(tokens, *, rate=0.0, max_rate=0.9, method="evs", **wish):
    budget = TokenBudget(tokens, max_rate)
    return replace(video(**wish), pruning_rate=rate, pruning_method=method, token_budget=budget)


def tokens(plan, request, geometry=None):
    return (geometry or Tiles()).video_tokens(
        width=plan.frames.width,
        height=plan.frames.height,
        num_frames=plan.frames.num_frames,
        pruning_rate=plan.pruning_rate,
        pruning_method=request.pruning_method,
    )


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("max_pixels", PixelLimits(max_pixels=399)),
        ("total_pixels", PixelLimits(total_pixels=7999)),
        ("total_pixels", PixelLimits(total_pixels=1)),
        ("spatial_limit", PixelLimits(max_side=19)),
    ],
)
def test_a_limit_that_the_model_can_not_keep_is_refused_by_name(name, limits):
    with pytest.raises(InvalidRequest, match="20 frames of this video at 20x20") as caught:
        planned(video(limits, num_frames=20))
    assert caught.value.param == name


def test_what_is_no_number_of_the_clients_is_kept_as_far_as_the_model_can():
    low = planned(video(PixelLimits(preferred_pixels=1)))
    capped = planned(video(), max_model_pixels_per_frame=100, max_model_pixels_per_video=100)
    assert (low.frames.width, capped.frames.width) == (20, 20)
    assert capped.limits == PixelLimits(max_pixels=100, total_pixels=100)


def test_the_servers_caps_lower_what_is_asked_for():
    wish = PixelLimits(min_pixels=90_000, max_pixels=100_000, total_pixels=10**9)
    plan = planned(
        video(wish, num_frames=10),
        max_model_pixels_per_frame=40_000,
        max_model_pixels_per_video=90_000,
    )
    assert plan.limits == PixelLimits(min_pixels=40_000, max_pixels=40_000, total_pixels=90_000)
    assert (plan.frames.width, plan.frames.height) == (90, 90)


limits = st.none() | st.integers(1, 10**9)


@given(limits, limits, limits, limits, limits)
def test_no_granted_limit_is_above_the_wish_or_the_cap(wished, total, preferred, cap, total_cap):
    wish = PixelLimits(max_pixels=wished, total_pixels=total, preferred_pixels=preferred)
    settings = VideoSettings(max_model_pixels_per_frame=cap, max_model_pixels_per_video=total_cap)
    granted = granted_limits(wish, settings)
    given_limits = [limit for limit in (wished, preferred, cap) if limit is not None]
    assert granted.max_pixels == (min(given_limits) if given_limits else None)
    assert granted.most_pixels(8) <= wish.most_pixels(8)


def test_limits_below_one_pixel_can_not_be_made():
    with pytest.raises(ValueError, match="at least 1 pixel"):
        PixelLimits(max_pixels=0)


# --- token budgets


def test_a_budget_that_is_kept_anyway_changes_nothing():
    request = budgeted(10**6, rate=0.25)
    assert planned(request) == planned(replace(request, token_budget=None))


def test_the_rate_is_the_lowest_that_fits_and_all_frames_are_kept():
    request = budgeted(1000)
    plan = planned(request)
    assert plan.frames.num_frames == 20
    assert tokens(plan, request).before == 7560
    assert tokens(plan, request).after == 1000


def test_a_rate_that_was_asked_for_is_the_least():
    assert planned(budgeted(5000, rate=0.8)).pruning_rate == 0.8
    assert planned(budgeted(5000, rate=0.1)).pruning_rate == pytest.approx(1 - 5000.5 / 7560)


def test_only_where_no_rate_is_enough_are_there_fewer_frames():
    request = budgeted(1000, max_rate=0.5)
    plan = planned(request)
    assert (plan.frames.num_frames, plan.frames.width) == (4, 550)
    assert plan.pruning_rate <= 0.5
    assert plan.sampling.granted.max_frames == 4
    assert plan.sampling.span_seconds == 10.0
    # One step more would not fit.
    more = replace(request, sampling=SamplingWish(num_frames=6), token_budget=None)
    assert tokens(planned(replace(more, pruning_rate=0.5)), request).after > 1000


def test_a_model_that_can_not_prune_gets_fewer_frames():
    request = budgeted(2000, max_rate=0.0)
    plan = planned(request)
    assert (plan.frames.num_frames, plan.pruning_rate) == (4, 0.0)


def test_the_clients_floor_of_frames_is_kept():
    with pytest.raises(InvalidRequest, match="6 frames of 550x550 pixels") as caught:
        planned(budgeted(1000, max_rate=0.5, min_frames=6))
    assert caught.value.param == "video_token_budget"


@pytest.mark.parametrize("num_frames", [1, 2, 3, 20])
def test_a_budget_below_one_step_is_refused_with_what_it_takes(num_frames):
    with pytest.raises(
        InvalidRequest, match=r"2 frames of 550x550 pixels take 756 tokens"
    ) as error:
        planned(budgeted(755, num_frames=num_frames))
    assert error.value.param == "video_token_budget"


@given(
    budget=st.integers(1, 20_000),
    rate=st.sampled_from([0.0, 0.3, 0.75]),
    max_rate=st.sampled_from([0.75, 0.9, 0.99]),
    method=st.sampled_from(["evs", "vidcom2"]),
    geometry=st.sampled_from([Tiles(), SharedTiles()]),
    wish=st.one_of(
        st.fixed_dictionaries({"fps": st.floats(0.1, 30)}),
        st.fixed_dictionaries({"num_frames": st.integers(1, 300)}),
        st.fixed_dictionaries({"start_seconds": st.floats(0, 9), "fps": st.floats(1, 30)}),
        st.just({"alignment": "keyframe", "num_frames": 10}),
    ),
)
def test_a_plan_within_a_budget_keeps_it_and_gives_up_no_more_than_it_has_to(
    budget, rate, max_rate, method, geometry, wish
):
    request = budgeted(budget, rate=rate, max_rate=max_rate, method=method, **wish)
    free = planned(replace(request, token_budget=None), geometry)
    # As long as it is, and of the size that it has among all frames.
    frames = FramePlan(free.frames.frame_indices[:2], free.frames.width, free.frames.height)
    shortest = replace(free, frames=frames, pruning_rate=max_rate)
    most_pruned = tokens(replace(free, pruning_rate=max_rate), request, geometry)
    if tokens(shortest, request, geometry).after > budget:
        with pytest.raises(InvalidRequest, match="Raise it"):
            planned(request, geometry)
        assert most_pruned.after > budget
        return
    plan = planned(request, geometry)
    found = tokens(plan, request, geometry)
    assert found.after <= budget
    assert rate <= plan.pruning_rate <= max_rate
    assert plan.frames.num_frames <= free.frames.num_frames
    assert (plan.frames.width, plan.frames.height) == (free.frames.width, free.frames.height)
    if plan.pruning_rate > rate:
        slightly_less = replace(plan, pruning_rate=plan.pruning_rate - 1 / found.before)
        assert tokens(slightly_less, request, geometry).after > budget
    assert plan.frames.num_frames == free.frames.num_frames or most_pruned.after > budget


@pytest.mark.parametrize(("tokens", "rate"), [(0, 0.5), (5, 1.0), (5, -0.1)])
def test_what_is_no_budget_can_not_be_made(tokens, rate):
    with pytest.raises(ValueError, match="is no budget"):
        TokenBudget(tokens, rate)
