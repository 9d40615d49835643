import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.conversation import SamplingWish
from server.media.clip import VideoFacts
from server.media.sampling import frame_count, plan_frames
from server.settings import VideoSettings


def facts(times, duration):
    return VideoFacts(
        container="mp4",
        codec="h264",
        width=320,
        height=240,
        rotation_degrees=0,
        frame_times_seconds=tuple(times),
        duration_seconds=duration,
    )


def steady(num_frames, fps):
    return facts([number / fps for number in range(num_frames)], num_frames / fps)


def indices(video, wish=SamplingWish(), tps=2, **settings):  # noqa: B008  # frozen
    return plan_frames(
        video, wish, VideoSettings(**settings), temporal_patch_size=tps
    ).frame_indices


@st.composite
def variable_videos(draw):
    gaps = draw(st.lists(st.floats(0, 5), min_size=0, max_size=80))
    times = [0.0]
    for gap in gaps:
        times.append(times[-1] + gap)
    return facts(times, times[-1] + draw(st.floats(0.001, 5)))


wishes = st.one_of(
    st.builds(SamplingWish),
    st.builds(SamplingWish, fps=st.floats(0.01, 500)),
    st.builds(SamplingWish, num_frames=st.integers(1, 2000)),
)


@given(variable_videos(), wishes, st.sampled_from([1, 2, 4]))
def test_frames_ascend_within_the_video_and_the_caps(video, wish, tps):
    chosen = indices(video, wish, tps, min_frames=4, max_frames=50)
    assert list(chosen) == sorted(chosen)
    assert chosen[0] == 0 or video.frame_times_seconds[chosen[0]] < 0.001
    assert 0 <= chosen[0] <= chosen[-1] < video.num_frames
    floor = 4 // tps * tps if wish.num_frames is None else 1
    assert min(floor, video.num_frames) <= len(chosen) <= max(tps, min(50, video.num_frames))
    assert len(chosen) % tps == 0 or len(chosen) == video.num_frames


@given(st.integers(1, 500), st.integers(1, 400), st.integers(1, 16), st.sampled_from([1, 2]))
def test_the_count_is_the_wish_clamped_and_rounded(available, asked, min_frames, tps):
    count = frame_count(
        asked=asked,
        available=available,
        min_frames=min_frames,
        max_frames=64,
        temporal_patch_size=tps,
    )
    clamped = min(max(asked, min_frames), 64, available)
    assert count in (clamped, clamped + 1)
    assert count <= min(64, available)
    assert count == clamped or count % tps == 0


@given(st.sampled_from([12, 24, 25, 30, 50, 60]), st.integers(2, 20), st.integers(1, 6))
def test_a_constant_rate_video_is_sampled_at_equal_steps(fps, seconds, divisor):
    if fps % divisor:
        return
    chosen = indices(
        steady(fps * seconds, fps), SamplingWish(fps=divisor), 1, min_frames=1, max_frames=10_000
    )
    assert chosen == tuple(range(0, fps * seconds, fps // divisor))


@pytest.mark.parametrize("ms_rounding", [round, int])
def test_times_rounded_to_milliseconds_choose_the_same_frames(ms_rounding):
    exact = [number / 30 for number in range(300)]
    rounded = [ms_rounding(time * 1000) / 1000 for time in exact]
    assert indices(facts(rounded, 10.0), SamplingWish(fps=15)) == tuple(range(0, 300, 2))


@pytest.mark.parametrize("fps", [23.976, 29.97, 59.94, 7.22])
def test_float_noise_on_frame_times_does_not_pick_the_frame_before(fps):
    video = steady(round(fps * 10), fps)
    every_second = SamplingWish(num_frames=video.num_frames // 2)
    if video.num_frames % 2:
        return
    assert indices(video, every_second) == tuple(range(0, video.num_frames, 2))


def test_a_held_frame_repeats():
    slideshow = facts([0, 1, 9, *(9 + n / 10 for n in range(1, 11))], 10.1)
    chosen = indices(slideshow, SamplingWish(num_frames=10))
    assert chosen == (0, 1, 1, 1, 1, 1, 1, 1, 1, 2)


def test_without_a_wish_the_default_rate_is_used():
    assert indices(steady(300, 30), default_fps=3) == tuple(range(0, 300, 10))


def test_fps_is_clamped_to_the_highest_allowed():
    assert len(indices(steady(300, 30), SamplingWish(fps=1000), max_fps=5)) == 50


def test_a_clamped_count_covers_the_whole_video():
    chosen = indices(steady(3000, 30), SamplingWish(fps=30), max_frames=10)
    assert chosen == tuple(range(0, 3000, 300))


def test_the_span_keeps_the_rate_exact_when_it_is_not_clamped():
    plan = plan_frames(steady(303, 30), SamplingWish(fps=2), VideoSettings(), temporal_patch_size=2)
    assert plan.span_seconds == 10.0
    assert plan.frame_indices == tuple(range(0, 300, 15))


@pytest.mark.parametrize(("num_frames", "count"), [(2, 2), (3, 3), (5, 4)])
def test_short_videos_give_what_they_have(num_frames, count):
    assert len(indices(steady(num_frames, 30))) == count


@pytest.mark.parametrize(
    ("num_frames", "tps", "chosen"), [(1, 1, (0,)), (1, 2, (0, 0)), (3, 4, (0, 1, 2, 2))]
)
def test_too_few_frames_for_one_step_in_time_hold_the_last(num_frames, tps, chosen):
    assert indices(steady(num_frames, 30), tps=tps) == chosen


def test_a_cap_below_one_step_in_time_holds_its_frame():
    assert indices(steady(300, 30), min_frames=1, max_frames=1) == (0, 0)


def test_an_uneven_cap_is_rounded_down():
    assert len(indices(steady(300, 30), SamplingWish(num_frames=300), max_frames=15)) == 14


def test_the_frame_cap_also_limits_num_frames():
    assert len(indices(steady(300, 30), SamplingWish(num_frames=200), max_frames=16)) == 16


@pytest.mark.parametrize("asked", [2, 4, 6])
def test_a_number_asked_for_is_not_raised_to_the_floor(asked):
    settings = VideoSettings(min_frames=6, max_frames=64)

    plan = plan_frames(
        steady(240, 24), SamplingWish(num_frames=asked), settings, temporal_patch_size=2
    )

    assert asked == len(plan.frame_indices)
