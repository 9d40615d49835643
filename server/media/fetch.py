"""Downloads for strangers: only from the public internet, only so many bytes, only so long.

A video is read by range where that can save something: from an origin that gives out ranges and
says which state of the file they are of, and where the file is large and tells what is where.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import httpcore

from server.media.byteranges import ContentRange
from server.media.downloads import Download, DownloadCache, validator_of
from server.media.memoryfile import MemoryFile, in_memory
from server.media.network import (
    Headers,
    Redirect,
    Resolve,
    Web,
    body_of,
    headers_of,
    redirect_of,
    require_identity,
)
from server.media.packettable import may_have_table, read_table
from server.media.rangereading import RangeReader, Validator
from server.media.remotefile import EncodedVideo, RemoteFile
from server.media.sizelimit import SizeLimit
from server.media.targets import Target
from server.media.webfaults import RemoteFileChanged, TooLarge, Unreachable, as_request_errors
from server.metrics import Metrics
from server.settings import VideoSettings

_HEADERS = ((b"Accept", b"*/*"), (b"Accept-Encoding", b"identity"))
_AGENT = (b"User-Agent", b"video-chat-server")
_ONCE = (b"Connection", b"close")
_FROM_THE_START = (b"Range", b"bytes=0-")
_FIRST_BYTES = 1 << 18
"""Looked at before it is decided how to go on."""


class _NotByRange(Exception):
    """The file has to be read as a whole, by a request of its own."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A file of which the first bytes were read."""

    file: RemoteFile
    identity: bytes
    headers: Headers


_Found: TypeAlias = EncodedVideo | _Begun


