"""Colours come out as a player shows them."""

import numpy as np
import pytest

from tests.clips.decoded import decoded_frames, probed, reference_frames
from tests.clips.flat import coded, flat_clip

BT709, BT470BG, SMPTE170M, SMPTE240M, BT2020, UNTAGGED = 1, 5, 6, 7, 9, 2
LUMA = {
    BT709: (0.2126, 0.0722),
    BT470BG: (0.299, 0.114),
    SMPTE170M: (0.299, 0.114),
    SMPTE240M: (0.212, 0.087),
    BT2020: (0.2627, 0.0593),
    UNTAGGED: (0.299, 0.114),
}
PQ, HLG, BT2020_TRANSFER = 16, 18, 14
P3_PRIMARIES = 12
ORANGE = (200, 60, 30)


def shown(source, size=(64, 48)):
    """Returns the colour in the middle of the second frame."""
    (frame,) = decoded_frames(source, frame_indices=[1], size=size)
    return frame[size[1] // 2, size[0] // 2].astype(int)


def pq(nits):
    power = (nits / 10_000) ** 0.1593017578125
    return ((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375


def hdr_clip(signal, *, transfer=PQ, matrix=BT2020, primaries=BT2020, size=(64, 48)):
    codes = coded(signal, luma=LUMA[BT2020], is_full_range=False, bits=10)
    return flat_clip(
        codes,
        pix_fmt="yuv420p10le",
        matrix=matrix,
        color_range=1,
        transfer=transfer,
        primaries=primaries,
        size=size,
    )


@pytest.mark.parametrize(("pix_fmt", "bits"), [("yuv420p", 8), ("yuv444p", 8), ("yuv420p10le", 10)])
@pytest.mark.parametrize("is_full_range", [False, True])
@pytest.mark.parametrize("matrix", LUMA)
def test_matrix_and_range_are_honoured(matrix, is_full_range, pix_fmt, bits):
    codes = coded(
        [value / 255 for value in ORANGE],
        luma=LUMA[matrix],
        is_full_range=is_full_range,
        bits=bits,
    )
    source = flat_clip(codes, pix_fmt=pix_fmt, matrix=matrix, color_range=2 if is_full_range else 1)
    assert np.abs(shown(source) - ORANGE).max() <= 2
    np.testing.assert_array_equal(
        decoded_frames(source, frame_indices=[1], size=(64, 48))[0], reference_frames(source)[1]
    )


@pytest.mark.parametrize(
    ("codec", "container", "pix_fmt", "bits"),
    [
        ("libx264", "mp4", "yuv420p10le", 10),
        ("libx265", "mp4", "yuv422p12le", 12),
        ("libsvtav1", "mp4", "yuv420p10le", 10),
        ("ffv1", "matroska", "yuv444p16le", 16),
        ("prores_ks", "mov", "yuv422p10le", 10),
    ],
)
def test_high_bit_depths_decode(codec, container, pix_fmt, bits):
    codes = coded([v / 255 for v in ORANGE], luma=LUMA[BT709], is_full_range=False, bits=bits)
    options = {
        # With B-frames, x265 leaves decoding times of clips of two frames unset: mp4 refuses some.
        "libx265": {"x265-params": "log-level=none:bframes=0"},
        "libsvtav1": {"preset": "12"},
    }
    source = flat_clip(
        codes,
        pix_fmt=pix_fmt,
        codec=codec,
        container=container,
        matrix=BT709,
        color_range=1,
        size=(64, 64),
        options=options.get(codec),
    )
    assert np.abs(shown(source, (64, 64)) - ORANGE).max() <= 4


@pytest.mark.parametrize("matrix", [3, 8, 14])
def test_a_matrix_that_ffmpeg_can_not_apply_is_taken_for_none(matrix):
    codes = coded([v / 255 for v in ORANGE], luma=LUMA[UNTAGGED], is_full_range=False)
    source = flat_clip(codes, pix_fmt="yuv444p", matrix=matrix, color_range=1)
    assert np.abs(shown(source) - ORANGE).max() <= 2


# What swscale of FFmpeg 8.1 makes of the same patches; there it takes seconds per frame.
@pytest.mark.parametrize(
    ("nits", "grey"), [(0, 0), (1, 28), (5, 54), (10, 73), (50, 142), (100, 189)]
)
def test_pq_mid_tones_are_as_bright_as_in_sdr(nits, grey):
    assert np.abs(shown(hdr_clip([pq(nits)] * 3)) - grey).max() <= 3


def test_pq_highlights_are_pressed_together_not_cut():
    greys = [shown(hdr_clip([pq(nits)] * 3))[1] for nits in (100, 203, 300, 400, 1000, 4000)]
    assert 225 < greys[1] < 240
    assert greys[:4] == sorted(set(greys[:4]))
    assert greys[-2:] == [255, 255]


def test_hdr_colours_are_not_washed_out():
    # The red of BT.709 at 100 cd/m2, in the primaries of BT.2020.
    red = [pq(100 * part) for part in (0.6274, 0.0691, 0.0164)]
    untreated = reference_frames(hdr_clip(red))[1][24, 32]
    assert np.ptp(untreated.astype(int)) < 100
    shown_red, green, blue = shown(hdr_clip(red))
    assert shown_red > 180
    assert max(green, blue) < 30


@pytest.mark.parametrize(("signal", "grey"), [(0.0, 0), (0.5, 143), (0.75, 230), (1.0, 255)])
def test_hlg_is_toned_down_too(signal, grey):
    assert np.abs(shown(hdr_clip([signal] * 3, transfer=HLG)) - grey).max() <= 3


def test_hdr_without_further_tags_is_taken_for_bt2020():
    signal = [pq(100), pq(40), pq(20)]
    tagged = shown(hdr_clip(signal))
    untagged = shown(hdr_clip(signal, matrix=UNTAGGED, primaries=UNTAGGED))
    np.testing.assert_array_equal(tagged, untagged)


def test_hdr_is_resized_like_any_other():
    source = hdr_clip([pq(100)] * 3, size=(320, 240))
    assert np.abs(shown(source, (112, 84)) - shown(source, (320, 240))).max() <= 1


@pytest.mark.parametrize(
    ("primaries", "green_of_bt709"), [(BT2020, (0.6076, 0.9643, 0.3745)), (P3_PRIMARIES, None)]
)
def test_wide_gamuts_are_brought_to_bt709(primaries, green_of_bt709):
    grey = coded([0.5] * 3, luma=LUMA[BT709], is_full_range=False, bits=10)
    tags = {"pix_fmt": "yuv444p10le", "matrix": BT709, "color_range": 1, "primaries": primaries}
    assert np.abs(shown(flat_clip(grey, **tags)) - 128).max() <= 2
    if green_of_bt709 is not None:
        codes = coded(green_of_bt709, luma=LUMA[BT709], is_full_range=False, bits=10)
        red, green, blue = shown(flat_clip(codes, **tags))
        assert green > 250
        assert max(red, blue) < 40


def test_a_chosen_codec_does_not_lose_the_tags_of_the_container():
    codes = coded([v / 255 for v in ORANGE], luma=LUMA[BT709], is_full_range=True)
    source = flat_clip(
        codes, pix_fmt="yuv420p", codec="mpeg4", container="matroska", matrix=BT709, color_range=2
    )
    assert np.abs(shown(source) - ORANGE).max() <= 4


@pytest.mark.parametrize(
    ("codec", "container", "pix_fmt"),
    [
        ("ffv1", "matroska", "yuva420p"),
        ("ffv1", "matroska", "yuva444p10le"),
        ("prores_ks", "mov", "yuva444p10le"),
        ("libvpx-vp9", "webm", "yuva420p"),
        ("libvpx", "webm", "yuva420p"),
    ],
)
@pytest.mark.parametrize("opacity", [0.0, 0.5, 1.0])
def test_transparent_pictures_are_shown_on_white(codec, container, pix_fmt, opacity):
    bits = 10 if "10" in pix_fmt else 8
    colour = coded([v / 255 for v in ORANGE], luma=LUMA[BT709], is_full_range=False, bits=bits)
    source = flat_clip(
        (*colour, round(opacity * ((1 << bits) - 1))),
        pix_fmt=pix_fmt,
        codec=codec,
        container=container,
        matrix=BT709,
        color_range=1,
        options={"auto-alt-ref": "0"} if "vpx" in codec else None,
        metadata={"alpha_mode": "1"} if "vpx" in codec else None,
    )
    assert probed(source).codec in ("ffv1", "prores", "vp8", "vp9")
    on_white = [opacity * value + (1 - opacity) * 255 for value in ORANGE]
    # VP8 knows no other matrix than BT.601.
    assert np.abs(shown(source) - on_white).max() <= (20 if codec == "libvpx" else 5)
