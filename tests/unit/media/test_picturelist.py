"""Pictures in one piece."""

import struct

import pytest

from server.media.picturelist import PictureList, pack_pictures, unpack_pictures

PICTURES = (b"one", b"", b"three" * 100)


def unpacked(data):
    found = unpack_pictures(memoryview(data))
    return found and ([bytes(picture) for picture in found.pictures], found.fps)


def test_what_was_packed_is_unpacked():
    packed = pack_pictures(PictureList(PICTURES, 0.1))
    assert unpacked(packed) == (list(PICTURES), 0.1)


def test_lists_that_differ_are_packed_differently():
    lists = [
        PictureList((b"ab", b"c"), 2.0),
        PictureList((b"a", b"bc"), 2.0),
        PictureList((b"abc",), 2.0),
        PictureList((b"ab", b"c"), 2.5),
    ]
    assert len({pack_pictures(pictures) for pictures in lists}) == len(lists)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\x18ftypmp42", b"RIFF"])
def test_other_files_are_no_list(data):
    assert unpacked(data) is None


def test_no_damage_goes_unnoticed_or_is_more_than_a_value_error():
    packed = pack_pictures(PictureList((b"one", b"two"), 2.0))
    mark = packed.index(struct.pack("<d", 2.0))
    for end in range(mark, len(packed)):
        with pytest.raises(ValueError, match=r"list|pictures"):
            unpacked(packed[:end])
    with pytest.raises(ValueError, match="as large as"):
        unpacked(packed + b"x")
    for fps in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="per second"):
            unpacked(packed[:mark] + struct.pack("<d", fps) + packed[mark + 8 :])
    huge = packed[: mark + 8] + struct.pack("<I", 2**32 - 1) + packed[mark + 12 :]
    with pytest.raises(ValueError, match="no end"):
        unpacked(huge)


def test_an_empty_list_is_none():
    with pytest.raises(ValueError, match="without pictures"):
        PictureList((), 2.0)
    packed = pack_pictures(PictureList((b"",), 2.0))
    with pytest.raises(ValueError, match="without pictures"):
        unpacked(packed[:-8] + bytes(4))
