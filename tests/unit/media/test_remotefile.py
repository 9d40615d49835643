"""Files with holes: who can fill them, and how decoders ask for that."""

import asyncio
import fcntl
import mmap
import os
import random
from collections import Counter

import pytest

from server.errors import InvalidVideo, RequestTooLarge, VideoUnreachable
from server.media import messages
from server.media.byteranges import ByteRange
from server.media.clip import FramePlan
from server.media.faults import VIDEO_FAULTS
from server.media.memoryfile import MemoryFile
from server.media.packettable import read_table
from server.media.remotefile import RemoteFile, has_holes, in_few_requests
from server.media.sourcefile import SparseFile
from server.media.supply import Supply
from tests.clips.counter import ClipRecipe
from tests.unit.media.test_boxes import Memory

DATA = bytes(range(256)) * 40_000

pytestmark = pytest.mark.anyio


@pytest.fixture
def origin():
    return Memory(DATA)


@pytest.fixture
def file(origin):
    return RemoteFile(len(DATA), origin)


def ranges(*edges):
    return [ByteRange(start, end) for start, end in edges]


async def test_holes_are_filled_once(file, origin):
    await file.fill(ranges((1000, 2000)))
    await file.fill(ranges((0, 1500), (9_000_000, 9_000_100)))
    assert origin.reads == ranges((1000, 2000), (0, 1000), (9_000_000, 9_000_100))
    assert file.peek(0, 2000) == DATA[:2000]
    assert file.peek(9_000_000, 100) == DATA[9_000_000:9_000_100]
    assert file.held_bytes == 2100
    assert file.holds(ByteRange(0, 2000))
    assert not file.holds(ByteRange(0, 2001))
    assert os.fstat(file.fd).st_blocks * 512 < 50_000


async def test_what_is_there_stays_as_it_is(file):
    file.write(100, b"first")
    file.write(98, b"otherwise")
    assert file.peek(98, 9) == b"otfirstse"


async def test_nothing_is_written_behind_the_end(file):
    file.write(len(DATA) - 2, b"four")
    assert file.peek(len(DATA) - 2, 10) == b"fo"
    assert os.fstat(file.fd).st_size == len(DATA)


async def test_two_who_need_the_same_read_it_once(file, origin):
    await asyncio.gather(*(file.fill(ranges((0, 1000))) for _ in range(3)))
    assert origin.reads == ranges((0, 1000))


async def test_who_has_the_descriptor_can_not_write(file):
    file.write(0, b"video")
    again = os.open(f"/proc/self/fd/{file.fd}", os.O_RDWR)
    try:
        for fd in (file.fd, again):
            with pytest.raises(PermissionError):
                os.pwrite(fd, b"x", 0)
            with pytest.raises(PermissionError):
                os.ftruncate(fd, 10)
            with pytest.raises(PermissionError):
                mmap.mmap(fd, 4096)
            with pytest.raises(PermissionError):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
            with mmap.mmap(fd, 5, access=mmap.ACCESS_READ) as mapping:
                assert mapping[:] == b"video"
    finally:
        os.close(again)


async def test_the_two_kinds_of_files_are_told_apart(file):
    assert has_holes(file.fd)
    assert not has_holes(MemoryFile.of(b"video").fd)


async def test_no_two_files_have_the_same_name(origin):
    assert len({RemoteFile(10, origin).digest for _ in range(3)}) == 3


async def test_reading_holes_takes_no_memory(file):
    file.write(5000, b"video")
    sparse = SparseFile(file.fd)
    assert sparse.read(5005) == bytes(5000) + b"video"
    sparse.seek(0)
    assert len(sparse.read()) == len(DATA)
    assert sparse.read(10) == b""
    assert os.fstat(file.fd).st_blocks * 512 <= 8192


def test_many_parts_take_few_requests():
    near = [ByteRange(start, start + 10) for start in range(0, 10**7, 1000)]
    assert in_few_requests(near) == ranges((0, near[-1].end))
    far = [ByteRange(start, start + 10) for start in range(0, 10**9, 10**6)]
    assert len(in_few_requests(far)) <= 512


# What decoders may ask for


