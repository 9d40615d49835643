from fractions import Fraction

import pytest

from server.media.timeline import PacketFacts, Span, Timeline, can_be_shared


def timeline(times, keys=(0,), hidden=(), duration=1, **options):
    packets = [
        PacketFacts(time, duration, index in keys, index not in hidden)
        for index, time in enumerate(times)
    ]
    options = {"time_base": Fraction(1, 10), "frames_per_second": Fraction(10), **options}
    return Timeline(packets, **options)


def test_frames_are_numbered_in_presentation_order():
    line = timeline([0, 4, 2, 1, 3])
    assert line.frame_numbers() == [0, 4, 2, 1, 3]
    assert line.times_seconds == pytest.approx((0, 0.1, 0.2, 0.3, 0.4))
    assert line.duration_seconds == pytest.approx(0.5)


def test_times_are_relative_to_the_first_shown_frame():
    line = timeline([-3, -2, 7, 8], hidden=(0, 1))
    assert line.frame_numbers() == [None, None, 0, 1]
    assert line.times_seconds == pytest.approx((0, 0.1))


def test_the_last_frame_lasts_the_mean_gap_where_nothing_says_how_long():
    assert timeline([0, 4, 8], duration=0).duration_seconds == pytest.approx(1.2)
    assert timeline([7], duration=0).duration_seconds == pytest.approx(0.1)


@pytest.mark.parametrize("times", [[None, None, None], [0, None, 2], [5, 5, 5]])
def test_without_usable_times_the_rate_dates_the_frames(times):
    line = timeline(times)
    assert not line.is_timed
    assert line.times_seconds == pytest.approx((0, 0.1, 0.2))
    assert line.duration_seconds == pytest.approx(0.3)


@pytest.mark.parametrize("rate", [None, Fraction(2_000_000_000), Fraction(1, 512)])
def test_an_impossible_rate_counts_as_25(rate):
    line = timeline([None, None], frames_per_second=rate)
    assert line.duration_seconds == pytest.approx(2 / 25)


def test_equal_times_keep_decode_order():
    assert timeline([0, 3, 3, 1]).frame_numbers() == [0, 2, 3, 1]


def test_a_span_starts_at_the_last_keyframe_and_ends_with_the_frame():
    line = timeline(list(range(30)), keys=(0, 10, 20))
    assert line.spans([15]) == [Span(10, 15)]
    assert line.spans([3, 25]) == [Span(0, 3), Span(20, 25)]


def test_frames_of_one_group_share_a_span():
    line = timeline(list(range(30)), keys=(0, 10, 20))
    assert line.spans([12, 15, 18]) == [Span(10, 18)]


def test_spans_that_touch_are_one():
    assert timeline(list(range(30)), keys=(0, 10, 20)).spans([9, 15]) == [Span(0, 15)]


def test_a_frame_shown_before_its_keyframe_needs_the_group_before():
    # Decode order: I0 P3 B1 B2, then I6 whose leading B4 B5 are shown before it.
    line = timeline([0, 3, 1, 2, 6, 4, 5, 7], keys=(0, 4))
    assert line.spans([4]) == [Span(0, 5)]
    assert line.spans([7]) == [Span(4, 7)]
    assert line.spans([5, 6]) == [Span(0, 6)]


def test_neighbours_of_a_frame_are_in_its_span():
    line = timeline(list(range(30)), keys=(0, 10, 20))
    assert line.spans([10], num_neighbours=1) == [Span(0, 11)]
    assert line.spans([9], num_neighbours=1) == [Span(0, 10)]
    assert line.spans([0, 29], num_neighbours=1) == [Span(0, 1), Span(20, 29)]
    # Decode order: I0 P3 B1 B2, then I6 whose leading B4 B5 are shown before it.
    line = timeline([0, 3, 1, 2, 6, 4, 5, 7], keys=(0, 4))
    assert line.spans([7], num_neighbours=1) == [Span(4, 7)]
    assert line.spans([6], num_neighbours=1) == [Span(0, 7)]


def test_frames_that_never_come_out_can_be_left_out():
    line = timeline([5, 6, 7, 8]).without({0, 1})
    assert line.frame_numbers() == [None, None, 0, 1]
    assert line.times_seconds == pytest.approx((0, 0.1))


def test_no_packets_are_no_frames():
    assert timeline([]).num_frames == 0


def test_keyframes_are_named_by_the_frame_they_show():
    assert timeline([0, 4, 2, 1, 3], keys=(0, 1)).keyframe_numbers == (0, 4)
    assert timeline([-3, -2, 7, 8], keys=(0, 2), hidden=(0, 1)).keyframe_numbers == (0,)


@pytest.mark.parametrize(
    ("sizes", "num_workers", "expected"),
    [
        ([10, 10, 10, 10], 2, True),
        ([10, 10, 10], 2, False),
        ([30, 10, 10, 10], 2, True),
        ([31, 10, 10, 10], 2, False),
        ([10] * 8, 4, True),
        ([10] * 8, 5, False),
        ([10] * 8, 1, False),
        ([], 2, False),
    ],
)
def test_spans_are_shared_when_all_workers_stay_busy(sizes, num_workers, expected):
    spans = [Span(100 * n, 100 * n + size - 1) for n, size in enumerate(sizes)]
    assert can_be_shared(spans, num_workers) is expected
