"""Sets of bytes, and what servers say about theirs."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.media.byteranges import (
    ByteRange,
    ContentRange,
    at_most,
    joined,
    total_bytes,
    without,
)


def ranges(*edges):
    return [ByteRange(start, end) for start, end in edges]


def bytes_of(parts):
    return {place for part in parts for place in range(part.start, part.end)}


some_ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda t: ByteRange(t[0], t[0] + t[1])),
    max_size=8,
)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 5), (6, 5)])
def test_a_range_has_bytes(start, end):
    with pytest.raises(ValueError, match="no bytes"):
        ByteRange(start, end)


def test_ranges_that_touch_or_are_near_become_one():
    parts = ranges((20, 30), (0, 10), (10, 12), (25, 28))
    assert joined(parts) == ranges((0, 12), (20, 30))
    assert joined(parts, max_gap_bytes=7) == ranges((0, 12), (20, 30))
    assert joined(parts, max_gap_bytes=8) == ranges((0, 30))


def test_the_smallest_gaps_are_filled_first():
    parts = ranges((0, 1), (3, 4), (10, 11), (12, 13))
    assert at_most(4, parts) == parts
    assert at_most(3, parts) == ranges((0, 1), (3, 4), (10, 13))
    assert at_most(2, parts) == ranges((0, 4), (10, 13))
    assert at_most(1, parts) == ranges((0, 13))


@given(some_ranges)
def test_joining_loses_no_byte_and_adds_none(parts):
    result = joined(parts)
    assert bytes_of(result) == bytes_of(parts)
    assert total_bytes(result) == len(bytes_of(parts))
    assert all(a.end < b.start for a, b in pairwise(result))


@given(some_ranges, some_ranges)
def test_what_is_held_is_not_wanted(wanted, held):
    result = without(joined(wanted), joined(held))
    assert bytes_of(result) == bytes_of(wanted) - bytes_of(held)
    assert total_bytes(result) == len(bytes_of(result))


@given(some_ranges, st.integers(1, 8))
def test_few_ranges_hold_at_least_what_was_wanted(parts, count):
    result = at_most(count, joined(parts))
    assert len(result) <= count
    assert bytes_of(result) >= bytes_of(parts)


def test_a_content_range_is_read():
    found = ContentRange.parse(b"bytes 5-9/100")
    assert found == ContentRange(ByteRange(5, 10), 100)
    assert not found.is_whole
    assert ContentRange.parse(b" Bytes 0-99/100 ").is_whole


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"bytes */100",
        b"bytes 0-9/*",
        b"bytes 9-0/100",
        b"bytes 0-100/100",
        b"bytes -5-9/100",
        b"bytes 0-9",
        b"items 0-9/100",
        b"bytes 0-9/100, bytes 20-29/100",
        b"bytes 0-9/" + b"9" * 5000,
        "bytes 0-٩/100".encode(),
    ],
)
def test_nonsense_is_no_content_range(header):
    assert ContentRange.parse(header) is None