async def test_a_supply_counts_what_it_gives_for_one_question(origin):
    origin.max_bytes = 1000
    file = RemoteFile(len(DATA), origin)
    for _ in range(2):
        supply = Supply(file)
        await supply.give(ranges((0, 600)))
        await supply.give(ranges((100, 500), (5_000_000, 5_000_400)))
        with pytest.raises(RequestTooLarge):
            await supply.give(ranges((9_000_000, 9_000_001)))
    assert file.held_bytes == 1000


async def test_gaps_that_are_read_along_count_too(origin):
    origin.max_bytes = 1000
    with pytest.raises(RequestTooLarge):
        await Supply(RemoteFile(len(DATA), origin)).give(ranges((0, 10), (5000, 5010)))
    assert origin.reads == []


async def test_a_supply_has_the_time_of_one_url(origin):
    async def read(parts, write):
        await asyncio.sleep(3600)

    origin.read, origin.timeout_seconds = read, 0.1
    supply = Supply(RemoteFile(len(DATA), origin))
    with pytest.raises(VideoUnreachable):
        await supply.give(ranges((0, 10)))
    assert supply.seconds_spent >= 0.1
    with pytest.raises(VideoUnreachable):
        await supply.give(ranges((0, 10)))


def test_ranges_travel():
    parts = ranges((0, 1), (5, 2**40))
    assert messages.ranges_from_bytes(messages.ranges_to_bytes(parts)) == parts
    assert messages.ranges_from_bytes(b"") == []
    backwards = messages.ranges_to_bytes(parts[::-1])
    assert messages.ranges_from_bytes(backwards) == parts


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (b"12345", "not a multiple"),
        (bytes(8), "zip"),
        (bytes(16), "no bytes"),
        (bytes(16 * 70_000), "too many"),
    ],
)
def test_what_are_no_ranges_is_refused(payload, fault):
    with pytest.raises(ValueError, match=fault):
        messages.ranges_from_bytes(payload)


@pytest.mark.parametrize(
    "deed", ["ask for nothing", "ask behind the end", "ask too often", "ask for garbage"]
)
async def test_a_decoder_that_asks_for_what_it_may_not_is_a_broken_video(make_pool, origin, deed):
    file = RemoteFile(len(DATA), origin)
    file.write(0, deed.encode().ljust(32, b"\0"))
    with pytest.raises(InvalidVideo) as caught:
        async with make_pool().open(file) as video:
            await video.probe()
    assert caught.value.code == "video_decode_failed"
    assert file.held_bytes <= 100


async def test_a_decoder_of_a_whole_file_may_ask_for_nothing(make_pool):
    file = MemoryFile.of(b"ask too often".ljust(32, b"\0"))
    with pytest.raises(InvalidVideo) as caught:
        async with make_pool().open(file) as video:
            await video.probe()
    assert caught.value.code == "video_decode_failed"


async def test_a_decoder_may_not_ask_for_more_than_the_limit(make_pool, origin):
    origin.max_bytes = 100
    file = RemoteFile(len(DATA), origin)
    file.write(0, b"ask for all".ljust(32, b"\0"))
    with pytest.raises(RequestTooLarge):
        async with make_pool().open(file) as video:
            await video.probe()
    assert origin.reads == []


async def test_damaged_tables_are_videos_or_known_faults(make_pool):
    data = ClipRecipe(num_frames=100, options={"g": "10", "bf": "2"}).encode()
    table = data.index(b"moov")
    pool, dice = make_pool(decode_timeout_seconds=20), random.Random(1)
    outcomes = Counter()
    for _ in range(100):
        mutated = bytearray(data)
        for _ in range(dice.randint(1, 4)):
            mutated[dice.randrange(table, len(data))] = dice.randrange(256)
        origin = Memory(bytes(mutated))
        file = RemoteFile(len(data), origin)
        if not await read_table(file):
            outcomes["no table"] += 1
            continue
        try:
            async with pool.open(file) as video:
                facts = await video.probe()
                plan = FramePlan((0, facts.num_frames // 2), 160, 96)
                assert (await video.decode(plan)).shape == (2, 96, 160, 3)
                outcomes["frames"] += 1
        except InvalidVideo as error:
            outcomes[error.code] += 1
    assert outcomes["frames"] > 30
    assert outcomes.total() == 100
    assert set(outcomes) <= {"frames", "no table", *VIDEO_FAULTS}
    assert len(outcomes) >= 3
