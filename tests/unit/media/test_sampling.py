import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.conversation import SamplingWish
from server.errors import InvalidRequest
from server.media.clip import VideoFacts
from server.media.sampling import frame_count, plan_frames
from server.settings import VideoSettings


def facts(times, duration, keyframes=(0,)):
    return VideoFacts(
        container="mp4",
        codec="h264",
        width=320,
        height=240,
        rotation_degrees=0,
        frame_times_seconds=tuple(times),
        duration_seconds=duration,
        keyframe_indices=tuple(keyframes),
    )


def steady(num_frames, fps, keyframes=(0,)):
    return facts([number / fps for number in range(num_frames)], num_frames / fps, keyframes)


def plan(video, wish=SamplingWish(), tps=2, **settings):  # noqa: B008  # frozen
    return plan_frames(video, wish, VideoSettings(**settings), temporal_patch_size=tps)


def indices(video, wish=SamplingWish(), tps=2, **settings):  # noqa: B008  # frozen
    return plan(video, wish, tps, **settings).frame_indices


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
    sampling = plan(steady(303, 30), SamplingWish(fps=2))
    assert sampling.span_seconds == 10.0
    assert sampling.frame_indices == tuple(range(0, 300, 15))


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
    chosen = indices(steady(240, 24), SamplingWish(num_frames=asked), min_frames=6, max_frames=64)

    assert asked == len(chosen)


# --- the client's own floor and cap


def test_the_clients_floor_replaces_the_servers_and_its_cap_only_lowers_it():
    video = steady(60, 30)
    assert len(indices(video, SamplingWish(fps=1, min_frames=2))) == 2
    assert len(indices(video, SamplingWish(fps=1, min_frames=10))) == 10
    assert len(indices(video, SamplingWish(fps=1, min_frames=500), max_frames=12)) == 12
    assert len(indices(video, SamplingWish(fps=30, max_frames=8))) == 8
    assert len(indices(video, SamplingWish(fps=30, max_frames=80), max_frames=12)) == 12
    assert len(indices(video, SamplingWish(max_frames=2), min_frames=4)) == 2


def test_what_was_granted_is_told():
    video = steady(300, 30)
    fast = plan(video, SamplingWish(fps=100, max_frames=1000, end_seconds=99.0), max_fps=5)
    assert fast.granted == SamplingWish(fps=5, min_frames=4, max_frames=256, end_seconds=10.0)
    many = plan(video, SamplingWish(num_frames=900), max_frames=16)
    assert (many.granted.num_frames, many.granted.fps) == (16, None)
    assert plan(video).granted.fps == 2.0


@pytest.mark.parametrize(
    ("wish", "tps", "count", "granted"),
    [
        # (num_frames, min_frames, max_frames)
        ({"num_frames": 1}, 2, 2, (2, 1, 256)),
        ({"num_frames": 3}, 2, 4, (4, 1, 256)),
        ({"num_frames": 7}, 2, 8, (8, 1, 256)),
        ({"num_frames": 7}, 1, 7, (7, 1, 256)),
        ({"num_frames": 3, "max_frames": 3}, 2, 2, (2, 1, 2)),
        ({"num_frames": 1, "max_frames": 1}, 2, 2, (2, 1, 2)),
        ({"min_frames": 3, "max_frames": 3}, 2, 2, (None, 2, 2)),
        ({"min_frames": 3, "max_frames": 3}, 1, 3, (None, 3, 3)),
        ({"min_frames": 3, "max_frames": 5, "fps": 0.01}, 2, 4, (None, 4, 4)),
        ({"min_frames": 5, "max_frames": 7, "fps": 0.01}, 4, 4, (None, 4, 4)),
        ({"max_frames": 1}, 2, 2, (None, 2, 2)),
        ({"max_frames": 1}, 1, 1, (None, 1, 1)),
        ({"max_frames": 3}, 4, 4, (None, 4, 4)),
        ({"min_frames": 300}, 2, 256, (None, 256, 256)),
    ],
)
def test_frames_come_in_whole_steps_and_the_numbers_granted_are_those_used(
    wish, tps, count, granted
):
    found = plan(steady(300, 30), SamplingWish(**wish), tps)
    assert len(found.frame_indices) == count
    told = found.granted
    assert (told.num_frames, told.min_frames, told.max_frames) == granted


