import pytest

from server.media.bitstreams import NalFormat, is_animated_webp, is_hidden_picture

SHOWN_VP8, HIDDEN_VP8 = bytes([0x10]), bytes([0x00])
SHOWN_VP9, HIDDEN_VP9, REPEATED_VP9 = bytes([0x86]), bytes([0x84]), bytes([0x88])
SHOWN_VP9_PROFILE_3, HIDDEN_VP9_PROFILE_3 = bytes([0xB1]), bytes([0xB0])
GIF_HEADER = b"GIF89a\4\0\4\0\x80\0\0" + bytes(6)
GIF_COMMENT, GIF_IMAGE = b"\x21\xfe\x02hi\0", b"\x2c" + bytes(12)
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
        ("gif", GIF_HEADER + GIF_IMAGE, False),
        ("gif", GIF_HEADER + GIF_COMMENT + GIF_IMAGE, False),
        ("gif", GIF_COMMENT + GIF_IMAGE, False),
        ("gif", GIF_COMMENT + b";", True),
        ("gif", GIF_COMMENT, True),
        ("gif", b";", True),
        ("gif", GIF_COMMENT[:4], False),
    ],
)
def test_hidden_pictures_are_told_from_shown_ones(codec, packet, is_hidden):
    assert is_hidden_picture(codec, memoryview(packet)) is is_hidden


def test_a_moving_webp_is_told_from_a_still_one():
    header = b"RIFF\x10\0\0\0WEBPVP8X\x0a\0\0\0"
    assert is_animated_webp(memoryview(header + b"\x12" + bytes(9)))
    assert not is_animated_webp(memoryview(header + b"\x10" + bytes(9)))
    assert not is_animated_webp(memoryview(b"RIFF\x10\0\0\0WEBPVP8L" + bytes([2] * 20)))
    assert not is_animated_webp(memoryview(header))


START = b"\0\0\1"
H264_IDR, H264_P, H264_B, H264_SEI, H264_PPS = (bytes([b, 0x88]) for b in (0x65, 0x41, 1, 6, 0x68))
HEVC_IDR, HEVC_N, HEVC_R = bytes([19 << 1, 1]), bytes([0, 1]), bytes([1 << 1, 1])
HEVC_N_LAYER_1, HEVC_N_OTHER_VIEW = bytes([0, 2]), bytes([0, 9])
HEVC_SEI, HEVC_VPS = bytes([39 << 1, 1]), bytes([32 << 1, 1])


def annex_b(*units):
    return memoryview(b"".join(START + unit + b"\x80" for unit in units))


def avcc(*units, length_bytes=4):
    return memoryview(
        b"".join((len(unit) + 1).to_bytes(length_bytes, "big") + unit + b"\x80" for unit in units)
    )


@pytest.mark.parametrize("length_bytes", [1, 2, 4])
def test_lengths_before_units_have_the_size_that_the_header_says(length_bytes):
    avc_header = bytes([1, 100, 0, 30, 0xFC | length_bytes - 1, 0xE1])
    hevc_header = bytes([1, *bytes(20), 0x0C | length_bytes - 1, 0])
    assert NalFormat.of("h264", avc_header) == NalFormat(False, length_bytes)
    assert NalFormat.of("hevc", hevc_header) == NalFormat(True, length_bytes)


def test_without_such_a_header_units_follow_start_codes():
    assert NalFormat.of("h264", b"") == NalFormat(False, 0)
    assert NalFormat.of("hevc", START + b"\x40\1") == NalFormat(True, 0)
    assert NalFormat.of("h264", b"\1\2") == NalFormat(False, 0)


@pytest.mark.parametrize("codec", ["vp9", "vvc", "libdav1d", "mpeg4"])
def test_other_codecs_have_no_such_units(codec):
    assert NalFormat.of(codec, b"\1" * 30) is None


@pytest.mark.parametrize("length_bytes", [0, 1, 4])
@pytest.mark.parametrize(
    ("units", "is_unreferenced"),
    [
        ([H264_IDR], False),
        ([H264_P], False),
        ([H264_B], True),
        ([H264_SEI, H264_B, H264_B], True),
        ([H264_B, H264_P], False),
        ([H264_PPS, H264_B], False),
        ([H264_SEI], False),
        ([], False),
    ],
)
def test_an_h264_picture_of_reference_value_0_is_unreferenced(units, is_unreferenced, length_bytes):
    nal_format = NalFormat(False, length_bytes)
    packet = avcc(*units, length_bytes=length_bytes) if length_bytes else annex_b(*units)
    assert nal_format.is_unreferenced(packet) is is_unreferenced


@pytest.mark.parametrize(
    ("packets", "unreferenced"),
    [
        ([[HEVC_IDR], [HEVC_R], [HEVC_N]], [False, False, True]),
        ([[HEVC_SEI, HEVC_N], [HEVC_VPS, HEVC_N]], [True, False]),
        ([[HEVC_N], [HEVC_N_LAYER_1]], [False, True]),
        ([[HEVC_N, HEVC_N_OTHER_VIEW]], [False]),
        ([[HEVC_SEI]], [False]),
    ],
)
def test_an_hevc_non_reference_picture_of_the_highest_layer_is_unreferenced(packets, unreferenced):
    for nal_format, build in ((NalFormat(True, 0), annex_b), (NalFormat(True, 4), avcc)):
        built = [build(*units) for units in packets]
        highest_layer = max(map(nal_format.temporal_layer, built))
        assert [
            nal_format.is_unreferenced(packet, highest_layer=highest_layer) for packet in built
        ] == unreferenced


@pytest.mark.parametrize("damage", [b"\0", b"\0\0\0\x09\1", b"\xff\xff\xff\xff\1\1", b"\0\0\0\0"])
def test_a_packet_that_is_not_sound_is_taken_for_referenced(damage):
    packet = memoryview(bytes(avcc(H264_B)) + damage)
    assert not NalFormat(False, 4).is_unreferenced(packet)
    assert NalFormat(True, 4).temporal_layer(packet) == 0
