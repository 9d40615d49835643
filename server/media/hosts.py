"""Which hosts this server fetches videos from, and from each of them how many at once."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass


class HostList:
    """Names of hosts, or of domains as ``*.example.com``. Without any, every host is allowed."""

    def __init__(self, names: Iterable[str]) -> None:
        """Prepare.

        Args:
            names: in lower case and ASCII.
        """
        names = tuple(names)
        self._allows_all = not names
        self._hosts = frozenset(name for name in names if not name.startswith("*."))
        self._domains = tuple(name[1:] for name in names if name.startswith("*."))

    def allows(self, host: str) -> bool:
        """Returns whether ``host`` is on the list: by its name, or below a domain of it.

        Args:
            host: in ASCII, as it will be looked up.
        """
        name = _name(host)
        return self._allows_all or name in self._hosts or name.endswith(self._domains)


@dataclass(slots=True, eq=False)
class _Line:
    """Those who download from one host, and those who wait for it."""

    slots: asyncio.Semaphore
    num_inside: int = 0


class HostSlots:
    """Bounds the downloads from each host, so that a slow one takes up no more than its share."""

    def __init__(self, per_host: int) -> None:
        """Begin with all slots free.

        Args:
            per_host: downloads from one host at once.
        """
        self._per_host = per_host
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def slot(self, host: str) -> AsyncIterator[None]:
        """Hold a slot of ``host`` in the ``with`` block, once it is the caller's turn.

        Args:
            host: as for ``HostList.allows``.
        """
        name = _name(host)
        line = self._lines.setdefault(name, _Line(asyncio.Semaphore(self._per_host)))
        line.num_inside += 1
        try:
            async with line.slots:
                yield
        finally:
            line.num_inside -= 1
            if not line.num_inside:
                del self._lines[name]

    @property
    def num_hosts(self) -> int:
        """Hosts that something is downloaded from, or will be."""
        return len(self._lines)


def _name(host: str) -> str:
    return host.lower().removesuffix(".")