@pytest.mark.parametrize(
    ("wish", "count", "granted"),
    [
        ({"num_frames": 5}, 5, (5, 1, 256)),
        ({"num_frames": 9}, 5, (5, 1, 256)),
        ({"num_frames": 3}, 4, (4, 1, 256)),
        ({"max_frames": 5, "fps": 30}, 5, (None, 4, 5)),
        ({"min_frames": 5, "max_frames": 5}, 5, (None, 5, 5)),
        ({"min_frames": 9}, 5, (None, 10, 256)),
    ],
)
def test_all_frames_of_a_short_clip_may_be_an_odd_number(wish, count, granted):
    found = plan(steady(5, 30), SamplingWish(**wish))
    assert len(found.frame_indices) == count
    told = found.granted
    assert (told.num_frames, told.min_frames, told.max_frames) == granted


@given(
    st.integers(1, 60),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 40),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["exact", "keyframe"]),
)
def test_the_count_is_what_the_granted_numbers_say(available, number, low, high, tps, alignment):
    if low and high and low > high:
        low, high = high, low
    numbers = {"num_frames": number, "min_frames": low, "max_frames": high}
    video = steady(available, 30, keyframes=range(0, available, 7))
    found = plan(video, SamplingWish(alignment=alignment, **numbers), tps, max_frames=30)
    count, granted = len(found.frame_indices), found.granted
    assert count <= granted.max_frames <= max(30, tps)
    assert granted.max_frames <= max(high or 30, tps)
    assert granted.num_frames in (None, count)
    if alignment == "exact":
        assert count >= min(granted.min_frames, available)
        assert count % tps == 0 or count == available


# --- a stretch of the video


@st.composite
def cuts(draw, video):
    start = draw(st.floats(0, video.duration_seconds, exclude_max=True))
    length = draw(st.none() | st.floats(0.001, 2 * video.duration_seconds))
    end = None if length is None or start + length <= start else start + length
    return start, end


@given(st.data(), variable_videos(), wishes, st.sampled_from([1, 2, 4]))
def test_frames_of_a_stretch_are_those_on_screen_during_it(data, video, wish, tps):
    start, end = data.draw(cuts(video))
    cut = replace(wish, start_seconds=start, end_seconds=end)
    sampling = plan(video, cut, tps, min_frames=4, max_frames=50)
    chosen, times = sampling.frame_indices, video.frame_times_seconds
    stop = min(end or video.duration_seconds, video.duration_seconds)

    assert list(chosen) == sorted(chosen)
    assert sampling.start_seconds == start
    assert sampling.granted.end_seconds == stop
    assert sampling.span_seconds > 0
    # The first may have appeared before the start, if it is still on screen then.
    assert times[chosen[0]] <= start + 0.0006
    assert chosen[0] + 1 == video.num_frames or times[chosen[0] + 1] >= start or start == 0
    assert all(times[index] < stop for index in chosen if index != chosen[0])
    assert len(chosen) <= max(tps, 50)


@given(
    st.sampled_from([12, 25, 29.97, 30]), st.integers(0, 200), st.integers(4, 100), st.integers(1)
)
def test_a_stretch_is_sampled_like_a_video_of_its_own(fps, first, count, num_frames):
    wish = SamplingWish(num_frames=num_frames)
    cut = replace(wish, start_seconds=first / fps, end_seconds=(first + count) / fps)
    alone = indices(steady(count, fps), wish)
    assert indices(steady(320, fps), cut) == tuple(first + index for index in alone)


@given(st.lists(st.floats(0.01, 9.9), min_size=1, max_size=5, unique=True))
def test_stretches_that_meet_share_no_frame_but_the_one_on_screen_between_them(borders):
    borders = [0.0, *sorted(borders), 10.0]
    parts = [
        indices(
            steady(300, 30),
            SamplingWish(num_frames=300, start_seconds=start, end_seconds=end),
            1,
            max_frames=300,
        )
        for start, end in itertools.pairwise(borders)
    ]
    for before, after in itertools.pairwise(parts):
        assert after[0] - before[-1] in (0, 1)
    assert {index for part in parts for index in part} == set(range(300))


