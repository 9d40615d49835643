"""Files that others recorded, each through a decoder process. See ``shared/videos/INDEX.tsv``."""

import csv
from pathlib import Path

import numpy as np
import pytest

from server.errors import InvalidVideo
from server.media.clip import FramePlan

INDEX = Path(__file__).parents[4] / "shared" / "videos" / "INDEX.tsv"
LINES = INDEX.read_text().splitlines() if INDEX.exists() else []
ROWS = list(csv.DictReader(LINES, delimiter="\t"))

REFUSED = {
    "apng_slide_4s_2f.png": ("unsupported_container", "PNG is a picture format"),
    "audio_flac_png_cover.flac": ("unsupported_container", "music with a cover"),
    "webp_16000x9000_still.webp": ("video_decode_failed", "a picture beyond the limit"),
    "audio_only_aac.mp4": ("no_video_stream", "sound only"),
    "zero_streams_262B.mp4": ("no_video_stream", "no stream at all"),
    "av1_dovi_no_decoder.mp4": ("unsupported_codec", "FFmpeg has no decoder for dav1"),
    "enc_cenc_short.mp4": ("video_decode_failed", "encrypted"),
    "gif_bomb_dims.gif": ("video_decode_failed", "a huge screen and no picture"),
    "gif_zero_frames_14B.gif": ("no_frames", "header only"),
    "zero_init_segment.mp4": ("no_frames", "header only"),
    "err_malformed_free_box.mp4": ("invalid_video", "damaged header"),
    "err_trunc_212B.flv": ("invalid_video", "cut in the header"),
}
COUNTED_OTHERWISE = {
    "avif_anim_alpha_4streams.avif": (48, "the index counts its first stream, an alpha still"),
    "bad_one_nalu.mp4": (30, "one packet does not decode; the frame before it is held"),
    "rot_garbage_matrix_corrupt.mp4": (182, "12 packets do not decode"),
    "scr_cli_wide_1008x256.gif": (111, "its last packet is metadata"),
    "h264_long_6min_1080p.mp4": (10883, "the index stopped counting at 2001"),
}
SIDEWAYS = {"-90": 270, "90": 90, "-180": 180, "0": 0, "": 0}

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not ROWS, reason=f"no recorded videos at {INDEX.parent}"),
]


def test_every_recorded_video_is_in_one_list_or_decodes():
    undecodable = {row["name"] for row in ROWS if row["decoded"] in ("-", "0")}
    assert undecodable <= set(REFUSED)


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r["name"] not in REFUSED], ids=lambda r: r["name"]
)
async def test_a_recorded_video_decodes(row, make_pool):
    name = row["name"]
    expected, _ = COUNTED_OTHERWISE.get(name) or (int(row["decoded"]), "")
    async with make_pool().open((INDEX.parent / name).read_bytes()) as video:
        facts = await video.probe()
        assert facts.num_frames == expected
        width, height = (int(side) for side in row["WxH"].split("x"))
        rotation = SIDEWAYS.get(row["rotation"], 0)
        assert facts.rotation_degrees == rotation
        assert (facts.width, facts.height) == (
            (height, width) if rotation % 180 else (width, height)
        )
        count = min(expected, 4)
        chosen = tuple(index * expected // count // 4 for index in range(count))
        frames = await video.decode(FramePlan(chosen, 112, 84))
    assert frames.shape == (count, 84, 112, 3)
    assert facts.frame_times_seconds[0] == 0
    assert list(facts.frame_times_seconds) == sorted(facts.frame_times_seconds)
    assert facts.duration_seconds > facts.frame_times_seconds[-1]


@pytest.mark.parametrize("name", REFUSED)
async def test_a_recorded_file_that_is_no_usable_video_is_refused(name, make_pool):
    code, _ = REFUSED[name]
    with pytest.raises(InvalidVideo) as caught:
        async with make_pool().open((INDEX.parent / name).read_bytes()) as video:
            await video.probe()
    assert caught.value.code == code


async def test_times_follow_a_recorded_variable_rate(make_pool):
    async with make_pool().open((INDEX.parent / "scr_editor_cursed_vfr.mp4").read_bytes()) as video:
        facts = await video.probe()
    gaps = np.diff(facts.frame_times_seconds)
    assert gaps.min() == pytest.approx(0.0053, abs=2e-4)
    assert gaps.max() == pytest.approx(1.57, abs=0.01)
    assert facts.duration_seconds == pytest.approx(8.726, abs=0.01)
