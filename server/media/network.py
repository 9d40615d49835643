"""The way out: only to addresses that were checked, a few downloads from each host at once.

The address that is checked is the address that is connected to, for every redirect and for
addresses written as numbers, so there is no moment at which a name can change its meaning.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar, cast

import httpcore

from server.media.addresses import is_public_address
from server.media.hosts import HostList, HostSlots
from server.media.targets import Rules, Target
from server.media.webfaults import Unreachable
from server.settings import VideoSettings

_V = TypeVar("_V")

_MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_ADDRESSES_TRIED = 4
_CONNECT_SECONDS = 5.0
# Threads are cheap, and names that take long must not keep others from finding their hosts.
_MAX_LOOKUPS = 64

Headers = dict[bytes, bytes]
"""Of an answer; names in lower case."""

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


@dataclass(frozen=True, slots=True)
class Redirect:
    """An answer that says where else to look."""

    location: str


class Web:
    """Connections and redirects, by the rules of the settings."""

    def __init__(
        self,
        settings: VideoSettings,
        *,
        resolve: Resolve | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        """Prepare.

        Args:
            settings: what may be fetched.
            resolve: finds the addresses of a host; by default the system does.
            network: connects to addresses; by default the system does.
        """
        self.rules = Rules(settings.allow_private_addresses, HostList(settings.allowed_hosts))
        self._network = _CheckedNetwork(
            allow_private=settings.allow_private_addresses,
            resolve=_SystemResolver() if resolve is None else resolve,
            network=httpcore.AnyIOBackend() if network is None else network,
        )
        self.slots = HostSlots(settings.max_downloads_per_host)

    def connections(self, target: Target) -> httpcore.AsyncConnectionPool:
        """Returns a pool of connections, to be used as a context manager."""
        return httpcore.AsyncConnectionPool(
            # Loading the certificates takes long enough to be left out where none is looked at.
            ssl_context=self._ssl_context if target.scheme == "https" else None,
            network_backend=self._network,
        )

    async def follow(self, target: Target, get: Callable[[Target], Awaitable[_V | Redirect]]) -> _V:
        """Returns what ``get`` returns for ``target``, or for where its redirects lead.

        Raises:
            Unreachable: they lead on and on, or to where they must not.
        """
        for _ in range(_MAX_REDIRECTS + 1):
            async with self.slots.slot(target.host):
                found = await get(target)
            if not isinstance(found, Redirect):
                return found
            target = target.redirected(found.location, self.rules)
        raise Unreachable("too many redirects")

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        return httpcore.default_ssl_context()


def headers_of(response: httpcore.Response) -> Headers:
    """Returns the headers of an answer, names in lower case; of those that come twice the last."""
    return {name.lower(): value for name, value in response.headers}


def body_of(response: httpcore.Response) -> "aclosing[AsyncGenerator[bytes]]":
    """Returns the body as it arrives, to be used as a context manager."""
    return aclosing(cast("AsyncGenerator[bytes]", response.aiter_stream()))


def redirect_of(response: httpcore.Response, headers: Headers) -> Redirect | None:
    """Returns where an answer leads, None if nowhere else."""
    if response.status in _REDIRECTS and b"location" in headers:
        return Redirect(headers[b"location"].decode("latin-1"))
    return None


def require_identity(headers: Headers) -> None:
    """Raise ``Unreachable`` for a body that is compressed, although we did not ask for it."""
    if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise Unreachable("compressed body")


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
        failure: Exception = Unreachable("no address")
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
        raise Unreachable("unix socket")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[str]:
        """Returns the addresses of ``host``; one forbidden address taints them all."""
        addresses = await self._resolve(host, port)
        if not self._allow_private and not all(map(is_public_address, addresses)):
            raise Unreachable("address not public")
        return addresses
