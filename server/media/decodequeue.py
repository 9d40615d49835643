"""Whose video is decoded next: places for decoders, given in turn to the clients that wait."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

from server.errors import Overloaded
from server.metrics import QueueMeter

_Ticket: TypeAlias = asyncio.Future[bool]
"""True: it is a place. False: it had to go for the ticket of another client."""


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
    async def place(self, client: str) -> AsyncIterator[None]:
        """Hold a place in the ``with`` block, once it is the turn of ``client``.

        Raises:
            Overloaded: too many wait, or the wait was too long.
        """
        began_at = time.monotonic()
        if self._num_taken < self._num_places:
            self._num_taken += 1
        else:
            await self._wait(client)
        self._meter.waited(time.monotonic() - began_at)
        self._meter.busy(self._num_taken)
        try:
            yield
        finally:
            self._give_back()

    async def _wait(self, client: str) -> None:
        ticket = self._line_up(client)
        try:
            async with asyncio.timeout(self._max_wait_seconds):
                has_place = await ticket
        except BaseException as error:
            if ticket.done() and not ticket.cancelled() and ticket.result():
                self._give_back()
            self._withdraw(client, ticket)
            if isinstance(error, TimeoutError):
                raise _overloaded() from None
            raise
        if not has_place:
            raise _overloaded()

    def _line_up(self, client: str) -> _Ticket:
        if self.is_full_for(client):
            raise _overloaded()
        if self._num_waiting >= self._max_waiting:
            longest = max(self._lines, key=lambda other: len(self._lines[other]))
            last = self._lines[longest][-1]
            self._withdraw(longest, last)
            if not last.done():
                last.set_result(False)
        ticket: _Ticket = asyncio.get_running_loop().create_future()
        self._lines.setdefault(client, deque()).append(ticket)
        self._meter.length(self._num_waiting)
        return ticket

    def _withdraw(self, client: str, ticket: _Ticket) -> None:
        line = self._lines.get(client, deque())
        with suppress(ValueError):
            line.remove(ticket)
        if not line:
            self._lines.pop(client, None)
        self._meter.length(self._num_waiting)

    def _give_back(self) -> None:
        self._num_taken -= 1
        while self._num_taken < self._num_places and self._lines:
            client = next(iter(self._lines))
            line = self._lines.pop(client)
            ticket = line.popleft()
            if line:
                self._lines[client] = line  # at the end: it is the others' turn
            # Who has just been cancelled has not yet withdrawn.
            if not ticket.done():
                ticket.set_result(True)
                self._num_taken += 1
        self._meter.length(self._num_waiting)
        self._meter.busy(self._num_taken)

    @property
    def _num_waiting(self) -> int:
        return sum(map(len, self._lines.values()))


def _overloaded() -> Overloaded:
    return Overloaded("Too many videos are waiting to be decoded. Try again later.")
