import pytest

from server.media.bitstreams import is_hidden_picture

SHOWN_VP8, HIDDEN_VP8 = bytes([0x10]), bytes([0x00])
SHOWN_VP9, HIDDEN_VP9, REPEATED_VP9 = bytes([0x86]), bytes([0x84]), bytes([0x88])
SHOWN_VP9_PROFILE_3, HIDDEN_VP9_PROFILE_3 = bytes([0xB1]), bytes([0xB0])
SUPERFRAME = bytes([0x84, 0, 0x86, 0xC1, 1, 1, 0xC1])


@pytest.mark.parametrize(
    ("codec", "packet", "is_hidden"),
    [
        ("vp8", SHOWN_VP8, False),
        ("vp8", HIDDEN_VP8, True),
        ("vp9", SHOWN_VP9, False),
        ("vp9", HIDDEN_VP9, True),
        ("vp9", REPEATED_VP9, False),
        ("vp9", SHOWN_VP9_PROFILE_3, False),
        ("vp9", HIDDEN_VP9_PROFILE_3, True),
        ("vp9", SUPERFRAME, False),
        ("h264", HIDDEN_VP8, False),
    ],
)
def test_hidden_pictures_are_told_from_shown_ones(codec, packet, is_hidden):
    assert is_hidden_picture(codec, memoryview(packet)) is is_hidden
