"""Several coroutines at once, for one result."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

_T = TypeVar("_T")


async def all_of(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Returns all results in order; the first failure cancels the others and is raised as it is."""
    tasks: list[asyncio.Task[_T]] = []
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(coroutine) for coroutine in coroutines]
        return [task.result() for task in tasks]
    except ExceptionGroup as failures:
        failure = failures.exceptions[0]
    except asyncio.CancelledError:
        # The group's frame and this error hold each other, and what the callers' frames hold.
        failure = asyncio.CancelledError()
    finally:
        # An error's traceback holds this frame, which must not hold the error, nor what the others
        # have decoded: only a collection would find that again.
        tasks.clear()
        del group
    try:
        # Out here, for an error raised where another is handled refers to that one, the group.
        raise failure
    finally:
        del failure
