"""What the server counts and times, for Prometheus. Labels come from closed sets only."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from server.errors import VideoUnreachable
from server.meters import (
    SECONDS_BUCKETS,
    CacheMeter,
    CacheName,
    DownloadMeter,
    FileMeter,
    QueueMeter,
    failure_outcome,
)
from server.timing import STAGES, Stage

Outcome = Literal[
    "success", "client_error", "overloaded", "engine_error", "internal_error", "cancelled"
]
"""How a chat request ended."""
VideoOutcome = Literal[
    "success", "unreachable", "too_large", "invalid", "overloaded", "internal_error", "cancelled"
]
"""How fetching and decoding one video ended."""
PruningBucket = Literal["none", "0", "(0,0.5]", "(0.5,0.75]", "(0.75,1)"]
"""The pruning rate of a request, coarsely; ``none`` is a request without a video."""
_FRAMES_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024)


@dataclass(slots=True)
class RequestRecord:
    """A chat request being counted."""

    outcome: Outcome = "success"
    """Set before the request ends, if it ends in another way without raising."""


class Metrics:
    """The server's own collectors, in the registry they are given.

    None of their names starts with ``vllm:``: vLLM unregisters every collector that has it.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Define the collectors.

        Args:
            registry: where they live; by default one of their own, which nobody reads.
        """
        registry = CollectorRegistry() if registry is None else registry
        self.registry = registry
        """Where the collectors live."""
        self._first_token_seconds = Histogram(
            "videochat_time_to_first_token_seconds",
            "From the first byte of a request to its first token.",
            ("stream", "pruning"),
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._stage_seconds = Histogram(
            "videochat_stage_seconds",
            "The stages that add up to the time to first token.",
            ("stage",),
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._request_seconds = Histogram(
            "videochat_request_seconds",
            "From the headers of a chat request to the end of its answer.",
            ("outcome",),
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._requests = Counter(
            "videochat_requests", "Chat requests that ended.", ("outcome",), registry=registry
        )
        self._requests_in_flight = Gauge(
            "videochat_requests_in_flight", "Chat requests being served.", registry=registry
        )
        self._define_video_collectors(registry)
        self._define_cache_collectors(registry)
        self.decode_queue = QueueMeter(registry)
        """Of videos that wait for a decoder."""
        self.downloads = DownloadMeter(registry)
        """Of files that URLs lead to."""
        self.files = FileMeter(registry)
        """Of uploaded files."""
        self._start_at_zero()

    def _define_video_collectors(self, registry: CollectorRegistry) -> None:
        self._tokens_before = Counter(
            "videochat_video_tokens_before", "Video tokens before pruning.", registry=registry
        )
        self._tokens_after = Counter(
            "videochat_video_tokens_after", "Video tokens given to the model.", registry=registry
        )
        self._frames = Histogram(
            "videochat_video_frames",
            "Frames sampled from a video.",
            buckets=_FRAMES_BUCKETS,
            registry=registry,
        )
        self._frames_replaced = Counter(
            "videochat_video_frames_replaced",
            "Frames that could not be decoded and hold the picture of a neighbour.",
            registry=registry,
        )
        self._videos = Counter(
            "videochat_videos", "Videos fetched and decoded.", ("outcome",), registry=registry
        )
        self._decodes_in_flight = Gauge(
            "videochat_decodes_in_flight",
            "Videos between their bytes and their frames.",
            registry=registry,
        )

    def _define_cache_collectors(self, registry: CollectorRegistry) -> None:
        lookups = Counter(
            "videochat_cache_lookups",
            "Looks into a cache, by how they ended.",
            ("cache", "outcome"),
            registry=registry,
        )
        evictions = Counter(
            "videochat_cache_evictions",
            "Entries that had to go for newer ones.",
            ("cache",),
            registry=registry,
        )
        held = Gauge("videochat_cache_bytes", "What a cache holds.", ("cache",), registry=registry)
        self._caches = {
            name: CacheMeter(name, lookups, evictions, held) for name in get_args(CacheName)
        }

    def cache(self, name: CacheName) -> CacheMeter:
        """Returns the counters of a cache."""
        return self._caches[name]

    def _start_at_zero(self) -> None:
        """Create the labelled series, so that a rate over their first increase is right."""
        for outcome in get_args(Outcome):
            self._requests.labels(outcome)
        for outcome in get_args(VideoOutcome):
            self._videos.labels(outcome)
        for stage in STAGES:
            self._stage_seconds.labels(stage)

    @contextmanager
    def request(self) -> Iterator[RequestRecord]:
        """Counts and times the chat request served in the ``with`` block, however it ends."""
        record = RequestRecord()
        started_at = time.monotonic()
        try:
            with self._requests_in_flight.track_inprogress():
                yield record
        except BaseException as error:
            # CancelledError is none of the Exceptions.
            record.outcome = "internal_error" if isinstance(error, Exception) else "cancelled"
            raise
        finally:
            self._requests.labels(record.outcome).inc()
            self._request_seconds.labels(record.outcome).observe(time.monotonic() - started_at)

    @contextmanager
    def video(self, *, is_complete: bool = True) -> Iterator[None]:
        """Counts the video handled in the ``with`` block by how that ends.

        Args:
            is_complete: whether a block that succeeds has done all there is to do with the video;
                if not, only a failure is counted.
        """
        try:
            yield
        except BaseException as error:
            self._videos.labels(_video_outcome(error)).inc()
            raise
        if is_complete:
            self._videos.labels("success").inc()

    @contextmanager
    def decode(self) -> Iterator[None]:
        """Counts a decode as in flight during the ``with`` block."""
        with self._decodes_in_flight.track_inprogress():
            yield

    def observe_first_token(
        self,
        stages: Mapping[Stage, float],
        ttft_seconds: float,
        *,
        stream: bool,
        pruning_rate: float | None,
    ) -> None:
        """Note the first token of a request.

        Args:
            stages: seconds that each stage took; they add up to ``ttft_seconds``.
            ttft_seconds: from the request's first byte to its first token.
            stream: whether the answer is streamed.
            pruning_rate: highest rate among the request's videos, None without a video.
        """
        labels = ("true" if stream else "false", pruning_bucket(pruning_rate))
        self._first_token_seconds.labels(*labels).observe(ttft_seconds)
        for stage, seconds in stages.items():
            self._stage_seconds.labels(stage).observe(seconds)

    def observe_video(
        self, *, num_frames: int, num_frames_replaced: int, tokens_before: int, tokens_after: int
    ) -> None:
        """Note what was sampled from one video and what pruning left of it."""
        self._frames.observe(num_frames)
        self._frames_replaced.inc(num_frames_replaced)
        self._tokens_before.inc(tokens_before)
        self._tokens_after.inc(tokens_after)


def pruning_bucket(rate: float | None) -> PruningBucket:
    """Returns the label for a pruning rate in [0, 1), or for no video."""
    if rate is None:
        return "none"
    if rate == 0:
        return "0"
    if rate <= 0.5:
        return "(0,0.5]"
    return "(0.5,0.75]" if rate <= 0.75 else "(0.75,1)"


def _video_outcome(error: BaseException) -> VideoOutcome:
    return "unreachable" if isinstance(error, VideoUnreachable) else failure_outcome(error)
