"""Files that others recorded, each through a decoder process. See ``shared/videos/INDEX.tsv``."""

import csv
from pathlib import Path

import numpy as np
import pytest

from server.errors import InvalidVideo
from server.media.clip import FramePlan
from server.media.memoryfile import MemoryFile
from tests.clips.decoded import decoded_frames, probed, reference_frames

INDEX = Path(__file__).parents[4] / "shared" / "videos" / "INDEX.tsv"
LINES = INDEX.read_text().splitlines() if INDEX.exists() else []
ROWS = {row["name"]: row for row in csv.DictReader(LINES, delimiter="\t")}

REFUSED = {
    "audio_flac_png_cover.flac": ("unsupported_container", "music with a cover"),
    "webp_16000x9000_still.webp": ("video_resolution_too_large", "144 million pixels"),
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
# Number of frames, size as shown, counter-clockwise turn, time of the last frame, duration.
DECODED = {
    "act_drummer_portrait_36s.mp4": (1090, (204, 360), 0, 36.3000, 36.3010),
    "apng_slide_4s_2f.png": (2, (16, 16), 0, 4.0000, 5.0000),
    "av1_hdr10_pq_portrait.mp4": (127, (720, 1280), 0, 4.2042, 4.2376),
    "av1_long_gop.mkv": (125, (640, 360), 0, 4.9600, 5.0000),
    "avif_anim_alpha_4streams.avif": (48, (640, 480), 0, 1.8800, 1.9200),
    "bad_one_nalu.mp4": (30, (1080, 720), 0, 0.9676, 1.0010),
    "cam_person_139s_10fps.mp4": (1394, (768, 432), 0, 139.3000, 139.4000),
    "h264_firstpts_10s.mp4": (120, (1137, 640), 0, 3.9667, 4.0000),
    "h264_frag_multi_sidx_20s.mp4": (600, (1920, 1080), 0, 19.9667, 20.0000),
    "h264_gameplay_no_idr.ts": (15, (640, 360), 0, 0.4660, 0.4994),
    "h264_iibbibb_1fps_elst.mp4": (12, (704, 576), 0, 11.0000, 12.0000),
    "h264_long_6min_1080p.mp4": (10883, (1920, 1080), 0, 362.7333, 362.7667),
    "h264_mkv_avg1000fps.mkv": (30, (1080, 720), 0, 0.9670, 0.9680),
    "h264_pts_612fps.mp4": (30, (1080, 720), 0, 0.0480, 0.0500),
    "h264_raw_annexb_nopts.264": (61, (640, 352), 0, 2.4000, 2.4400),
    "hevc_10bit_200.mp4": (30, (200, 200), 0, 0.9667, 1.0000),
    "hevc_dovi_iphone_rot90.mov": (4, (720, 1280), 270, 0.1000, 0.1333),
    "hevc_two_top_streams_rot270.mp4": (53, (1080, 1440), 90, 1.7739, 1.7822),
    "mr_chrome52_gap.webm": (338, (640, 480), 0, 50.7500, 50.7830),
    "mr_firefox53.webm": (250, (640, 480), 0, 9.9670, 9.9680),
    "msmpeg4_vfr.asf": (153, (160, 120), 0, 27.1990, 27.2070),
    "num_london_60fps_full.mp4": (300, (320, 240), 0, 4.9833, 5.0000),
    "num_timecode_hevc_full.mp4": (300, (1920, 1080), 0, 9.9667, 10.0000),
    "rot180_h264_5s_emulator.mp4": (149, (1280, 720), 180, 4.9383, 4.9716),
    "rot90_4k60_portrait_phone.mp4": (18, (2160, 3840), 270, 0.2831, 0.2997),
    "rot90_movmatrix.mov": (3, (320, 568), 270, 0.0667, 0.1000),
    "rot_garbage_matrix_corrupt.mp4": (182, (320, 240), 0, 6.0092, 6.0424),
    "scr_cli_wide_1008x256.gif": (110, (1008, 256), 0, 10.9000, 11.0000),
    "scr_desktop_truncated.mp4": (6, (1920, 1080), 0, 0.4630, 0.5000),
    "scr_editor_cursed_vfr.mp4": (63, (3026, 1386), 0, 7.1555, 8.7255),
    "theora_480p.ogv": (167, (640, 480), 0, 5.5333, 5.5667),
    "video_1f_plus_cover.mp4": (1, (320, 240), 0, 0.0, 0.0400),
    "vp8_cover_jpeg.webm": (178, (640, 360), 0, 7.0800, 7.1200),
    "vp9_10bit.webm": (72, (426, 240), 0, 2.9610, 3.0020),
    "vp9_alpha_60fps.webm": (541, (1280, 720), 0, 9.0000, 9.0160),
    "vp9_odd_161x121.webm": (30, (161, 121), 0, 0.9680, 1.0010),
    "vvc_320x180.mp4": (120, (320, 180), 0, 4.9583, 5.0000),
}
UNLIKE_THE_INDEX = {
    "avif_anim_alpha_4streams.avif": "the index counts its first stream, an alpha still",
    "bad_one_nalu.mp4": "one packet does not decode; the frame before it is held",
    "rot_garbage_matrix_corrupt.mp4": "12 packets do not decode",
    "h264_long_6min_1080p.mp4": "the index stopped counting at 2001",
}
REPLACED = {"bad_one_nalu.mp4": 1, "rot_garbage_matrix_corrupt.mp4": 12}
# Of one keyframe or many, of open groups, an edit list, variable rates, a late start, no times.
COMPARED = [
    "act_drummer_portrait_36s.mp4",
    "h264_firstpts_10s.mp4",
    "h264_gameplay_no_idr.ts",
    "h264_iibbibb_1fps_elst.mp4",
    "h264_raw_annexb_nopts.264",
    "hevc_10bit_200.mp4",
    "mr_firefox53.webm",
    "msmpeg4_vfr.asf",
    "num_london_60fps_full.mp4",
    "theora_480p.ogv",
    "vp8_cover_jpeg.webm",
    "vp9_10bit.webm",
    "vvc_320x180.mp4",
]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not ROWS, reason=f"no recorded videos at {INDEX.parent}"),
]


