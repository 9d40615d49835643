"""What the server counts and times, for Prometheus. Labels come from closed sets only."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from server.errors import (
    FileQuotaExceeded,
    Overloaded,
    RequestError,
    RequestTooLarge,
    StorageFull,
    VideoUnreachable,
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
UploadOutcome = Literal[
    "success",
    "too_large",
    "over_quota",
    "storage_full",
    "invalid",
    "overloaded",
    "internal_error",
    "cancelled",
]
"""How an upload of a file ended."""
DeletionReason = Literal["deleted", "expired"]
"""Why an uploaded file is gone: by its owner's wish, or its time was up."""
PruningBucket = Literal["none", "0", "(0,0.5]", "(0.5,0.75]", "(0.75,1)"]
"""The pruning rate of a request, coarsely; ``none`` is a request without a video."""
CacheName = Literal["clips", "facts", "downloads"]
"""What a cache holds: decoded frames, what probing found out, encoded videos of URLs."""
CacheOutcome = Literal["hit", "shared", "miss"]
"""How a look into a cache ended; ``shared`` joined work that was under way already."""
DownloadKind = Literal["whole", "range"]
"""How a file of a URL is read: all of it, or the parts that are needed."""

# The list of vllm:time_to_first_token_seconds, so that quantiles compare, and finer from 1 to 60 s,
# where requests with video are.
_SECONDS_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.5, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_FRAMES_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024)


@dataclass(slots=True)
class RequestRecord:
    """A chat request being counted."""

    outcome: Outcome = "success"
    """Set before the request ends, if it ends in another way without raising."""


class CacheMeter:
    """Counts what happens to one cache."""

    def __init__(self, name: CacheName, lookups: Counter, evictions: Counter, held: Gauge) -> None:
        self._lookups = {kind: lookups.labels(name, kind) for kind in get_args(CacheOutcome)}
        self._evictions = evictions.labels(name)
        self._bytes = held.labels(name)

    def looked_up(self, outcome: CacheOutcome) -> None:
        """Note how a look into the cache ended."""
        self._lookups[outcome].inc()

    def evicted(self) -> None:
        """Note that an entry had to go for a newer one."""
        self._evictions.inc()

    def holds(self, num_bytes: int) -> None:
        """Note how much the cache holds now."""
        self._bytes.set(num_bytes)


class QueueMeter:
    """Tells who waits for a decoder, and how long."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._length = Gauge(
            "videochat_decode_queue_length", "Videos waiting for a decoder.", registry=registry
        )
        self._seconds = Histogram(
            "videochat_decode_queue_seconds",
            "How long a video waited for its decoder.",
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self._busy = Gauge("videochat_decoders_busy", "Decoders at work.", registry=registry)

    def length(self, num_waiting: int) -> None:
        """Note how many videos wait now."""
        self._length.set(num_waiting)

    def waited(self, seconds: float) -> None:
        """Note how long a video that got its decoder has waited for it."""
        self._seconds.observe(seconds)

    def busy(self, num_decoders: int) -> None:
        """Note how many decoders are at work now."""
        self._busy.set(num_decoders)


class DownloadMeter:
    """Counts what is downloaded from URLs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._bytes = Counter(
            "videochat_download_bytes",
            "Bytes of files that were read from URLs.",
            registry=registry,
        )
        downloads = Counter(
            "videochat_downloads",
            "Files that were read from URLs, by how.",
            ("kind",),
            registry=registry,
        )
        self._downloads = {kind: downloads.labels(kind) for kind in get_args(DownloadKind)}

    def began(self, kind: DownloadKind) -> None:
        """Note that a file is read in this way."""
        self._downloads[kind].inc()

    def received(self, num_bytes: int) -> None:
        """Note that bytes of a file have arrived."""
        self._bytes.inc(num_bytes)


class FileMeter:
    """Tells how many files clients have uploaded, and what becomes of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._num_files = Gauge("videochat_files", "Uploaded files.", registry=registry)
        self._num_bytes = Gauge(
            "videochat_files_bytes",
            "Bytes of uploaded files, unfinished ones included.",
            registry=registry,
        )
        self._uploads = Counter(
            "videochat_file_uploads", "Uploads that ended.", ("outcome",), registry=registry
        )
        self._deletions = Counter(
            "videochat_file_deletions", "Files that are gone.", ("reason",), registry=registry
        )
        for outcome in get_args(UploadOutcome):
            self._uploads.labels(outcome)
        for reason in get_args(DeletionReason):
            self._deletions.labels(reason)

    def watch(self, *, num_files: Callable[[], int], num_bytes: Callable[[], int]) -> None:
        """Have what is kept told by the functions given, which are called when somebody asks."""
        self._num_files.set_function(num_files)
        self._num_bytes.set_function(num_bytes)

    @contextmanager
    def upload(self, *, disconnect: type[Exception]) -> Iterator[None]:
        """Counts the upload received in the ``with`` block by how that ends.

        Args:
            disconnect: what is raised when the client hangs up.
        """
        outcome: UploadOutcome = "success"
        try:
            yield
        except disconnect:
            outcome = "cancelled"
            raise
        except BaseException as error:
            outcome = _upload_outcome(error)
            raise
        finally:
            self.upload_ended(outcome)

    def upload_ended(self, outcome: UploadOutcome) -> None:
        """Note how an upload has ended."""
        self._uploads.labels(outcome).inc()

    def gone(self, reason: DeletionReason) -> None:
        """Note that a file is gone."""
        self._deletions.labels(reason).inc()


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
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self._stage_seconds = Histogram(
            "videochat_stage_seconds",
            "The stages that add up to the time to first token.",
            ("stage",),
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self._request_seconds = Histogram(
            "videochat_request_seconds",
            "From the headers of a chat request to the end of its answer.",
            ("outcome",),
            buckets=_SECONDS_BUCKETS,
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
    match error:
        case VideoUnreachable():
            return "unreachable"
        case RequestTooLarge():
            return "too_large"
        case RequestError():
            return "invalid"
        case Overloaded():
            return "overloaded"
        case Exception():
            return "internal_error"
        case _:
            return "cancelled"


def _upload_outcome(error: BaseException) -> UploadOutcome:
    match error:
        case RequestTooLarge():
            return "too_large"
        case FileQuotaExceeded():
            return "over_quota"
        case StorageFull():
            return "storage_full"
        case RequestError():
            return "invalid"
        case Overloaded():
            return "overloaded"
        case Exception():
            return "internal_error"
        case _:
            return "cancelled"
