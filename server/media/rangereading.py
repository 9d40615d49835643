"""Reads parts of a file by HTTP range requests, as long as it stays the same file."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import httpcore

from server.media.byteranges import ByteRange, ContentRange
from server.media.network import (
    Headers,
    Redirect,
    Web,
    body_of,
    headers_of,
    redirect_of,
    require_identity,
)
from server.media.remotefile import WritePart
from server.media.sizelimit import SizeLimit
from server.media.targets import Target
from server.media.webfaults import Unreachable, as_request_errors, file_changed
from server.meters import DownloadMeter
from server.together import all_of

_REQUESTS_AT_ONCE = 4
_TRIES = 2
"""A server may close a connection while it idles, just when we use it again."""
_BROKEN_CONNECTION = (httpcore.NetworkError, httpcore.RemoteProtocolError)


@dataclass(frozen=True, slots=True)
class Validator:
    """What an origin gives the present state of a file: equal ones mean equal bytes."""

    header: bytes
    """``etag`` or ``last-modified``."""
    value: bytes

    def contradicts(self, headers: Headers) -> bool:
        """Returns whether an answer is about another state.

        A date may be missing in an answer to a request with ``If-Range``, a tag may not.
        """
        absent = self.value if self.header == b"last-modified" else None
        return headers.get(self.header, absent) != self.value


@dataclass(frozen=True, slots=True)
class RangeReader:
    """The ``Origin`` of a file at an http(s) URL."""

    web: Web
    target: Target
    total_bytes: int
    """Size of the file."""
    validator: Validator
    limit: SizeLimit
    timeout_seconds: float
    request_headers: tuple[tuple[bytes, bytes], ...]
    meter: DownloadMeter
    has_read: Callable[[], None]
    """Called when there is more of the file in memory."""

    @property
    def max_bytes(self) -> int:
        """What may be read for one question."""
        return self.limit.max_bytes

    async def read(self, ranges: Sequence[ByteRange], write: WritePart) -> None:
        """Have the bytes of all ranges written, a few requests at a time.

        Raises:
            RemoteFileChanged: it is no longer the file that it was, or not given out by range.
            VideoUnreachable: it can not be had.
        """
        few = asyncio.Semaphore(_REQUESTS_AT_ONCE)

        async def read_one(part: ByteRange) -> None:
            async with few:
                await self._read(connections, part, write)

        try:
            with as_request_errors(self.limit, param=""):
                async with self.web.connections(self.target) as connections:
                    await all_of(read_one(part) for part in ranges)
        finally:
            self.has_read()

    async def _read(
        self, connections: httpcore.AsyncConnectionPool, part: ByteRange, write: WritePart
    ) -> None:
        position = part.start

        async def get(target: Target) -> Redirect | None:
            nonlocal position
            request = self._request(connections, target, ByteRange(position, part.end))
            async with request as response:
                headers = headers_of(response)
                redirect = redirect_of(response, headers)
                if redirect is not None:
                    return redirect
                self._check(response.status, headers, ByteRange(position, part.end))
                async with body_of(response) as chunks:
                    async for chunk in chunks:
                        self.meter.received(len(chunk))
                        if position + len(chunk) > part.end:
                            raise file_changed()
                        write(position, chunk)
                        position += len(chunk)
            return None

        for tries_left in reversed(range(_TRIES)):
            try:
                await self.web.follow(self.target, get)
            except _BROKEN_CONNECTION:
                if not tries_left:
                    raise
            if position == part.end:
                return
        raise Unreachable("fewer bytes than announced")

    def _request(
        self, connections: httpcore.AsyncConnectionPool, target: Target, part: ByteRange
    ) -> AbstractAsyncContextManager[httpcore.Response]:
        """Returns the answer to a request for ``part``, to be used as a context manager."""
        conditions = [
            (b"Range", b"bytes=%d-%d" % (part.start, part.end - 1)),
            (b"If-Range", self.validator.value),
        ]
        headers = [*self.request_headers, *conditions]
        return connections.stream("GET", target.to_httpcore(), headers=headers)

    def _check(self, status: int, headers: Headers, part: ByteRange) -> None:
        if status in (200, 412, 416):
            raise file_changed()
        if status != 206:
            raise Unreachable("status other than 206")
        require_identity(headers)
        found = ContentRange.parse(headers.get(b"content-range"))
        if found != ContentRange(part, self.total_bytes) or self.validator.contradicts(headers):
            raise file_changed()
