"""Whose video is decoded next: places for decoders, given in turn to the clients that wait."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass

from server.errors import Overloaded
from server.meters import QueueMeter

_MAX_LENT_PER_PLACE = 4


@dataclass(slots=True, eq=False)
class _Ticket:
    """One video that waits."""

    client: str
    """In whose line it stands."""
    key: bytes
    """What it is for."""
    turn: asyncio.Future[bool]
    """True: it has a place. False: it had to go for the ticket of another client."""


class DecodeQueue:
    """A number of places, and a bounded number of videos that wait for one.

    Each client has a line of its own, and the lines are served in turn, so that a client with one
    video waits for one of each other client at most. Where nothing more may wait, a client that has
    less in line than another takes the place of the other's last.
    """

    def __init__(
        self, *, num_places: int, max_waiting: int, max_wait_seconds: float, meter: QueueMeter
    ) -> None:
        """Begin with all places free.

        Args:
            num_places: decoders at once.
            max_waiting: videos that may wait, all clients together.
            max_wait_seconds: how long one may wait.
            meter: counts who waits, and how long.
        """
        self._num_places = num_places
        self._max_waiting = max_waiting
        self._max_wait_seconds = max_wait_seconds
        self._meter = meter
        self._num_taken = 0
        self._num_lent = 0
        self._lines: dict[str, deque[_Ticket]] = {}
        """Tickets of each client that waits, oldest first; clients in the order of their turns."""

    def is_full_for(self, client: str) -> bool:
        """Returns whether a video of ``client`` would be refused now."""
        if self._num_taken < self._num_places or self._num_waiting < self._max_waiting:
            return False
        longest = max(map(len, self._lines.values()), default=0)
        # After a swap both must be better off than before it, or the two would swap for ever.
        return longest < len(self._lines.get(client, ())) + 2

    @asynccontextmanager
    async def place(self, client: str, *, key: bytes = b"") -> AsyncIterator["Place"]:
        """Hold a place in the ``with`` block, once it is the turn of ``client``.

        Args:
            client: who asks.
            key: what for, so that others can join the wait; see ``share``.

        Raises:
            Overloaded: too many wait, or the wait was too long.
        """
        began_at = time.monotonic()
        await self._take(client, key)
        self._meter.waited(time.monotonic() - began_at)
        place = Place(self, client)
        try:
            yield place
        finally:
            if place.is_held:
                self._give_back()

    @asynccontextmanager
    async def lending(self, place: "Place") -> AsyncIterator[None]:
        """Give a place to others in the ``with`` block; for ``Place``."""
        if self._num_lent >= self._num_places * _MAX_LENT_PER_PLACE:
            yield
            return
        self._num_lent += 1
        place.is_held = False
        self._give_back()
        try:
            yield
            await self._take(place.client, b"")
            place.is_held = True
        finally:
            self._num_lent -= 1

    async def _take(self, client: str, key: bytes) -> None:
        if self._num_taken < self._num_places:
            self._num_taken += 1
        else:
            await self._wait(self._line_up(client, key))
        self._meter.busy(self._num_taken)

    def hold(self) -> None:
        """Take one place more, whether or not it is free, until ``release``.

        For what goes on a little after its place was given back.
        """
        self._num_taken += 1
        self._meter.busy(self._num_taken)

    def release(self) -> None:
        """Give back what ``hold`` took."""
        self._give_back()

    def share(self, key: bytes, client: str) -> None:
        """Have what waits for ``key`` wait for ``client`` too, in the line where its turn is first.

        Does nothing if nothing waits for it.
        """
        for line in self._lines.values():
            for num_before, ticket in enumerate(line):
                if ticket.key == key:
                    if len(self._lines.get(client, ())) < num_before:
                        self._withdraw(ticket)
                        self._append(client, ticket)
                    return

    async def _wait(self, ticket: _Ticket) -> None:
        turn = ticket.turn
        try:
            async with asyncio.timeout(self._max_wait_seconds):
                has_place = await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.result():
                self._give_back()
            self._withdraw(ticket)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    f"The video has waited {self._max_wait_seconds:g} s; all decoders are busy. "
                    "Try again later."
                ) from None
            raise
        if not has_place:
            raise _overloaded()

    def _line_up(self, client: str, key: bytes) -> _Ticket:
        if self.is_full_for(client):
            raise _overloaded()
        if self._num_waiting >= self._max_waiting:
            last = max(self._lines.values(), key=len)[-1]
            self._withdraw(last)
            if not last.turn.done():
                last.turn.set_result(False)
        ticket = _Ticket(client, key, asyncio.get_running_loop().create_future())
        self._append(client, ticket)
        return ticket

    def _append(self, client: str, ticket: _Ticket) -> None:
        ticket.client = client
        self._lines.setdefault(client, deque()).append(ticket)
        self._meter.length(self._num_waiting)

    def _withdraw(self, ticket: _Ticket) -> None:
        line = self._lines.get(ticket.client, deque())
        with suppress(ValueError):
            line.remove(ticket)
        if not line:
            self._lines.pop(ticket.client, None)
        self._meter.length(self._num_waiting)

    def _give_back(self) -> None:
        self._num_taken -= 1
        while self._num_taken < self._num_places and self._lines:
            client = next(iter(self._lines))
            line = self._lines.pop(client)
            turn = line.popleft().turn
            if line:
                self._lines[client] = line  # at the end: it is the others' turn
            # Who has just been cancelled has not yet withdrawn.
            if not turn.done():
                turn.set_result(True)
                self._num_taken += 1
        self._meter.length(self._num_waiting)
        self._meter.busy(self._num_taken)

    @property
    def _num_waiting(self) -> int:
        return sum(map(len, self._lines.values()))


@dataclass(slots=True, eq=False)
class Place:
    """A place that is held."""

    queue: DecodeQueue
    client: str
    """Whose it is."""
    is_held: bool = True
    """Whether it is the holder's now."""

    def lent(self) -> AbstractAsyncContextManager[None]:
        """Returns a context in which others have the place, while its decoder waits for something.

        Leaving it, unless by an error, takes a turn in line again. Of those who wait like this only
        so many may, as each has a process; further ones keep their place.

        Raises:
            Overloaded: as for ``DecodeQueue.place``.
        """
        return self.queue.lending(self)


def _overloaded() -> Overloaded:
    return Overloaded("Too many videos are waiting to be decoded. Try again later.")
