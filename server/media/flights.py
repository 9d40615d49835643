"""One piece of work for all who ask for the same thing at the same time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from server.errors import InternalFault, VideoChatError

_V = TypeVar("_V")


@dataclass(slots=True, eq=False)
class _Flight(Generic[_V]):
    """Work under way, and how many wait for it or use its result."""

    task: asyncio.Task[_V]
    num_aboard: int = 0


class SingleFlight(Generic[_V]):
    """Runs the work for a key once, for everyone who joins while it is wanted.

    It goes on as long as one of them stays, and is cancelled when the last one leaves. All get its
    result, or its error, each a copy. Nothing is kept afterwards: not even an error that would come
    again, since a copy of it is no cheaper to an attacker than the next file.
    """

    def __init__(self, *, dispose: Callable[[_V], Awaitable[None]] | None = None) -> None:
        """Begin without any work.

        Args:
            dispose: called with a result when nobody uses it any more.
        """
        self._dispose = dispose
        self._flights: dict[bytes, _Flight[_V]] = {}
        self._landing: set[asyncio.Task[None]] = set()

    def __contains__(self, key: bytes) -> bool:
        """Returns whether there is work for ``key`` to join."""
        return key in self._flights

    @asynccontextmanager
    async def join(
        self, key: bytes, work: Callable[[], Coroutine[Any, Any, _V]]
    ) -> AsyncIterator[_V]:
        """Yields the result of the work for ``key``, which is started if there is none to join.

        Args:
            key: what the work is for.
            work: called before anything else can run, if at all; what it returns is then sure to
                begin.

        Raises:
            VideoChatError: the work's own.
            InternalFault: the work failed in another way.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(work()))
        flight.num_aboard += 1
        try:
            yield await _result(flight.task)
        finally:
            flight.num_aboard -= 1
            if not flight.num_aboard:
                del self._flights[key]
                # In a task of its own: who leaves may be cancelled once more.
                landing = asyncio.create_task(self._land(flight.task))
                self._landing.add(landing)
                landing.add_done_callback(self._landing.discard)
                await asyncio.shield(landing)

    async def _land(self, task: asyncio.Task[_V]) -> None:
        task.cancel()
        await asyncio.wait({task})
        if task.cancelled():
            # Taken out, the error lets go of the frames of its traceback.
            with suppress(asyncio.CancelledError):
                task.result()
        elif task.exception() is None and self._dispose is not None:
            await self._dispose(task.result())


async def _result(task: asyncio.Task[_V]) -> _V:
    # Cancelling this wait leaves the task alone.
    await asyncio.wait({task})
    if task.cancelled():
        raise InternalFault("work for several requests was cancelled")
    error = task.exception()
    if error is None:
        return task.result()
    # Errors get the name of a request's field later, and hold on to the frames that they pass.
    if isinstance(error, VideoChatError):
        raise _copied(error) from error.__cause__
    raise InternalFault("work for several requests failed") from error


def _copied(error: VideoChatError) -> VideoChatError:
    """Returns the same error without its traceback, whatever its constructor asks for."""
    kind = type(error)
    copied = kind.__new__(kind, *error.args)
    vars(copied).update(vars(error))
    return copied
