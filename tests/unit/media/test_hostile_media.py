"""Files made to break decoders. Whatever they are, the answer is a clip or a named fault."""

import subprocess
import sys
from pathlib import Path

import pytest

from server.errors import InvalidVideo
from server.media.clip import FramePlan
from server.media.faults import VIDEO_FAULTS

GENERATOR = Path(__file__).parents[4] / "shared" / "tools" / "hostile_media.py"
FAULTS = {
    "audio_only.mp4": "no_video_stream",
    "dash.mpd": "invalid_video",
    "empty.mp4": "invalid_video",
    "ffconcat.mp4": "unsupported_container",
    "ffconcat_abs.mp4": "unsupported_container",
    "hls_file.m3u8": "invalid_video",
    "hls_ok.m3u8": "invalid_video",
    "hls_ssrf.m3u8": "invalid_video",
    "huffyuv.avi": "unsupported_codec",
    "lie_stsz.mp4": "no_frames",
    "moov_only.mp4": "no_frames",
    "no_streams.mp4": "no_video_stream",
    "rtp.sdp": "unsupported_container",
    "text.mp4": "invalid_video",
    "zeros.mp4": "invalid_video",
}
FRAMES = {
    "doubled.mp4": 30,
    "lie_fps.mp4": 30,
    "lie_frames.mp4": 30,
    "long64.mp4": 6000,
    "mkvdur_nan.mkv": 30,
    "mkvdur_neg.mkv": 30,
    "ok.mp4": 30,
    "ok.ts": 30,
    "ok_frag.mp4": 30,
    "one_frame.mp4": 1,
    "polyglot.mp4": 30,
    "reschg.ts": 20,
    "ten_bit444.mp4": 10,
    "timescale0.mp4": 1,
    "two_px.mp4": 5,
    "x4k.mp4": 4,
    "zero_delta.mp4": 30,
}

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
    assert len(outcomes) > 50
    assert {name: outcomes[name] for name in FAULTS} == FAULTS
    assert {name: outcomes[name] for name in FRAMES} == FRAMES
    others = [outcome for outcome in outcomes.values() if isinstance(outcome, str)]
    assert set(others) <= set(VIDEO_FAULTS) - {"video_too_complex"}


async def _outcome(pool, source):
    """Returns the number of frames, or the fault."""
    try:
        async with pool.open(source) as video:
            facts = await video.probe()
            last = facts.num_frames - 1
            plan = FramePlan(tuple(sorted({0, last // 2, last})), 112, 84)
            frames = (await video.decode(plan)).frames
    except InvalidVideo as error:
        return error.code
    assert frames.shape == (plan.num_frames, 84, 112, 3)
    assert facts.duration_seconds > 0
    return facts.num_frames
