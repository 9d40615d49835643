"""Videos that were downloaded before, used again only if their origin says that they still hold.

How long a file stays the same is the origin's to know, so each use asks it, by a conditional
request that costs a round trip and no body. That request is made as any other: an address that
would be refused, a redirect that has changed and a signature that has expired count now as they
would without a copy.
"""

import hashlib
import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from server.media.cache import BoundedCache
from server.media.network import Headers
from server.media.rangereading import Validator
from server.media.remotefile import EncodedVideo, RemoteFile
from server.metrics import Metrics

_SETTLED_SECONDS = 60
"""Within this time of its last change a file may change again with the same Last-Modified."""
_NOT_KEPT = re.compile(rb"(^|[\s,])(no-store|private)($|[\s,=])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Download:
    """A body, and how to ask its origin whether it still holds."""

    body: EncodedVideo
    conditions: tuple[tuple[bytes, bytes], ...]
    """Headers for a request that is answered with 304 if it does."""


class DownloadCache:
    """Bodies by the exact URL that they came from, redirects followed."""

    def __init__(self, *, max_bytes: int = 0, metrics: Metrics | None = None) -> None:
        """Begin with nothing.

        Args:
            max_bytes: memory for bodies; 0 keeps none.
            metrics: counts hits and misses; by default nobody reads them.
        """
        self._meter = (Metrics() if metrics is None else metrics).cache("downloads")
        self._kept = BoundedCache(max_bytes=max_bytes, size_of=_num_bytes, meter=self._meter)

    def get(self, url: bytes) -> Download | None:
        """Returns what was kept of ``url``, to be asked about; None if there is nothing."""
        return self._kept.get(_key(url))

    def confirmed(self, url: bytes, download: Download, headers: Headers) -> EncodedVideo:
        """Returns the body of a download about which the origin has said that it still holds.

        Args:
            url: as for ``get``.
            download: what ``get`` returned.
            headers: of the answer that said so.
        """
        self._meter.looked_up("hit")
        if _forbids_keeping(headers):
            self._kept.discard(_key(url))
        return download.body

    def loaded(self, url: bytes, body: EncodedVideo, headers: Headers) -> None:
        """Keep ``body``, which has just come, if the answer's headers allow."""
        self._meter.looked_up("miss")
        conditions = () if _forbids_keeping(headers) else _conditions(headers)
        if conditions:
            self._kept.put(_key(url), Download(body, conditions))
        else:
            self._kept.discard(_key(url))

    def grown(self, url: bytes) -> None:
        """Make room for what was read since of a file with holes, or let it go."""
        kept = self._kept.get(_key(url))
        if kept is not None:
            self._kept.discard(_key(url))
            self._kept.put(_key(url), kept)

    def forget(self) -> None:
        """Free the memory."""
        self._kept.clear()


def _key(url: bytes) -> bytes:
    # A digest: URLs may hold secrets, which need not be kept.
    return hashlib.sha256(url).digest()


def _num_bytes(download: Download) -> int:
    body = download.body
    num_bytes = body.held_bytes if isinstance(body, RemoteFile) else body.num_bytes
    return num_bytes + sum(len(value) for _, value in download.conditions)


def _forbids_keeping(headers: Headers) -> bool:
    """Returns whether the origin wants no copy to be kept, or answers each client differently."""
    varies = headers.get(b"vary", b"").strip() == b"*"
    return varies or _NOT_KEPT.search(headers.get(b"cache-control", b"")) is not None


def _conditions(headers: Headers) -> tuple[tuple[bytes, bytes], ...]:
    """Returns the headers to ask with; none if the origin offers no way to."""
    if etag := headers.get(b"etag"):
        return ((b"If-None-Match", etag),)
    if changed := _settled_date(headers):
        return ((b"If-Modified-Since", changed),)
    return ()


def validator_of(headers: Headers) -> Validator | None:
    """Returns what tells that parts belong to one state of a file; None if nothing surely does."""
    if etag := headers.get(b"etag"):
        # A weak one may be the same for other bytes.
        is_strong = len(etag) > 2 and etag.startswith(b'"') and etag.endswith(b'"')
        return Validator(b"etag", etag) if is_strong else None
    if changed := _settled_date(headers):
        return Validator(b"last-modified", changed)
    return None


def _settled_date(headers: Headers) -> bytes | None:
    """Returns when the file was changed, if that is so long ago that it was the last time."""
    changed, now = headers.get(b"last-modified"), headers.get(b"date")
    if not changed or not now:
        return None
    try:
        age = _seconds(now) - _seconds(changed)
    except ValueError:
        return None
    return changed if age >= _SETTLED_SECONDS else None


def _seconds(date: bytes) -> float:
    return parsedate_to_datetime(date.decode("latin-1")).timestamp()