def test_times_are_those_of_the_whole_video():
    sampling = plan(steady(300, 30), SamplingWish(fps=1, start_seconds=4.0, end_seconds=8.0))
    assert sampling.frame_indices == (120, 150, 180, 210)
    assert (sampling.start_seconds, sampling.span_seconds) == (4.0, 4.0)


def test_the_end_is_not_in_the_stretch():
    sampling = plan(steady(300, 30), SamplingWish(fps=30, start_seconds=1.0, end_seconds=2.0))
    assert sampling.frame_indices == tuple(range(30, 60))


def test_a_frame_held_over_the_start_is_on_screen():
    slideshow = facts([0, 5, 10], 15)
    wish = SamplingWish(start_seconds=6, end_seconds=8)
    assert indices(slideshow, wish) == (1, 1)
    assert indices(slideshow, wish, tps=1) == (1,)


@pytest.mark.parametrize("start", [10.0, 10.5, 1e6])
def test_a_start_beyond_the_end_is_refused(start):
    with pytest.raises(InvalidRequest, match=r"the video ends at 10\.000 s") as caught:
        plan(steady(300, 30), SamplingWish(start_seconds=start))
    assert caught.value.param == "start_offset"


# --- keyframes


KEYED = SamplingWish(alignment="keyframe")


@given(st.data(), variable_videos(), wishes, st.sampled_from([1, 2, 4]))
def test_keyframes_are_nearest_to_the_times_and_come_once(data, video, wish, tps):
    keyframes = data.draw(st.sets(st.integers(0, video.num_frames - 1)))
    video = facts(video.frame_times_seconds, video.duration_seconds, sorted(keyframes))
    exact = plan(video, wish, tps, min_frames=4, max_frames=50)
    keyed = plan(video, replace(wish, alignment="keyframe"), tps, min_frames=4, max_frames=50)
    chosen = keyed.frame_indices

    assert set(chosen) <= keyframes | {0}
    assert list(chosen) == sorted(chosen)
    assert len(set(chosen)) == len(chosen) or len(chosen) == tps
    assert tps <= len(chosen) <= max(tps, len(exact.frame_indices))
    assert (keyed.start_seconds, keyed.span_seconds) == (exact.start_seconds, exact.span_seconds)


def test_each_time_takes_the_keyframe_nearest_to_it():
    video = steady(300, 30, keyframes=(0, 50, 100, 250))
    wish = replace(KEYED, num_frames=5)  # at 0, 2, 4, 6, 8 s: frames 0, 60, 120, 180, 240
    assert indices(video, wish, 1) == (0, 50, 100, 250)


def test_too_few_keyframes_for_one_step_in_time_hold_the_last():
    assert indices(steady(300, 30), KEYED, 2) == (0, 0)


def test_keyframes_outside_the_stretch_do_not_count():
    video = steady(300, 30, keyframes=(0, 100, 200))
    wish = replace(KEYED, start_seconds=3.0, end_seconds=7.0, num_frames=4)
    assert indices(video, wish, 1) == (100, 200)
    with pytest.raises(InvalidRequest, match="no keyframe between 4 s and 6 s") as caught:
        plan(video, replace(wish, start_seconds=4.0, end_seconds=6.0))
    assert caught.value.param == "frame_alignment"
    # One that is held over the start is on screen in it.
    assert indices(facts([0, 5, 10], 15, (0, 1, 2)), replace(wish, start_seconds=6.0), 1) == (1,)


# --- wishes


@pytest.mark.parametrize(
    "wrong",
    [
        {"fps": 1, "num_frames": 2},
        {"min_frames": 3, "max_frames": 2},
        {"start_seconds": 2, "end_seconds": 2},
        {"end_seconds": 0},
        {"start_seconds": -1},
    ],
)
def test_a_wish_that_contradicts_itself_can_not_be_made(wrong):
    with pytest.raises(ValueError, match=r"exclude|above|no stretch"):
        SamplingWish(**wrong)
