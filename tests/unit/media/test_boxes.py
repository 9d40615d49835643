"""Where the table of an MP4 file is found, and where no table is taken for one."""

import struct

import pytest

from server.media.boxes import Box, kinds_in
from server.media.byteranges import ByteRange
from server.media.packettable import may_have_table, read_table
from server.media.remotefile import RemoteFile
from tests.clips.counter import ClipRecipe


def box(kind, content=b"", *, size=None):
    return struct.pack(">I4s", len(content) + 8 if size is None else size, kind) + content


def large_box(kind, content):
    return struct.pack(">I4sQ", 1, kind, len(content) + 16) + content


class Memory:
    """An origin that has the file at hand."""

    timeout_seconds = 5.0

    def __init__(self, data, *, max_bytes=10**9):
        self.data = data
        self.max_bytes = max_bytes
        self.reads = []

    async def read(self, ranges, write):
        for part in ranges:
            self.reads.append(part)
            write(part.start, self.data[part.start : part.end])


async def has_table(data, **limits):
    origin = Memory(data, **limits)
    return await read_table(RemoteFile(len(data), origin)), origin.reads


def test_a_box_tells_where_it_ends():
    assert Box.parse(box(b"free", b"abc"), 5, end_of_parent=16) == Box(b"free", 5, 13, 16)
    assert Box.parse(large_box(b"mdat", b"abc"), 0, end_of_parent=19) == Box(b"mdat", 0, 16, 19)
    assert Box.parse(box(b"mdat", size=0), 4, end_of_parent=50) == Box(b"mdat", 4, 12, 50)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\0\0\0\x08fre",
        box(b"free", size=7),
        box(b"free", size=1),
        box(b"free", size=51),
        struct.pack(">I4sQ", 1, b"mdat", 15),
        struct.pack(">I4sQ", 1, b"mdat", 2**64 - 1),
    ],
)
def test_a_box_that_can_not_be_is_none(header):
    assert Box.parse(header, 0, end_of_parent=50) is None


def test_the_kinds_in_a_box_end_where_it_is_damaged():
    content = box(b"mvhd", b"123") + box(b"trak") + box(b"mvex", size=3) + box(b"udta")
    assert list(kinds_in(content)) == [b"mvhd", b"trak"]


@pytest.mark.anyio
async def test_tables_are_found_wherever_they_are():
    moov = box(b"moov", box(b"mvhd", bytes(100)))
    start = box(b"ftyp", b"isom")
    payload = bytes(1_000_000)
    assert (await has_table(start + moov + box(b"mdat", payload)))[0]
    assert (await has_table(start + box(b"mdat", payload) + moov))[0]
    assert (await has_table(large_box(b"mdat", payload) + moov))[0]
    assert (await has_table(start + box(b"free") * 10 + box(b"mdat", payload) + moov))[0]
    found, reads = await has_table(start + box(b"mdat", payload) + moov)
    assert found
    assert sum(part.num_bytes for part in reads) < 300_000


@pytest.mark.anyio
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello, this is no video at all",
        box(b"ftyp", b"isom"),
        box(b"ftyp", b"isom") + box(b"mdat", size=0) + bytes(1000),
        box(b"ftyp", b"isom") + box(b"mdat", size=2**31) + bytes(1000),
        box(b"ftyp", b"isom") + box(b"moov", box(b"mvhd") + box(b"mvex")),
        box(b"ftyp", b"isom") + box(b"moof") + box(b"moov", box(b"mvhd")),
        box(b"ftyp", b"isom") + box(b"moov"),
        box(b"ftyp", b"isom") + box(b"free") * 10_000 + box(b"moov", box(b"mvhd")),
        box(b"junk", b"isom") + box(b"moov", box(b"mvhd")),
    ],
    ids=range(10),
)
async def test_there_is_no_table(data):
    if data:
        found, reads = await has_table(data)
        assert not found
        assert len(reads) <= 16


def test_other_files_are_known_by_their_first_bytes():
    assert may_have_table(box(b"ftyp", b"isom"))
    assert not may_have_table(b"hello, world")
    assert not may_have_table(b"")


@pytest.mark.anyio
async def test_a_table_larger_than_may_be_read_is_not_read():
    data = box(b"ftyp", b"isom") + box(b"moov", box(b"mvhd", bytes(2_000_000)))
    found, reads = await has_table(data, max_bytes=1_000_000)
    assert not found
    assert reads == [ByteRange(0, 1 << 18)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("movflags", "is_found"),
    [("", True), ("frag_keyframe+empty_moov", False), ("frag_keyframe", False)],
)
async def test_files_of_a_muxer(movflags, is_found):
    recipe = ClipRecipe(num_frames=30, container_options={"movflags": movflags} if movflags else {})
    assert (await has_table(recipe.encode()))[0] is is_found
