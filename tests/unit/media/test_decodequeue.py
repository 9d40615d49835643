"""Who gets the next decoder, who has to wait, and who is turned away."""

import asyncio

import pytest

from server.errors import Overloaded
from server.media.decodequeue import DecodeQueue
from server.metrics import Metrics

pytestmark = pytest.mark.anyio


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def make_queue(metrics):
    def make(num_places=1, max_waiting=8, max_wait_seconds=60.0):
        return DecodeQueue(
            num_places=num_places,
            max_waiting=max_waiting,
            max_wait_seconds=max_wait_seconds,
            meter=metrics.decode_queue,
        )

    return make


class Crowd:
    """Videos of several clients; notes in which order they get their places."""

    def __init__(self, queue):
        self._queue = queue
        self._gates = {}
        self.tasks = {}
        self.served = []

    async def send(self, *names):
        """Have videos named ``<client><number>`` queue up, one after the other."""
        for name in names:
            self._gates[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(name))
            await asyncio.sleep(0)

    async def _run(self, name):
        async with self._queue.place(name[0], key=name.encode()):
            self.served.append(name)
            await self._gates[name].wait()

    async def finish(self, name):
        self._gates[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def finish_all(self):
        while running := [name for name in self.served if not self.tasks[name].done()]:
            for name in running:
                await self.finish(name)

    async def refused(self, name):
        with pytest.raises(Overloaded):
            await self.tasks[name]
        return True


def sample(metrics, name):
    return metrics.registry.get_sample_value(name)


async def test_clients_take_turns_however_many_videos_they_send(make_queue):
    crowd = Crowd(make_queue())
    await crowd.send("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    await crowd.finish_all()
    assert crowd.served == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_all_places_are_used_and_no_more(make_queue, metrics):
    crowd = Crowd(make_queue(num_places=2))
    await crowd.send("a1", "a2", "a3", "a4")
    assert crowd.served == ["a1", "a2"]
    assert sample(metrics, "videochat_decoders_busy") == 2
    assert sample(metrics, "videochat_decode_queue_length") == 2
    await crowd.finish("a1")
    assert crowd.served == ["a1", "a2", "a3"]
    await crowd.finish_all()
    assert sample(metrics, "videochat_decoders_busy") == 0
    assert sample(metrics, "videochat_decode_queue_length") == 0
    assert sample(metrics, "videochat_decode_queue_seconds_count") == 4


async def test_one_too_many_of_the_same_client_is_turned_away(make_queue):
    queue = make_queue(max_waiting=2)
    crowd = Crowd(queue)
    await crowd.send("a1", "a2", "a3")
    assert queue.is_full_for("a")
    await crowd.send("a4")
    assert await crowd.refused("a4")
    await crowd.finish_all()
    assert crowd.served == ["a1", "a2", "a3"]
    assert not queue.is_full_for("a")


async def test_a_client_with_less_takes_the_place_of_one_with_more(make_queue):
    queue = make_queue(max_waiting=4)
    crowd = Crowd(queue)
    await crowd.send("a1", "a2", "a3", "a4", "a5")
    assert queue.is_full_for("a")
    assert not queue.is_full_for("b")
    await crowd.send("b1", "b2", "b3")
    assert await crowd.refused("a5")
    assert await crowd.refused("a4")
    # Two each: nobody is better off by a swap.
    assert await crowd.refused("b3")
    assert queue.is_full_for("b")
    await crowd.finish_all()
    assert crowd.served == ["a1", "a2", "b1", "a3", "b2"]


async def test_what_two_wait_for_stands_in_the_line_where_its_turn_is_first(make_queue):
    queue = make_queue()
    crowd = Crowd(queue)
    await crowd.send("a1", "a2", "a3", "a4", "b1")
    queue.share(b"a4", "c")
    queue.share(b"a2", "b")  # is the next one of a already
    queue.share(b"nothing", "b")
    await crowd.finish_all()
    assert crowd.served == ["a1", "a2", "b1", "a4", "a3"]


async def test_who_leaves_after_the_line_was_changed_gives_up_the_place(make_queue, metrics):
    queue = make_queue()
    crowd = Crowd(queue)
    await crowd.send("a1", "a2", "a3")
    queue.share(b"a3", "b")
    crowd.tasks["a3"].cancel()
    await asyncio.wait({crowd.tasks["a3"]})
    assert sample(metrics, "videochat_decode_queue_length") == 1
    await crowd.finish_all()
    assert crowd.served == ["a1", "a2"]


async def test_without_a_queue_a_busy_decoder_is_a_refusal(make_queue):
    queue = make_queue(max_waiting=0)
    crowd = Crowd(queue)
    assert not queue.is_full_for("a")
    await crowd.send("a1")
    assert queue.is_full_for("b")
    await crowd.send("b1")
    assert await crowd.refused("b1")
    await crowd.finish_all()


async def test_a_place_that_is_held_is_nobody_elses(make_queue, metrics):
    queue = make_queue()
    crowd = Crowd(queue)
    await crowd.send("a1", "b1")
    queue.hold()
    await crowd.finish("a1")
    assert crowd.served == ["a1"]
    assert sample(metrics, "videochat_decoders_busy") == 1
    queue.release()
    await asyncio.sleep(0)
    assert crowd.served == ["a1", "b1"]
    await crowd.finish_all()


async def test_waiting_has_an_end(make_queue, metrics):
    crowd = Crowd(make_queue(max_wait_seconds=0.01))
    await crowd.send("a1", "b1")
    assert await crowd.refused("b1")
    assert sample(metrics, "videochat_decode_queue_length") == 0
    await crowd.finish_all()
    assert crowd.served == ["a1"]


async def test_who_leaves_gives_up_the_place_in_line(make_queue, metrics):
    crowd = Crowd(make_queue())
    await crowd.send("a1", "a2", "b1")
    crowd.tasks["a2"].cancel()
    await asyncio.wait({crowd.tasks["a2"]})
    assert sample(metrics, "videochat_decode_queue_length") == 1
    await crowd.finish_all()
    assert crowd.served == ["a1", "b1"]


@pytest.mark.parametrize("is_cancelled_first", [True, False])
async def test_who_leaves_in_the_moment_of_its_turn_loses_no_place(make_queue, is_cancelled_first):
    queue = make_queue()
    crowd = Crowd(queue)
    await crowd.send("b1")
    holder = queue.place("a")
    crowd.tasks["b1"].cancel()
    await asyncio.wait({crowd.tasks["b1"]})
    await holder.__aenter__()
    await crowd.send("b2", "c1")
    if is_cancelled_first:
        crowd.tasks["b2"].cancel()
    await holder.__aexit__(None, None, None)
    if not is_cancelled_first:
        crowd.tasks["b2"].cancel()
    await asyncio.wait({crowd.tasks["b2"]})
    await asyncio.sleep(0)
    assert crowd.served == ["b1", "c1"]
    await crowd.finish_all()
    assert not queue.is_full_for("a")
    await crowd.send("d1")
    assert crowd.served[-1] == "d1"
    await crowd.finish_all()


# Places of those who wait for something else


async def test_a_lent_place_is_taken_by_others_and_waited_for_again(make_queue, metrics):
    queue = make_queue()
    async with queue.place("a") as place:
        async with place.lent(), queue.place("b"):
            assert not place.is_held
            assert queue.is_full_for("c") is False
        assert place.is_held
        assert metrics.registry.get_sample_value("videochat_decoders_busy") == 1
    assert metrics.registry.get_sample_value("videochat_decoders_busy") == 0


async def test_who_has_lent_a_place_takes_a_turn_in_line(make_queue):
    queue, crowd_may_end = make_queue(), asyncio.Event()
    order = []

    async def other():
        async with queue.place("b"):
            order.append("b")
            await crowd_may_end.wait()

    async with queue.place("a") as place:
        async with place.lent():
            task = asyncio.create_task(other())
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.05, crowd_may_end.set)
        order.append("a")
    await task
    assert order == ["b", "a"]


async def test_a_place_that_can_not_be_had_again_is_an_overload(make_queue, metrics):
    queue = make_queue(max_waiting=0)
    async with queue.place("a") as place:
        other = queue.place("b")
        with pytest.raises(Overloaded):
            async with place.lent():
                await other.__aenter__()
        assert not place.is_held
    await other.__aexit__(None, None, None)
    assert metrics.registry.get_sample_value("videochat_decoders_busy") == 0
    async with queue.place("c") as place:
        assert place.is_held


async def test_an_error_ends_the_loan_without_a_turn(make_queue, metrics):
    queue = make_queue()
    with pytest.raises(KeyError):
        async with queue.place("a") as place, place.lent():
            raise KeyError
    assert metrics.registry.get_sample_value("videochat_decoders_busy") == 0


async def test_only_so_many_places_are_lent(make_queue):
    queue = make_queue(num_places=1)
    entered = []

    async def lend(gate):
        async with queue.place("a") as place, place.lent():
            entered.append(place)
            await gate.wait()

    gate = asyncio.Event()
    tasks = [asyncio.create_task(lend(gate)) for _ in range(5)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert [place.is_held for place in entered] == [False] * 4 + [True]
    gate.set()
    await asyncio.gather(*tasks)
