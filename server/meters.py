"""Counters of single parts of the server: its caches, its line for decoders, its files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from server.errors import (
    FileQuotaExceeded,
    Overloaded,
    RequestError,
    RequestTooLarge,
    StorageFull,
)

FailureOutcome = Literal["too_large", "invalid", "overloaded", "internal_error", "cancelled"]
"""How work on what a client sends can fail."""
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
CacheName = Literal["clips", "facts", "downloads"]
"""What a cache holds: decoded frames, what probing found out, encoded videos of URLs."""
CacheOutcome = Literal["hit", "shared", "miss"]
"""How a look into a cache ended; ``shared`` joined work that was under way already."""
DownloadKind = Literal["whole", "range"]
"""How a file of a URL is read: all of it, or the parts that are needed."""

# The list of vllm:time_to_first_token_seconds, so that quantiles compare, and finer from 1 to 60 s,
# where requests with video are.
SECONDS_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.5, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0),
    *(160.0, 640.0, 2560.0),
)


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
            buckets=SECONDS_BUCKETS,
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


def failure_outcome(error: BaseException) -> FailureOutcome:
    """Returns the label for an error that has ended some work."""
    match error:
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
        case FileQuotaExceeded():
            return "over_quota"
        case StorageFull():
            return "storage_full"
        case _:
            return failure_outcome(error)
