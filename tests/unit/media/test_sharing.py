"""How many decoder processes it takes to answer several questions about videos."""

import asyncio

import pytest

from server.conversation import SamplingWish, UrlSource, VideoRequest
from server.errors import ContextLengthExceeded, InvalidVideo
from server.media.loader import VideoLoader
from server.media.memoryfile import MemoryFile
from server.media.workers import DecoderPool
from server.metrics import Metrics
from server.settings import VideoSettings
from tests.clips.counter import ClipRecipe, counters
from tests.unit.media.test_loader import FixedGeometry
from tests.unit.media.test_workers import misbehaving
from tests.unit.processes import children_of

pytestmark = pytest.mark.anyio


class CountingHost:
    """A fork host that counts the processes it starts."""

    def __init__(self, host):
        self._host = host
        self.num_started = 0

    def submit(self, *args):
        self.num_started += 1
        self._host.submit(*args)

    def __getattr__(self, name):
        return getattr(self._host, name)


@pytest.fixture(scope="module")
def source():
    return ClipRecipe(num_frames=60).encode()


@pytest.fixture
def host(fork_host):
    return CountingHost(fork_host)


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def make_loader(host, metrics):
    def make(size=(160, 96), **changes):
        settings = VideoSettings(**changes)
        pool = DecoderPool(settings, host=host)
        return VideoLoader(settings, FixedGeometry(size), pool=pool, metrics=metrics)

    return make


def asking(param="messages[0]", *, fps=None, num_frames=None):
    return VideoRequest(UrlSource("data:,"), param, SamplingWish(fps, num_frames), 0.5, "evs")


def lookups(metrics, cache, outcome):
    return metrics.registry.get_sample_value(
        "videochat_cache_lookups_total", {"cache": cache, "outcome": outcome}
    )


async def test_a_second_question_starts_no_process(make_loader, host, metrics, source):
    loader = make_loader()
    first = await loader.decode(MemoryFile.of(source), asking(num_frames=4))
    # Another way to say the same.
    second = await loader.decode(MemoryFile.of(bytes(bytearray(source))), asking(fps=2))
    assert host.num_started == 1
    assert counters(second.frames) == counters(first.frames) == [0, 15, 30, 45]
    assert second.timestamps_seconds == first.timestamps_seconds
    assert second.content_key == first.content_key
    for cache in ("facts", "clips"):
        assert [lookups(metrics, cache, kind) for kind in ("hit", "miss")] == [1, 1]


async def test_what_a_consumer_does_to_its_frames_stays_with_it(make_loader, source):
    loader = make_loader()
    first = await loader.decode(MemoryFile.of(source), asking(num_frames=4))
    first.frames[:] = 0
    second = await loader.decode(MemoryFile.of(source), asking(num_frames=4))
    assert counters(second.frames) == [0, 15, 30, 45]


async def test_another_plan_is_decoded_anew(make_loader, host, source):
    loader = make_loader()
    await loader.decode(MemoryFile.of(source), asking(num_frames=4))
    clip = await loader.decode(MemoryFile.of(source), asking(num_frames=6))
    assert counters(clip.frames) == [0, 10, 20, 30, 40, 50]
    assert host.num_started == 2


async def test_a_plan_is_looked_at_also_where_the_clip_is_there_already(make_loader, source):
    loader = make_loader()
    await loader.decode(MemoryFile.of(source), asking(num_frames=4))

    def refuse(facts, plan):
        raise ContextLengthExceeded("too long")

    with pytest.raises(ContextLengthExceeded) as caught:
        await loader.decode(
            MemoryFile.of(source), asking("messages[3]", num_frames=4), on_plan=refuse
        )
    assert caught.value.param == "messages[3]"


async def test_a_cache_of_no_bytes_keeps_nothing(make_loader, host, source):
    loader = make_loader(clip_cache_bytes=0)
    for _ in range(2):
        assert (await loader.decode(MemoryFile.of(source), asking(num_frames=4))).num_frames == 4
    assert host.num_started == 2


async def test_a_clip_larger_than_the_cache_passes_through(make_loader, host, source):
    # The facts of 60 frames have room in a sixteenth of it; 4 frames take 184 320 bytes.
    loader = make_loader(clip_cache_bytes=150_000)
    for _ in range(2):
        clip = await loader.decode(MemoryFile.of(source), asking(num_frames=4))
        assert counters(clip.frames) == [0, 15, 30, 45]
    assert host.num_started == 2


