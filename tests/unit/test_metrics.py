import asyncio
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from server.errors import (
    FileQuotaExceeded,
    FilesUnavailable,
    InvalidVideo,
    Overloaded,
    RequestTooLarge,
    StorageFull,
    VideoUnreachable,
)
from server.meters import CacheName, CacheOutcome, UploadOutcome
from server.metrics import Metrics, Outcome, PruningBucket, pruning_bucket


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


@pytest.mark.parametrize(
    ("rate", "bucket"),
    [
        (None, "none"),
        (0.0, "0"),
        (0.01, "(0,0.5]"),
        (0.5, "(0,0.5]"),
        (0.51, "(0.5,0.75]"),
        (0.75, "(0.5,0.75]"),
        (0.99, "(0.75,1)"),
    ],
)
def test_pruning_rates_fall_into_few_buckets(rate: float | None, bucket: str) -> None:
    assert pruning_bucket(rate) == bucket
    assert bucket in get_args(PruningBucket)


def test_first_token_is_observed_once_with_its_stages(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    metrics.observe_first_token(
        {"receive": 0.25, "prefill": 1.0}, 1.25, stream=True, pruning_rate=0.5
    )

    labels = {"stream": "true", "pruning": "(0,0.5]"}
    ttft = "videochat_time_to_first_token_seconds"
    assert value(registry, f"{ttft}_count", **labels) == 1
    assert value(registry, f"{ttft}_sum", **labels) == 1.25
    assert value(registry, "videochat_stage_seconds_sum", stage="prefill") == 1.0
    assert value(registry, "videochat_stage_seconds_count", stage="decode") == 0


def test_seconds_from_1_to_60_are_told_apart(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.observe_first_token({}, 12.0, stream=False, pruning_rate=None)

    buckets = [
        float(sample.labels["le"])
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "videochat_time_to_first_token_seconds_bucket"
    ]
    assert {1.5, 2, 3, 4, 6, 15, 30, 60} <= set(buckets)


def test_request_is_in_flight_until_it_ends(metrics: Metrics, registry: CollectorRegistry) -> None:
    with metrics.request() as record:
        assert value(registry, "videochat_requests_in_flight") == 1
        record.outcome = "client_error"

    assert value(registry, "videochat_requests_in_flight") == 0
    assert value(registry, "videochat_requests_total", outcome="client_error") == 1
    assert value(registry, "videochat_request_seconds_count", outcome="client_error") == 1


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(RuntimeError(), "internal_error"), (asyncio.CancelledError(), "cancelled")],
)
def test_request_that_raises_is_counted_too(
    metrics: Metrics, registry: CollectorRegistry, error: BaseException, outcome: str
) -> None:
    with pytest.raises(type(error)), metrics.request():
        raise error

    assert value(registry, "videochat_requests_in_flight") == 0
    assert value(registry, "videochat_requests_total", outcome=outcome) == 1
    assert value(registry, "videochat_requests_total", outcome="success") == 0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (VideoUnreachable("x"), "unreachable"),
        (RequestTooLarge("x"), "too_large"),
        (InvalidVideo("x"), "invalid"),
        (Overloaded("x"), "overloaded"),
        (OSError(), "internal_error"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
def test_video_is_counted_by_how_it_ends(
    metrics: Metrics, registry: CollectorRegistry, error: BaseException, outcome: str
) -> None:
    with pytest.raises(type(error)), metrics.video():
        raise error
    with metrics.video():
        pass

    assert value(registry, "videochat_videos_total", outcome=outcome) == 1
    assert value(registry, "videochat_videos_total", outcome="success") == 1


def test_decode_is_in_flight_while_it_runs(metrics: Metrics, registry: CollectorRegistry) -> None:
    with metrics.decode():
        assert value(registry, "videochat_decodes_in_flight") == 1
    assert value(registry, "videochat_decodes_in_flight") == 0


def test_video_tokens_are_counted_before_and_after(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    metrics.observe_video(num_frames=16, num_frames_replaced=3, tokens_before=512, tokens_after=128)

    assert value(registry, "videochat_video_tokens_before_total") == 512
    assert value(registry, "videochat_video_tokens_after_total") == 128
    assert value(registry, "videochat_video_frames_count") == 1
    assert value(registry, "videochat_video_frames_replaced_total") == 3


def test_two_servers_count_apart() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    Metrics(first).observe_video(
        num_frames=1, num_frames_replaced=0, tokens_before=1, tokens_after=1
    )
    Metrics(second)

    assert value(first, "videochat_video_frames_count") == 1
    assert value(second, "videochat_video_frames_count") == 0


def test_every_name_is_ours_and_every_outcome_starts_at_zero(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    assert all(metric.name.startswith("videochat_") for metric in registry.collect())
    text = generate_latest(registry).decode()
    for outcome in get_args(Outcome):
        assert f'videochat_requests_total{{outcome="{outcome}"}} 0.0' in text
    for outcome in get_args(UploadOutcome):
        assert f'videochat_file_uploads_total{{outcome="{outcome}"}} 0.0' in text


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RequestTooLarge("x"), "too_large"),
        (FileQuotaExceeded("x"), "over_quota"),
        (StorageFull("x"), "storage_full"),
        (FilesUnavailable(), "invalid"),
        (Overloaded("x"), "overloaded"),
        (OSError(), "internal_error"),
        (ConnectionError(), "cancelled"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
def test_upload_is_counted_by_how_it_ends(
    metrics: Metrics, registry: CollectorRegistry, error: BaseException, outcome: str
) -> None:
    with pytest.raises(type(error)), metrics.files.upload(disconnect=ConnectionError):
        raise error

    assert value(registry, "videochat_file_uploads_total", outcome=outcome) == 1
    assert value(registry, "videochat_file_uploads_total", outcome="success") == 0


def test_caches_are_counted_apart_and_start_at_zero(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    metrics.cache("clips").looked_up("shared")
    metrics.cache("clips").evicted()
    metrics.cache("clips").holds(7)

    lookups = "videochat_cache_lookups_total"
    for cache in get_args(CacheName):
        for outcome in get_args(CacheOutcome):
            expected = float((cache, outcome) == ("clips", "shared"))
            assert value(registry, lookups, cache=cache, outcome=outcome) == expected
    assert value(registry, "videochat_cache_evictions_total", cache="clips") == 1
    assert value(registry, "videochat_cache_evictions_total", cache="facts") == 0
    assert value(registry, "videochat_cache_bytes", cache="clips") == 7
