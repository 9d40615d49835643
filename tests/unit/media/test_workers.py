"""Real decoder processes: they do their job, and they can always be got rid of."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest

from server.errors import InternalFault, InvalidVideo, Overloaded
from server.media.clip import FramePlan
from server.media.forking import ForkHost
from server.media.memoryfile import MemoryFile
from server.media.workers import DecoderPool
from server.settings import VideoSettings
from tests.clips.counter import ClipRecipe, counters
from tests.clips.decoded import probed
from tests.unit.api.stubs import until
from tests.unit.processes import children_of, gone

ROOT = Path(__file__).parents[3]
HANG = "tests.unit.media.hanging:hang"
PLAN = FramePlan((0, 7, 7, 20), 160, 96)

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def source():
    return ClipRecipe(num_frames=30, options={"g": "10"}).encode()


def misbehaving(deed):
    return MemoryFile.of(deed.encode().ljust(32, b"\0"))


def open_descriptors():
    return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in _descriptors())


def _descriptors():
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


async def test_a_video_is_probed_and_decoded(make_pool, source):
    async with make_pool().open(MemoryFile.of(source)) as video:
        facts = await video.probe()
        frames = (await video.decode(PLAN)).view()
    assert facts == probed(source)
    assert frames.shape == (4, 96, 160, 3)
    assert frames.flags.c_contiguous
    assert counters(frames) == [0, 7, 7, 20]


async def test_frames_outlive_the_process_and_can_be_written(make_pool, source):
    async with make_pool().open(MemoryFile.of(source)) as video:
        await video.probe()
        frames = (await video.decode(PLAN)).view()
    copy = frames.copy()
    frames[0] = 0
    assert not frames[0].any()
    np.testing.assert_array_equal(frames[1:], copy[1:])


async def test_many_videos_at_once_keep_apart(make_pool):
    pool = make_pool(max_concurrent_decodes=3)
    recipes = [ClipRecipe(num_frames=5 + n, width=128 + 16 * n) for n in range(6)]

    async def decode(recipe):
        async with pool.open(MemoryFile.of(recipe.encode())) as video:
            facts = await video.probe()
            last = recipe.num_frames - 1
            frames = (await video.decode(FramePlan((0, last), facts.width, facts.height))).view()
            return facts.width, counters(frames)

    results = await asyncio.gather(*map(decode, recipes))
    assert results == [(r.width, [0, r.num_frames - 1]) for r in recipes]


@pytest.mark.parametrize(
    "deed",
    [
        "crash",
        "end silently",
        "garbage",
        "wrong facts",
        "out of turn",
        "unknown fault",
    ],
)
async def test_a_broken_decoder_is_a_broken_video(make_pool, fork_host, source, deed):
    pool = make_pool()
    with pytest.raises(InvalidVideo) as caught:
        async with pool.open(misbehaving(deed)) as video:
            await video.probe()
    assert caught.value.code == "video_decode_failed"
    await gone(fork_host)
    async with pool.open(MemoryFile.of(source)) as video:
        assert (await video.probe()).num_frames == 30


async def test_a_decoder_can_not_spoil_the_memory_that_it_shares(make_pool):
    with pytest.raises(InvalidVideo) as caught:
        await _decode(make_pool(), misbehaving("seal"))
    assert caught.value.code == "video_decode_failed"
    frames = await _decode(make_pool(), misbehaving("shrink"))
    assert not frames.any()


@pytest.mark.parametrize("deed", ["hang", "half a message"])
async def test_a_decoder_that_takes_too_long_is_killed(make_pool, fork_host, deed):
    with pytest.raises(InvalidVideo) as caught:
        async with make_pool(decode_timeout_seconds=0.3).open(misbehaving(deed)) as video:
            await video.probe()
    # The process that sends half a message ends, which is noticed at once.
    expected = "video_too_complex" if deed == "hang" else "video_decode_failed"
    assert caught.value.code == expected
    await gone(fork_host)


@pytest.mark.parametrize("deed", ["hang", None])
async def test_cancelling_kills_the_process(make_pool, fork_host, source, deed):
    await gone(fork_host)
    started = asyncio.Event()

    async def decode():
        async with make_pool().open(misbehaving(deed) if deed else MemoryFile.of(source)) as video:
            started.set()
            await video.probe()
            await asyncio.sleep(60)

    task = asyncio.create_task(decode())
    await started.wait()
    assert len(children_of(fork_host)) == 1
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(fork_host)


async def test_cancelling_while_the_process_starts_leaves_none(make_pool, fork_host, source):
    pool = make_pool(max_concurrent_decodes=1, max_queued_decodes=0)
    others = asyncio.all_tasks()

    async def decode():
        async with pool.open(misbehaving("hang")):
            pass

    for delay in (0, 0.001, 0.005, 0.01, 0.02):
        # The place is taken until what was begun is gone.
        while pool.is_full_for("anyone"):  # noqa: ASYNC110  # nobody waits for these tasks
            await asyncio.sleep(0.001)
        await gone(fork_host)
        task = asyncio.create_task(decode())
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
    # What was begun is finished in the background, and then taken away.
    while asyncio.all_tasks() - others:  # noqa: ASYNC110  # nobody waits for these tasks
        await asyncio.sleep(0.01)
    await gone(fork_host)


async def test_waiting_does_not_block_the_event_loop(make_pool, fork_host, source):
    pool = make_pool(max_concurrent_decodes=2)
    waiting = asyncio.create_task(_decode(pool, misbehaving("hang")))
    while not children_of(fork_host):  # noqa: ASYNC110  # a process has no event
        await asyncio.sleep(0.01)
    assert (await _decode(pool, MemoryFile.of(source))).any()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_nothing_leaks_over_many_decodes(make_pool, source):
    before = open_descriptors()
    pool = make_pool()

    async def one():
        async with pool.open(MemoryFile.of(source)) as video:
            await video.probe()
            await video.decode(PLAN)
        with pytest.raises(InvalidVideo):
            async with pool.open(misbehaving("crash")) as video:
                await video.probe()

    for _ in range(30):
        await one()
    await until(lambda: open_descriptors() == before)


async def test_a_video_too_many_is_turned_away(make_pool, source):
    pool = make_pool(max_concurrent_decodes=1, max_queued_decodes=1)
    async with pool.open(MemoryFile.of(source)):
        waiting = asyncio.create_task(_probe(pool, MemoryFile.of(source)))
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            await _probe(pool, MemoryFile.of(source))
        assert not waiting.done()
    assert (await waiting).num_frames == 30
    assert (await _probe(pool, MemoryFile.of(source))).num_frames == 30


async def test_a_cancelled_video_does_not_keep_its_place_in_the_queue(make_pool, source):
    pool = make_pool(max_concurrent_decodes=1, max_queued_decodes=1)
    async with pool.open(MemoryFile.of(source)):
        waiting = asyncio.create_task(_probe(pool, MemoryFile.of(source)))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        second = asyncio.create_task(_probe(pool, MemoryFile.of(source)))
        await asyncio.sleep(0.05)
        assert not second.done()
    assert (await second).num_frames == 30


async def _probe(pool, source):
    async with pool.open(source) as video:
        return await video.probe()


async def _decode(pool, source):
    async with pool.open(source) as video:
        await video.probe()
        return (await video.decode(FramePlan((0,), 112, 112))).view()


async def test_memory_is_bounded(make_pool):
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mjpeg", rate=1)
        stream.width = stream.height = 4096
        stream.pix_fmt = "yuvj444p"
        container.mux(stream.encode(av.VideoFrame(4096, 4096, "yuvj444p")))
        container.mux(stream.encode())
    with pytest.raises(InvalidVideo) as caught:
        await _decode(make_pool(decode_memory_bytes=100_000_000), MemoryFile.of(buffer.getvalue()))
    assert caught.value.code == "video_too_complex"


async def test_frames_for_the_model_do_not_count_as_memory(make_pool, source):
    async with make_pool(decode_memory_bytes=100_000_000).open(MemoryFile.of(source)) as video:
        await video.probe()
        frames = (await video.decode(FramePlan(tuple(range(30)), 1600, 1600))).view()
    assert frames.nbytes > 200_000_000
    assert frames[-1].any()


async def test_an_empty_source_is_no_video(make_pool):
    with pytest.raises(InvalidVideo):
        async with make_pool().open(MemoryFile.of(b"")):
            pass


async def test_decoders_see_no_secret(make_pool, fork_host):
    await gone(fork_host)
    async with make_pool().open(misbehaving("hang")):
        (pid,) = children_of(fork_host)
        await asyncio.sleep(0.1)
        environment = _environment(pid)
        assert {entry.split(b"=")[0] for entry in environment.split(b"\0") if entry} <= {
            b"PYTHONPATH",
            b"OMP_NUM_THREADS",
            b"OPENBLAS_NUM_THREADS",
            b"MKL_NUM_THREADS",
            b"CUDA_VISIBLE_DEVICES",
            b"MALLOC_ARENA_MAX",
            b"LC_CTYPE",
        }
        # Without it, threads take a random share of the limit on memory as address space.
        assert b"MALLOC_ARENA_MAX=1" in environment.split(b"\0")


def _environment(pid):
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_a_pool_of_its_own_starts_works_and_stops(source):
    pool = DecoderPool(VideoSettings())
    with pytest.raises(InternalFault):
        await _probe(pool, MemoryFile.of(source))
    await pool.start()
    assert (await _probe(pool, MemoryFile.of(source))).num_frames == 30
    host_pid = pool._host.pid
    await pool.stop()
    assert not _exists(host_pid)


async def test_a_host_that_was_killed_is_started_again():
    host = ForkHost(HANG)
    pool = DecoderPool(VideoSettings(), host=host)
    await pool.start()
    first_pid = host.pid
    os.kill(first_pid, signal.SIGKILL)
    await asyncio.sleep(0.1)
    async with pool.open(MemoryFile.of(b"video")):
        assert host.pid != first_pid
        assert len(children_of(host)) == 1
    await pool.stop()


async def test_a_host_that_hangs_is_an_overload():
    host = ForkHost(HANG)
    pool = DecoderPool(VideoSettings(decode_timeout_seconds=0.2), host=host)
    await pool.start()
    os.kill(host.pid, signal.SIGSTOP)
    with pytest.raises(Overloaded):
        await _probe(pool, MemoryFile.of(b"video"))
    os.kill(host.pid, signal.SIGCONT)
    await pool.stop()


async def test_stopping_ends_open_videos():
    host = ForkHost(HANG)
    pool = DecoderPool(VideoSettings(), host=host)
    await pool.start()
    async with pool.open(MemoryFile.of(b"video")) as video:
        (child,) = children_of(host)
        await pool.stop()
        with pytest.raises(InvalidVideo):
            await video.probe()
    assert not _is_alive(child)


async def test_a_host_that_can_not_start_says_so(capfd):
    with pytest.raises(InternalFault):
        await ForkHost("tests.unit.media.hanging:missing").start()
    assert "missing" in capfd.readouterr().err


def test_nothing_survives_a_server_that_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio\n"
        "from server.media.forking import ForkHost\n"
        "from server.media.memoryfile import MemoryFile\n"
        "from server.media.workers import DecoderPool\n"
        "from server.settings import VideoSettings\n"
        "from tests.unit.media.test_workers import HANG\n"
        "from tests.unit.processes import children_of\n"
        "async def main():\n"
        "    host = ForkHost(HANG)\n"
        "    pool = DecoderPool(VideoSettings(), host=host)\n"
        "    await pool.start()\n"
        "    async with pool.open(MemoryFile.of(b'video')):\n"
        "        print(host.pid, *children_of(host), flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    server = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    with server:
        pids = server.stdout.readline().split()
        server.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(map(_is_alive, pids)):
        time.sleep(0.05)
    assert not any(map(_is_alive, pids))


def _exists(pid):
    return Path(f"/proc/{pid}").exists()


def _is_alive(pid):
    """Returns whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