async def test_clips_go_when_others_need_the_room(make_loader, host, metrics, source):
    loader = make_loader(clip_cache_bytes=500_000)
    for num_frames in (4, 6, 8, 8, 4):
        await loader.decode(MemoryFile.of(source), asking(num_frames=num_frames))
    assert host.num_started == 4
    held = metrics.registry.get_sample_value("videochat_cache_bytes", {"cache": "clips"})
    assert held <= 500_000


async def test_two_questions_at_once_take_one_process(make_loader, host, metrics, source):
    loader = make_loader(clip_cache_bytes=0)
    wishes = [asking(num_frames=4), asking(fps=2), asking(num_frames=4)]
    clips = await asyncio.gather(*(loader.decode(MemoryFile.of(source), wish) for wish in wishes))
    assert [counters(clip.frames) for clip in clips] == [[0, 15, 30, 45]] * 3
    assert host.num_started == 1
    clips[0].frames[:] = 0
    assert counters(clips[1].frames) == [0, 15, 30, 45]
    assert lookups(metrics, "facts", "shared") == 2
    assert lookups(metrics, "clips", "shared") == 2


async def test_other_plans_at_once_share_the_probing_only(make_loader, host, source):
    loader = make_loader(max_concurrent_decodes=1)
    clips = await asyncio.gather(
        *(
            loader.decode(MemoryFile.of(source), asking(num_frames=count))
            for count in (4, 6, 8, 4, 6)
        )
    )
    assert [clip.num_frames for clip in clips] == [4, 6, 8, 4, 6]
    assert host.num_started == 3


async def test_an_idle_decoder_is_not_kept_from_those_who_wait_for_one(make_loader, source):
    # Facts that are known lead one request to decode, while another probes: its decoder has the
    # only place.
    loader = make_loader(max_concurrent_decodes=1, clip_cache_bytes=0)

    async def ask():
        return (await loader.decode(MemoryFile.of(source), asking(num_frames=4))).num_frames

    async with asyncio.timeout(60):
        for _ in range(3):
            assert await asyncio.gather(*(ask() for _ in range(5))) == [4] * 5


async def test_one_refused_plan_does_not_disturb_the_others(make_loader, host, source):
    loader = make_loader()

    def refuse(facts, plan):
        raise ContextLengthExceeded("too long")

    refused, served = await asyncio.gather(
        loader.decode(MemoryFile.of(source), asking("messages[1]", num_frames=4), on_plan=refuse),
        loader.decode(MemoryFile.of(source), asking("messages[2]", num_frames=4)),
        return_exceptions=True,
    )
    assert isinstance(refused, ContextLengthExceeded)
    assert refused.param == "messages[1]"
    assert counters(served.frames) == [0, 15, 30, 45]
    assert host.num_started == 1


async def test_a_fault_goes_to_all_with_their_own_names_and_is_not_kept(make_loader, host):
    loader = make_loader()
    faults = await asyncio.gather(
        *(loader.decode(misbehaving("crash"), asking(f"messages[{n}]")) for n in range(3)),
        return_exceptions=True,
    )
    assert [type(fault) for fault in faults] == [InvalidVideo] * 3
    assert [fault.param for fault in faults] == [f"messages[{n}]" for n in range(3)]
    assert host.num_started == 1
    with pytest.raises(InvalidVideo):
        await loader.decode(misbehaving("crash"), asking())
    assert host.num_started == 2


async def test_who_leaves_does_not_end_the_decoding_for_the_other(make_loader, host, source):
    loader = make_loader()
    leaving, staying = (
        asyncio.create_task(loader.decode(MemoryFile.of(source), asking(num_frames=4)))
        for _ in range(2)
    )
    while not host.num_started:  # noqa: ASYNC110  # a process has no event
        await asyncio.sleep(0)
    leaving.cancel()
    assert counters((await staying).frames) == [0, 15, 30, 45]
    assert leaving.cancelled()
    assert host.num_started == 1


async def test_the_last_to_leave_ends_the_decoding(make_loader, fork_host):
    loader = make_loader()
    tasks = [asyncio.create_task(loader.decode(misbehaving("hang"), asking())) for _ in range(2)]
    while not children_of(fork_host):  # noqa: ASYNC110  # a process has no event
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    while children_of(fork_host):  # noqa: ASYNC110  # a process has no event
        await asyncio.sleep(0.01)


async def test_stopping_frees_what_is_kept(fork_host, source):
    metrics = Metrics()
    loader = VideoLoader(VideoSettings(), FixedGeometry(), metrics=metrics)
    await loader.start()
    await loader.decode(MemoryFile.of(source), asking(num_frames=4))
    await loader.stop()
    for cache in ("facts", "clips"):
        held = metrics.registry.get_sample_value("videochat_cache_bytes", {"cache": cache})
        assert held == 0
