"""Work that ends when nobody is left to receive its result."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of ``work``, which is cancelled as soon as the client hangs up.

    Neither the work nor anything it started is left running when this returns or raises.

    Raises:
        ClientDisconnect: the client hung up first.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        watching.result()  # raises what went wrong while watching
        raise ClientDisconnect
    finally:
        await stopped(working)
        await stopped(watching)


async def stopped(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` and return when it has ended, however it ended."""
    task.cancel()
    await asyncio.wait({task})
    if task.cancelled():
        # Taken out, the error lets go of the frames of its traceback, and so of decoded videos.
        with contextlib.suppress(asyncio.CancelledError):
            task.result()
    else:
        task.exception()  # retrieved, or asyncio would complain


async def _disconnected(receive: Receive) -> None:
    """Returns when the client has hung up; what it still sends is thrown away."""
    while (await receive())["type"] != "http.disconnect":
        pass
