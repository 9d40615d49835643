"""MP4 files whose headers are far larger than their pictures (security.md, A43)."""

import struct

import pytest

from server.errors import InvalidVideo
from server.media.clip import FramePlan
from server.media.faults import VIDEO_FAULTS
from server.media.memoryfile import MemoryFile
from tests.clips.counter import ClipRecipe, counters

pytestmark = pytest.mark.anyio

NUM_FRAMES = 30
HEAD = struct.Struct(">I4s")


def box(kind, content=b""):
    return HEAD.pack(len(content) + HEAD.size, kind) + content


def grown(source, path, extra):
    """Returns the file with more at the end of a box, which is in the last box of all."""
    grown_file, position, places = bytearray(source), 0, []
    for kind in path:
        while HEAD.unpack_from(grown_file, position)[1] != kind:
            position += HEAD.unpack_from(grown_file, position)[0]
        places.append(position)
        position += HEAD.size
    size, _ = HEAD.unpack_from(grown_file, places[-1])
    grown_file[places[-1] + size : places[-1] + size] = extra
    for place in places:
        size, kind = HEAD.unpack_from(grown_file, place)
        HEAD.pack_into(grown_file, place, size + len(extra), kind)
    return bytes(grown_file)


@pytest.fixture(scope="module")
def source():
    made = ClipRecipe(num_frames=NUM_FRAMES).encode()
    assert made.rfind(b"moov") > made.rfind(b"mdat")
    return made


def tags(source):
    tag = box(b"\xa9nam", struct.pack(">HH", 1000, 0) + bytes(1000))
    return grown(source, [b"moov"], box(b"udta", tag * 10_000))


def chapters(source):
    chapter = struct.pack(">QB", 0, 200) + b"x" * 200
    listed = box(b"chpl", struct.pack(">II", 1 << 24, 0) + b"\xff" + chapter * 255)
    return grown(source, [b"moov"], box(b"udta", listed))


def empty_boxes(source):
    return source + box(b"free") * 100_000


def edits(source):
    edit = struct.pack(">iiI", 1, 0, 1 << 16)
    listed = box(b"elst", struct.pack(">II", 0, 100_000) + edit * 100_000)
    without = source.replace(b"edts", b"free")
    return grown(without, [b"moov", b"trak"], box(b"edts", listed))


def tracks(source):
    return grown(source, [b"moov"], box(b"trak", box(b"mdia")) * 2000)


@pytest.mark.parametrize("bloat", [tags, chapters, empty_boxes])
async def test_what_is_beside_the_pictures_does_not_matter(make_pool, source, bloat):
    bloated = bloat(source)
    assert len(bloated) > len(source) + 50_000
    async with make_pool().open(MemoryFile.of(bloated)) as video:
        assert (await video.probe()).num_frames == NUM_FRAMES
        frames = (await video.decode(FramePlan((0, 17, 29), 160, 96))).view()
    assert counters(frames) == [0, 17, 29]


@pytest.mark.parametrize("bloat", [edits, tracks])
async def test_what_makes_too_much_of_the_pictures_is_a_named_fault(make_pool, source, bloat):
    with pytest.raises(InvalidVideo) as caught:
        async with make_pool().open(MemoryFile.of(bloat(source))) as video:
            await video.probe()
    assert caught.value.code in VIDEO_FAULTS