def recorded(name):
    return (INDEX.parent / name).read_bytes()


async def test_every_recorded_file_has_its_outcome_here():
    assert set(ROWS) == set(DECODED) | set(REFUSED)
    assert not set(DECODED) & set(REFUSED)


@pytest.mark.parametrize("name", DECODED)
async def test_a_recorded_video_decodes(name, make_pool):
    num_frames, size, rotation, last_seconds, duration_seconds = DECODED[name]
    async with make_pool().open(MemoryFile.of(recorded(name))) as video:
        facts = await video.probe()
        assert (facts.num_frames, (facts.width, facts.height)) == (num_frames, size)
        assert facts.rotation_degrees == rotation
        times = facts.frame_times_seconds
        assert (times[0], list(times)) == (0, sorted(times))
        assert times[-1] == pytest.approx(last_seconds, abs=1e-4)
        assert facts.duration_seconds == pytest.approx(duration_seconds, abs=1e-4)
        chosen = tuple(sorted({n * num_frames // 4 for n in range(4)} | {num_frames - 1}))
        decoded = await video.decode(FramePlan(chosen, 112, 84))
    assert decoded.shape == (len(chosen), 84, 112, 3)
    assert decoded.num_replaced == 0


@pytest.mark.parametrize("name", sorted(set(DECODED) - set(UNLIKE_THE_INDEX)))
async def test_the_table_agrees_with_what_others_measured(name):
    row = ROWS[name]
    num_frames, _, _, last_seconds, _ = DECODED[name]
    assert num_frames == int(row["decoded"])
    if row["last_pts"] != "-" and name != "h264_raw_annexb_nopts.264":
        measured = float(row["last_pts"]) - float(row["first_pts"])
        assert last_seconds == pytest.approx(measured, abs=2e-3)


@pytest.mark.parametrize("name", REPLACED)
async def test_what_does_not_decode_is_counted(name, make_pool):
    num_frames = DECODED[name][0]
    async with make_pool().open(MemoryFile.of(recorded(name))) as video:
        await video.probe()
        decoded = await video.decode(FramePlan(tuple(range(num_frames)), 112, 84))
    assert decoded.num_replaced == REPLACED[name]


@pytest.mark.parametrize("name", COMPARED)
async def test_chosen_frames_equal_those_of_decoding_everything(name):
    source = recorded(name)
    reference = reference_frames(source)
    num_frames = len(reference)
    assert probed(source).num_frames == num_frames
    chosen = sorted({n * num_frames // 7 for n in range(7)} | {num_frames - 1})
    height, width = reference[0].shape[:2]
    frames = decoded_frames(source, frame_indices=chosen, size=(width, height))
    for frame, index in zip(frames, chosen, strict=True):
        np.testing.assert_array_equal(frame, reference[index])


@pytest.mark.parametrize("name", REFUSED)
async def test_a_recorded_file_that_is_no_usable_video_is_refused(name, make_pool):
    code, _ = REFUSED[name]
    with pytest.raises(InvalidVideo) as caught:
        async with make_pool().open(MemoryFile.of(recorded(name))) as video:
            await video.probe()
    assert caught.value.code == code


async def test_times_follow_a_recorded_variable_rate(make_pool):
    async with make_pool().open(MemoryFile.of(recorded("scr_editor_cursed_vfr.mp4"))) as video:
        facts = await video.probe()
    gaps = np.diff(facts.frame_times_seconds)
    assert gaps.min() == pytest.approx(0.0053, abs=2e-4)
    assert gaps.max() == pytest.approx(1.57, abs=0.01)
    assert facts.duration_seconds == pytest.approx(8.726, abs=0.01)


async def test_recorded_transparency_is_shown_on_white():
    source = recorded("vp9_alpha_60fps.webm")
    (frame,) = decoded_frames(source, frame_indices=[30], size=(1280, 720))
    assert (frame[:20, :20] == 255).all()


async def test_recorded_hdr_uses_the_whole_scale():
    source = recorded("av1_hdr10_pq_portrait.mp4")
    (shown,) = decoded_frames(source, frame_indices=[60], size=(720, 1280))
    as_coded = reference_frames(source)[60]
    assert np.percentile(as_coded, 99) < 185
    assert np.percentile(shown, 99) > 225
    assert np.percentile(shown, 1) < 60
