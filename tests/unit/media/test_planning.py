"""From facts and wishes to a clip's plan, for models of a simple kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.conversation import PixelLimits, SamplingWish, VideoRequest
from server.errors import InvalidRequest
from server.media.clip import VideoFacts
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


def video(pixels=PixelLimits(), **wish):  # noqa: B008  # frozen
    return VideoRequest("data:,", "messages[0]", SamplingWish(**wish), 0.0, "evs", pixels)


def planned(request, **settings):
    return ClipPlanner(VideoSettings(**settings), Tiles()).plan(FACTS, request)


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
