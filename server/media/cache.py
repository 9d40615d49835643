"""What was paid for once and may be asked for again, within a number of bytes."""

from collections.abc import Callable
from typing import Generic, TypeVar

from cachetools import LRUCache

from server.meters import CacheMeter

_V = TypeVar("_V")

_MAX_ENTRIES = 256
"""However small they are: each clip that is kept takes a file descriptor."""


class BoundedCache(Generic[_V]):
    """Keeps what was used last. Keys are digests or addresses, never what a client calls a thing.

    An entry larger than the cache is not kept, so a cache of 0 bytes keeps nothing.
    """

    def __init__(self, *, max_bytes: int, size_of: Callable[[_V], int], meter: CacheMeter) -> None:
        """Make an empty cache.

        Args:
            max_bytes: what the entries may take together.
            size_of: bytes that an entry takes, at least 1.
            meter: counts what happens.
        """
        self._size_of = size_of
        self._meter = meter
        self._entries = _Entries(max_bytes, size_of, meter)

    def get(self, key: bytes) -> _V | None:
        """Returns what was put under ``key``, None if it is not there (any more)."""
        return self._entries.get(key)

    def put(self, key: bytes, value: _V) -> None:
        """Keep ``value``, and as many of the others as there is room for."""
        if self._size_of(value) > self._entries.maxsize:
            return
        self._entries[key] = value
        if len(self._entries) > _MAX_ENTRIES:
            self._entries.popitem()
        self._meter.holds(int(self._entries.currsize))

    def discard(self, key: bytes) -> None:
        """Forget what is kept under ``key``, if there is anything."""
        self._entries.pop(key, None)
        self._meter.holds(int(self._entries.currsize))

    def clear(self) -> None:
        """Forget everything."""
        self._entries = _Entries(int(self._entries.maxsize), self._size_of, self._meter)
        self._meter.holds(0)


class _Entries(LRUCache[bytes, _V]):
    """The entries; each one that has to go is counted."""

    def __init__(self, max_bytes: int, size_of: Callable[[_V], int], meter: CacheMeter) -> None:
        super().__init__(max_bytes, getsizeof=size_of)
        self._meter = meter

    def popitem(self) -> tuple[bytes, _V]:
        self._meter.evicted()
        return super().popitem()
