"""Downloads for strangers: only from the public internet, only so many bytes, only so long.

The address that is checked is the address that is connected to, for every redirect and for
addresses written as numbers, so there is no moment at which a name can change its meaning.
"""

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Self
from urllib.parse import quote, urljoin, urlsplit

import httpcore

from server.errors import InvalidRequest, VideoUnreachable
from server.media.addresses import is_public_address
from server.media.downloads import DownloadCache
from server.media.hosts import HostList, HostSlots
from server.media.memoryfile import MemoryFile, in_memory
from server.media.sizelimit import SizeLimit
from server.settings import VideoSettings

logger = logging.getLogger(__name__)

_MAX_URL_CHARACTERS = 2048
_MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_ADDRESSES_TRIED = 4
_CONNECT_SECONDS = 5.0
# Threads are cheap, and names that take long must not keep others from finding their hosts.
_MAX_LOOKUPS = 64
_PORTS = {"http": 80, "https": 443}
_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_HEADERS = [
    (b"Accept", b"*/*"),
    (b"Accept-Encoding", b"identity"),
    (b"User-Agent", b"video-chat-server"),
    (b"Connection", b"close"),
]
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~-._"


class _MalformedURL(Exception):
    """The URL breaks a rule; the message is for the client."""


class _Unreachable(Exception):
    """The URL could not be retrieved; the message is a fixed label for the log."""


class _TooLarge(Exception):
    """The body exceeds the limit."""


_NETWORK_FAILURES = (
    _Unreachable,
    OSError,  # TimeoutError and ssl.SSLError are some
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
)


@dataclass(frozen=True, slots=True)
class _Rules:
    """What a URL may be, by the settings."""

    any_port: bool
    hosts: HostList


@dataclass(frozen=True, slots=True)
class _Target:
    """A URL that keeps to the rules, in the parts that go on the wire."""

    text: str
    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str, rules: _Rules) -> Self:
        if len(url) > _MAX_URL_CHARACTERS:
            raise _MalformedURL(f"it is longer than {_MAX_URL_CHARACTERS} characters")
        if _FORBIDDEN_CHARACTERS.search(url):
            raise _MalformedURL("it has a space, a control character or a backslash")
        try:
            parts = urlsplit(url)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode("ascii")
        except ValueError as error:  # UnicodeError is one
            raise _MalformedURL("its host or port is not valid") from error
        if parts.scheme not in _PORTS:
            raise _MalformedURL("its scheme is neither http nor https")
        if "@" in parts.netloc:
            raise _MalformedURL("it carries a user name or password")
        if not host:
            raise _MalformedURL("it has no host")
        if port is None:
            port = _PORTS[parts.scheme]
        if not rules.any_port and port not in _PORTS.values():
            raise _MalformedURL("its port is neither 80 nor 443")
        if not rules.hosts.allows(host):
            raise _MalformedURL("its host is none that this server fetches from")
        path = quote(parts.path or "/", safe=_PATH_CHARACTERS)
        if parts.query:
            path += "?" + quote(parts.query, safe=_PATH_CHARACTERS + "?[]")
        return cls(url, parts.scheme, host, port, path)

    def redirected(self, location: str, rules: _Rules) -> Self:
        """Returns the target of a redirect found here."""
        try:
            target = type(self).parse(urljoin(self.text, location), rules)
        except (_MalformedURL, ValueError) as error:
            raise _Unreachable("redirect to a forbidden URL") from error
        if self.scheme == "https" and target.scheme == "http":
            raise _Unreachable("redirect from https to http")
        return target

    @property
    def identity(self) -> bytes:
        """What is asked of whom, in bytes."""
        return f"{self.scheme}://{self.host}:{self.port}{self.path}".encode()

    def to_httpcore(self) -> httpcore.URL:
        return httpcore.URL(
            scheme=self.scheme.encode(),
            host=self.host.encode(),
            port=self.port,
            target=self.path.encode(),
        )


def unreachable(param: str) -> VideoUnreachable:
    """Returns the error for a URL that could not be retrieved, whatever the reason."""
    return VideoUnreachable(
        "The video URL could not be retrieved. Check that it is publicly reachable, or send the "
        "video as a data: URL.",
        param=param,
    )


Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host for a port. Raises OSError if there are none."""


class _SystemResolver:
    """Asks the system, which may take its time: in threads that nothing else waits for."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_LOOKUPS, thread_name_prefix="resolver")

    async def __call__(self, host: str, port: int) -> list[str]:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return list(dict.fromkeys(str(info[4][0]) for info in found))


