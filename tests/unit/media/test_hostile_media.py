"""Files made to break decoders. Whatever they are, the answer is a clip or a named fault."""

import subprocess
import sys
from pathlib import Path

import pytest

from server.errors import InvalidVideo
from server.media.clip import FramePlan
from server.media.faults import VIDEO_FAULTS
from server.media.memoryfile import MemoryFile
from tests.unit.processes import gone

GENERATOR = Path(__file__).parents[4] / "shared" / "tools" / "hostile_media.py"
OUTCOMES = {
    "audio_only.mp4": "no_video_stream",
    "dash.mpd": "invalid_video",
    "doubled.mp4": 30,
    "empty.mp4": "invalid_video",
    "ffconcat.mp4": "unsupported_container",
    "ffconcat_abs.mp4": "unsupported_container",
    "fs_cut4.mp4": "no_frames",
    "fs_cut60.mp4": "video_decode_failed",
    "fs_cut8.mp4": "video_decode_failed",
    "ftyp_only.mp4": "invalid_video",
    "gif64k.gif": "video_resolution_too_large",
    "gray.mkv": 10,
    "hls_file.m3u8": "invalid_video",
    "hls_ok.m3u8": "invalid_video",
    "hls_ssrf.m3u8": "invalid_video",
    "html.mp4": "invalid_video",
    "huffyuv.avi": "unsupported_codec",
    "lie_fps.mp4": 30,
    "lie_frames.mp4": 30,
    "lie_stsz.mp4": "no_frames",
    "long64.mp4": 6000,
    "mkvdur_1e15.mkv": 30,
    "mkvdur_inf.mkv": 30,
    "mkvdur_nan.mkv": 30,
    "mkvdur_neg.mkv": 30,
    "moov_only.mp4": "no_frames",
    "no_streams.mp4": "no_video_stream",
    "noise.mp4": 60,
    "ok.mkv": 30,
    "ok.mp4": 30,
    "ok.ts": 30,
    "ok_faststart.mp4": 30,
    "ok_frag.mp4": 30,
    "one_frame.mp4": 1,
    "polyglot.mp4": 30,
    "reschg.ts": 20,
    "rtp.sdp": "unsupported_container",
    "streams200.mkv": 1,
    "ten_bit444.mp4": 10,
    "text.mp4": "invalid_video",
    "thin.mp4": 5,
    "timescale0.mp4": 1,
    "trunc10.mp4": "invalid_video",
    "trunc50.mp4": "invalid_video",
    "trunc90.mp4": "invalid_video",
    "trunc99.mp4": "invalid_video",
    "two_px.mp4": 5,
    "x4k.mp4": 4,
    "zero_delta.mp4": 30,
    "zeros.mp4": "invalid_video",
}
"""Number of frames, or the fault."""
OF_EITHER_KIND = {"fs_406.mp4", "fs_cut1000.mp4", "ts_half.ts", *(f"flip{n}.mp4" for n in range(8))}
"""Where the damage hits depends on the bytes that the encoder writes on this machine."""
SECONDS = {"ok.mp4": 1.0, "mkvdur_1e15.mkv": 1.0, "lie_frames.mp4": 1.0, "long64.mp4": 200.0}

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not GENERATOR.exists(), reason=f"no generator at {GENERATOR}"),
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    subprocess.run([sys.executable, str(GENERATOR), str(folder)], check=True)
    return sorted(folder.iterdir())


async def test_every_hostile_file_is_a_clip_or_a_named_fault(hostile, make_pool):
    pool = make_pool(decode_timeout_seconds=10)
    outcomes = {path.name: await _outcome(pool, path.read_bytes()) for path in hostile}
    kinds = {name: kind for name, (kind, _) in outcomes.items()}
    assert set(kinds) == set(OUTCOMES) | OF_EITHER_KIND
    assert {name: kinds[name] for name in OUTCOMES} == OUTCOMES
    for name in OF_EITHER_KIND:
        assert isinstance(kinds[name], int) or kinds[name] in VIDEO_FAULTS
        assert kinds[name] != "video_too_complex"
    seconds = {name: outcomes[name][1] for name in SECONDS}
    assert seconds == pytest.approx(SECONDS, abs=0.01)


async def test_hostile_files_leave_nothing_behind(hostile, make_pool, fork_host):
    pool = make_pool(decode_timeout_seconds=10)
    broken = [path for path in hostile if path.name in OF_EITHER_KIND]
    for path in broken:
        await _outcome(pool, path.read_bytes())
    await gone(fork_host)


async def _outcome(pool, source):
    """Returns the number of frames and seconds, or the fault and 0."""
    try:
        async with pool.open(MemoryFile.of(source)) as video:
            facts = await video.probe()
            last = facts.num_frames - 1
            plan = FramePlan(tuple(sorted({0, last // 2, last})), 112, 84)
            frames = (await video.decode(plan)).view()
    except InvalidVideo as error:
        return error.code, 0
    assert frames.shape == (plan.num_frames, 84, 112, 3)
    assert facts.duration_seconds > 0
    return facts.num_frames, facts.duration_seconds