class Fetcher:
    """Retrieves http(s) URLs for ``SourceReader``."""

    def __init__(
        self,
        settings: VideoSettings,
        downloads: DownloadCache | None = None,
        *,
        resolve: Resolve | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Prepare.

        Args:
            settings: limits, and what may be fetched.
            downloads: what is kept of earlier downloads; by default nothing.
            resolve: finds the addresses of a host; by default the system does.
            network: connects to addresses; by default the system does.
            metrics: counts what is downloaded; by default nobody reads them.
        """
        self._downloads = DownloadCache() if downloads is None else downloads
        self._web = Web(settings, resolve=resolve, network=network)
        self._timeout_seconds = settings.fetch_timeout_seconds
        self._range_threshold_bytes = settings.range_threshold_bytes
        self._ranged_limit = SizeLimit(settings.max_ranged_video_bytes)
        self._meter = (Metrics() if metrics is None else metrics).downloads

    async def fetch(self, url: str, limit: SizeLimit, *, param: str) -> MemoryFile:
        """Returns the body that ``url`` leads to.

        Raises:
            InvalidRequest: the URL is malformed.
            RequestTooLarge: the body has more bytes than the limit.
            VideoUnreachable: anything else; one text, so that nobody can map our network.
        """
        with as_request_errors(limit, param=param):
            target = Target.parse(url, self._web.rules)
            async with asyncio.timeout(self._timeout_seconds):
                return await self._whole(target, limit)

    async def open(self, url: str, limit: SizeLimit, *, param: str) -> EncodedVideo:
        """Returns the body that ``url`` leads to, of which only a part may have been read.

        Args:
            url: where the video is.
            limit: for the bytes that are read.
            param: JSON path of the URL, for errors.

        Raises:
            InvalidRequest, RequestTooLarge, VideoUnreachable: as for ``fetch``.
        """
        threshold_bytes = self._range_threshold_bytes
        if threshold_bytes is None:
            return await self.fetch(url, limit, param=param)
        with as_request_errors(limit, param=param):
            target = Target.parse(url, self._web.rules)
            async with asyncio.timeout(self._timeout_seconds):
                try:
                    return await self._by_range(target, limit, threshold_bytes)
                except (_NotByRange, RemoteFileChanged):
                    return await self._whole(target, limit)

    async def _whole(self, target: Target, limit: SizeLimit) -> MemoryFile:
        return await self._web.follow(target, partial(self._get_whole, max_bytes=limit.max_bytes))

    async def _by_range(
        self, target: Target, limit: SizeLimit, threshold_bytes: int
    ) -> EncodedVideo:
        begin = partial(self._begin, limit=limit, threshold_bytes=threshold_bytes)
        found: _Found = await self._web.follow(target, begin)
        if not isinstance(found, _Begun):
            return found
        if found.file.num_bytes > self._ranged_limit.max_bytes:
            raise self._ranged_limit.exceeded("")
        if not await read_table(found.file):
            raise _NotByRange
        self._meter.began("range")
        self._downloads.loaded(found.identity, found.file, found.headers)
        return found.file

    async def _get_whole(self, target: Target, *, max_bytes: int) -> MemoryFile | Redirect:
        """Returns the body, or the location that the answer redirects to."""
        kept = self._downloads.get(target.identity)
        if kept is not None and isinstance(kept.body, RemoteFile):
            kept = None
        async with AsyncExitStack() as opened:
            response = await self._ask(target, kept, opened)
            headers = headers_of(response)
            redirect = redirect_of(response, headers)
            if redirect is not None:
                return redirect
            if response.status == 304 and kept is not None:
                return _within(max_bytes, self._confirmed(target, kept, headers))
            if response.status != 200:
                raise Unreachable("status other than 200")
            require_identity(headers)
            chunks = await opened.enter_async_context(body_of(response))
            return await self._load(target, _Body(chunks, headers, max_bytes))

    async def _begin(
        self, target: Target, *, limit: SizeLimit, threshold_bytes: int
    ) -> _Found | Redirect:
        """Returns the file as far as it is to be read now, or where the answer redirects to."""
        kept = self._kept(target, limit)
        async with AsyncExitStack() as opened:
            response = await self._ask(target, kept, opened, _FROM_THE_START)
            headers = headers_of(response)
            redirect = redirect_of(response, headers)
            if redirect is not None:
                return redirect
            if response.status == 304 and kept is not None:
                file = self._confirmed(target, kept, headers)
                return file if isinstance(file, RemoteFile) else _within(limit.max_bytes, file)
            part = _part_of(response.status, headers)
            require_identity(headers)
            chunks = await opened.enter_async_context(body_of(response))
            body = _Body(chunks, headers, limit.max_bytes)
            validator = validator_of(headers)
            if part is not None and part.total_bytes > threshold_bytes and validator is not None:
                await body.read_first(_FIRST_BYTES)
                if may_have_table(body.first_bytes):
                    reader = self._reader(target, part.total_bytes, validator, limit)
                    return self._begun(reader, body)
            if part is not None and not part.is_whole:
                raise _NotByRange
            return await self._load(target, body)

    def _begun(self, reader: RangeReader, body: "_Body") -> _Begun:
        file = RemoteFile(reader.total_bytes, reader)
        file.write(0, body.first_bytes)
        self._meter.received(len(body.first_bytes))
        return _Begun(file, reader.target.identity, body.headers)

    def _reader(
        self, target: Target, total_bytes: int, validator: Validator, limit: SizeLimit
    ) -> RangeReader:
        return RangeReader(
            web=self._web,
            target=target,
            total_bytes=total_bytes,
            validator=validator,
            limit=limit,
            timeout_seconds=self._timeout_seconds,
            request_headers=(*_HEADERS, _AGENT),
            meter=self._meter,
            has_read=partial(self._downloads.grown, target.identity),
        )

    async def _ask(
        self,
        target: Target,
        kept: Download | None,
        opened: AsyncExitStack,
        *more_headers: tuple[bytes, bytes],
    ) -> httpcore.Response:
        conditions = () if kept is None else kept.conditions
        headers = [*_HEADERS, _AGENT, _ONCE, *more_headers, *conditions]
        connections = await opened.enter_async_context(self._web.connections(target))
        return await opened.enter_async_context(
            connections.stream("GET", target.to_httpcore(), headers=headers)
        )

    def _kept(self, target: Target, limit: SizeLimit) -> Download | None:
        """Returns what is kept of a file, unless so many questions have been asked about it that
        those parts would take more than the next one may read."""
        kept = self._downloads.get(target.identity)
        if kept is None or not isinstance(kept.body, RemoteFile):
            return kept
        has_grown = kept.body.held_bytes > limit.max_bytes // 2
        return None if has_grown and kept.body.num_bytes > limit.max_bytes else kept

    def _confirmed(self, target: Target, kept: Download, headers: Headers) -> EncodedVideo:
        return self._downloads.confirmed(target.identity, kept, headers)

    async def _load(self, target: Target, body: "_Body") -> MemoryFile:
        file = await in_memory(await body.read())
        self._meter.began("whole")
        self._meter.received(file.num_bytes)
        self._downloads.loaded(target.identity, file, body.headers)
        return file


class _Body:
    """The body of an answer, as it arrives."""

    def __init__(self, chunks: AsyncIterator[bytes], headers: Headers, max_bytes: int) -> None:
        self.headers = headers
        self._chunks = chunks
        self._max_bytes = max_bytes
        self._read: list[bytes] = []
        self._num_bytes = 0

    @property
    def first_bytes(self) -> bytes:
        """What has been read."""
        return b"".join(self._read)

    async def read_first(self, num_bytes: int) -> None:
        """Read at least ``num_bytes``, if there are so many."""
        while self._num_bytes < num_bytes and await self._read_more():
            pass

    async def read(self) -> list[bytes]:
        """Returns all of it, in pieces; raises ``TooLarge`` if it has too many bytes."""
        claimed_bytes = self.headers.get(b"content-length")
        if claimed_bytes is not None and int(claimed_bytes) > self._max_bytes:
            raise TooLarge
        while await self._read_more():
            if self._num_bytes > self._max_bytes:
                raise TooLarge
        return self._read

    async def _read_more(self) -> bool:
        chunk = await anext(self._chunks, None)
        if chunk is None:
            return False
        self._read.append(chunk)
        self._num_bytes += len(chunk)
        return True


def _part_of(status: int, headers: Headers) -> ContentRange | None:
    """Returns which part of the file an answer to a request for all of it holds; None if all."""
    if status == 200:
        return None
    if status == 416:  # an empty file
        raise _NotByRange
    if status != 206:
        raise Unreachable("status other than 200 and 206")
    part = ContentRange.parse(headers.get(b"content-range"))
    if part is None or part.range.start:
        raise _NotByRange
    return part


def _within(max_bytes: int, file: EncodedVideo) -> MemoryFile:
    assert isinstance(file, MemoryFile)
    if file.num_bytes > max_bytes:
        raise TooLarge
    return file
