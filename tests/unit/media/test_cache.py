"""What a cache keeps, and what it lets go."""

import pytest

from server.media.cache import BoundedCache
from server.metrics import Metrics


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def make_cache(metrics):
    return lambda max_bytes: BoundedCache(
        max_bytes=max_bytes, size_of=len, meter=metrics.cache("downloads")
    )


def test_what_was_used_longest_ago_goes_first(make_cache, metrics):
    cache = make_cache(10)
    cache.put(b"a", b"1234")
    cache.put(b"b", b"1234")
    assert cache.get(b"a") == b"1234"
    cache.put(b"c", b"123")
    assert [cache.get(key) for key in (b"a", b"b", b"c")] == [b"1234", None, b"123"]
    assert _sample(metrics, "videochat_cache_evictions_total") == 1
    assert _sample(metrics, "videochat_cache_bytes") == 7


def test_an_entry_larger_than_the_cache_passes_through(make_cache, metrics):
    cache = make_cache(10)
    cache.put(b"a", b"1234")
    cache.put(b"b", b"12345678901")
    assert cache.get(b"a") == b"1234"
    assert cache.get(b"b") is None
    assert _sample(metrics, "videochat_cache_evictions_total") == 0


def test_a_cache_of_no_bytes_keeps_nothing(make_cache):
    cache = make_cache(0)
    cache.put(b"a", b"1")
    assert cache.get(b"a") is None


def test_a_new_value_takes_the_place_of_the_old_one(make_cache, metrics):
    cache = make_cache(10)
    cache.put(b"a", b"12345678")
    cache.put(b"a", b"123456789")
    assert cache.get(b"a") == b"123456789"
    assert _sample(metrics, "videochat_cache_bytes") == 9


def test_many_small_entries_are_bounded_in_number(make_cache):
    cache = make_cache(1_000_000)
    for number in range(300):
        cache.put(number.to_bytes(2), b"1")
    kept = [number for number in range(300) if cache.get(number.to_bytes(2))]
    assert kept == list(range(300 - 256, 300))


def test_clearing_forgets_everything(make_cache, metrics):
    cache = make_cache(10)
    cache.put(b"a", b"1")
    cache.clear()
    assert cache.get(b"a") is None
    assert _sample(metrics, "videochat_cache_bytes") == 0


def _sample(metrics, name):
    return metrics.registry.get_sample_value(name, {"cache": "downloads"})
