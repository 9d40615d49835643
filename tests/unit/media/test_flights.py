"""Who shares a piece of work, who keeps it going, and who ends it."""

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from server.errors import InternalFault, InvalidVideo
from server.media.flights import SingleFlight

pytestmark = pytest.mark.anyio


class Work:
    """Work that goes on until it is let go, and notes what became of it."""

    def __init__(self, error=None):
        self.error = error
        self.num_started = 0
        self.was_cancelled = False
        self.gate = asyncio.Event()

    async def __call__(self):
        self.num_started += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        if self.error is not None:
            raise self.error
        return f"result {self.num_started}"


async def _join(flights, work, key=b"key"):
    async with flights.join(key, work) as result:
        return result


async def _started(flights, work, count, key=b"key"):
    tasks = [asyncio.create_task(_join(flights, work, key)) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_all_get_the_result_of_one_piece_of_work():
    flights, work = SingleFlight(), Work()
    tasks = await _started(flights, work, 3)
    assert b"key" in flights
    work.gate.set()
    assert await asyncio.gather(*tasks) == ["result 1"] * 3
    assert b"key" not in flights
    assert await _join(flights, work) == "result 2"


async def test_other_keys_are_other_work():
    flights, work = SingleFlight(), Work()
    tasks = await _started(flights, work, 1, b"a") + await _started(flights, work, 1, b"b")
    work.gate.set()
    await asyncio.gather(*tasks)
    assert work.num_started == 2


async def test_who_leaves_does_not_end_the_work_of_those_who_stay():
    flights, work = SingleFlight(), Work()
    first, second = await _started(flights, work, 2)
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    work.gate.set()
    assert await second == "result 1"
    assert not work.was_cancelled


async def test_the_last_to_leave_ends_the_work():
    flights, work = SingleFlight(), Work()
    tasks = await _started(flights, work, 2)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert work.was_cancelled
    assert b"key" not in flights


async def test_who_comes_while_the_work_is_being_ended_starts_it_anew():
    flights, work = SingleFlight(), Work()
    (first,) = await _started(flights, work, 1)
    first.cancel()
    await asyncio.sleep(0)
    second = asyncio.create_task(_join(flights, work))
    await asyncio.wait({first})
    work.gate.set()
    assert await second == "result 2"


async def test_an_error_goes_to_all_as_a_copy_each_and_is_not_kept():
    flights, work = SingleFlight(), Work(InvalidVideo("bad", code="no_frames"))
    tasks = await _started(flights, work, 2)
    work.gate.set()
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert [(type(e), str(e), e.code) for e in (first, second)] == [
        (InvalidVideo, "bad", "no_frames")
    ] * 2
    first.param = "messages[0]"
    assert second.param is None
    work.error = None
    assert await _join(flights, work) == "result 2"


async def test_an_error_is_copied_whatever_its_constructor_asks_for():
    class Picky(InvalidVideo):
        def __init__(self, *, size_bytes):
            super().__init__(f"{size_bytes} bytes are too many", code="no_frames")
            self.size_bytes = size_bytes

    flights, work = SingleFlight(), Work(Picky(size_bytes=7))
    work.gate.set()
    with pytest.raises(Picky) as caught:
        await _join(flights, work)
    assert caught.value is not work.error
    assert (str(caught.value), caught.value.code) == ("7 bytes are too many", "no_frames")
    assert caught.value.size_bytes == 7


async def test_an_unexpected_error_is_a_fault_of_ours_with_its_cause():
    flights, work = SingleFlight(), Work(OSError("full"))
    work.gate.set()
    with pytest.raises(InternalFault) as caught:
        await _join(flights, work)
    assert caught.value.__cause__ is work.error


async def test_a_result_is_disposed_of_when_the_last_one_is_done_with_it():
    disposed = []

    async def dispose(result):
        disposed.append(result)

    flights, work = SingleFlight(dispose=dispose), Work()
    work.gate.set()
    async with flights.join(b"key", work):
        async with flights.join(b"key", work) as result:
            assert result == "result 1"
        assert disposed == []
    assert disposed == ["result 1"]


async def test_nothing_is_left_over_that_only_a_collection_would_find():
    class Result:
        pass

    results = []

    async def fail():
        result = Result()
        results.append(weakref.ref(result))
        await asyncio.sleep(0)
        raise InvalidVideo("bad")

    async def hang():
        result = Result()
        results.append(weakref.ref(result))
        await asyncio.sleep(60)

    gc.collect()
    gc.disable()
    try:
        flights = SingleFlight()
        with pytest.raises(InvalidVideo):
            await _join(flights, fail)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await _join(flights, hang)
        await asyncio.sleep(0)
        assert len(results) == 2
        assert [result() for result in results] == [None, None]
    finally:
        gc.enable()