class Fetcher:
    """Retrieves http(s) URLs for ``SourceReader``."""

    def __init__(
        self,
        settings: VideoSettings,
        downloads: DownloadCache | None = None,
        *,
        resolve: Resolve | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        """Prepare.

        Args:
            settings: limits, and what may be fetched.
            downloads: what is kept of earlier downloads; by default nothing.
            resolve: finds the addresses of a host; by default the system does.
            network: connects to addresses; by default the system does.
        """
        self._downloads = DownloadCache() if downloads is None else downloads
        self._rules = _Rules(settings.allow_private_addresses, HostList(settings.allowed_hosts))
        self._network = _CheckedNetwork(
            allow_private=settings.allow_private_addresses,
            resolve=_SystemResolver() if resolve is None else resolve,
            network=httpcore.AnyIOBackend() if network is None else network,
        )
        self._timeout_seconds = settings.fetch_timeout_seconds
        self._slots = HostSlots(settings.max_downloads_per_host)

    async def fetch(self, url: str, limit: SizeLimit, *, param: str) -> MemoryFile:
        """Returns the body that ``url`` leads to.

        Raises:
            InvalidRequest: the URL is malformed.
            RequestTooLarge: the body has more bytes than the limit.
            VideoUnreachable: anything else; one text, so that nobody can map our network.
        """
        try:
            target = _Target.parse(url, self._rules)
            async with asyncio.timeout(self._timeout_seconds):
                return await self._follow(target, limit)
        except _MalformedURL as error:
            raise InvalidRequest(
                f"The video URL is not accepted: {error}. Send a plain http(s) URL.",
                param=param,
                code="invalid_video_url",
            ) from error
        except _TooLarge as error:
            raise limit.exceeded(param) from error
        except _NETWORK_FAILURES as error:
            reason = str(error) if isinstance(error, _Unreachable) else type(error).__name__
            logger.info("video URL not retrieved: %s", reason)
            raise unreachable(param) from error

    async def _follow(self, target: _Target, limit: SizeLimit) -> MemoryFile:
        for _ in range(_MAX_REDIRECTS + 1):
            async with self._slots.slot(target.host):
                found = await self._get(target, limit.max_bytes)
            if isinstance(found, MemoryFile):
                return found
            target = target.redirected(found, self._rules)
        raise _Unreachable("too many redirects")

    async def _get(self, target: _Target, max_bytes: int) -> MemoryFile | str:
        """Returns the body, or the location that the answer redirects to."""
        kept = self._downloads.get(target.identity)
        request_headers = [*_HEADERS, *(kept.conditions if kept is not None else ())]
        async with (
            httpcore.AsyncConnectionPool(
                # Loading the certificates takes long enough to be left out where none is looked at.
                ssl_context=self._ssl_context if target.scheme == "https" else None,
                network_backend=self._network,
            ) as connections,
            connections.stream("GET", target.to_httpcore(), headers=request_headers) as response,
        ):
            headers = {name.lower(): value for name, value in response.headers}
            if response.status in _REDIRECTS and b"location" in headers:
                return headers[b"location"].decode("latin-1")
            if response.status == 304 and kept is not None:
                if kept.body.num_bytes > max_bytes:
                    raise _TooLarge
                return self._downloads.confirmed(target.identity, kept, headers)
            if response.status != 200:
                raise _Unreachable("status other than 200")
            if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
                raise _Unreachable("compressed body")
            body = await _body(response, headers.get(b"content-length"), max_bytes)
            return self._downloads.loaded(target.identity, body, headers)

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        return httpcore.default_ssl_context()


async def _body(
    response: httpcore.Response, claimed_bytes: bytes | None, max_bytes: int
) -> MemoryFile:
    if claimed_bytes is not None and int(claimed_bytes) > max_bytes:
        raise _TooLarge
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in response.aiter_stream():
        chunks.append(chunk)
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise _TooLarge
    return await in_memory(chunks)


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were checked, and to nothing else."""

    def __init__(
        self, *, allow_private: bool, resolve: Resolve, network: httpcore.AsyncNetworkBackend
    ) -> None:
        self._allow_private = allow_private
        self._resolve = resolve
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # the interface has it
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Returns a connection to the first address of ``host`` that answers."""
        failure: Exception = _Unreachable("no address")
        for address in (await self._addresses(host, port))[:_MAX_ADDRESSES_TRIED]:
            try:
                return await self._network.connect_tcp(
                    address, port, _CONNECT_SECONDS, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(self, *_: object, **__: object) -> httpcore.AsyncNetworkStream:
        """Refuse: a URL has no business there."""
        raise _Unreachable("unix socket")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[str]:
        """Returns the addresses of ``host``; one forbidden address taints them all."""
        addresses = await self._resolve(host, port)
        if not self._allow_private and not all(map(is_public_address, addresses)):
            raise _Unreachable("address not public")
        return addresses
