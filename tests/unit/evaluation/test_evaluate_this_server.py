"""``eval`` on this application with real decoders: cold clips decode, metrics are understood."""

import asyncio
import json

import pytest

from server.cli import main
from tests.clips.counter import ClipRecipe
from tests.unit.evaluation.conftest import item
from tests.unit.scripted import service

pytestmark = pytest.mark.anyio


@pytest.fixture
def flags(write_set, tmp_path):
    """A set of two questions about one clip and a question that is refused, as flags."""
    lines = [
        item(1, video="clip.mp4", question="answer", answers=["aa"]),
        item(2, video="clip.mp4", question="answer", answers=["b"], kind="odd"),
        item(3, video="clip.mp4", question="refuse", kind="refused"),
    ]
    path = write_set(*lines)
    (tmp_path / "clip.mp4").write_bytes(ClipRecipe(num_frames=30).encode())
    return ["--set", str(path), "--out", str(tmp_path), "--rates", "0", "0.5"]


async def evaluated(flags, tmp_path, host):
    async with service(host) as server:
        common = ["eval", "--base-url", f"{server.url}/v1"]
        assert await asyncio.to_thread(main, [*common, *flags]) == 0
        counts = {
            outcome: server.sample("videochat_cache_lookups_total", cache="clips", outcome=outcome)
            for outcome in ("hit", "shared", "miss")
        }
        seen = set(server.engine.seen)
    return json.loads((tmp_path / "evaluation.json").read_text()), counts, seen


async def test_cold_clips_are_decoded_each_time_and_look_the_same(flags, fork_host, tmp_path):
    report, lookups, seen = await evaluated(flags, tmp_path, fork_host)

    # Three probes of the rates, and three questions at two rates.
    assert lookups == {"hit": 0, "shared": 0, "miss": 9}
    assert len(seen) == 1
    assert report["is_measured_by_server"] is True
    for rate in report["rates"]:
        assert rate["accuracy"]["odd"] == {**rate["accuracy"]["odd"], "right": 1, "asked": 2}
        assert rate["accuracy"]["refused"]["asked"] == 0
        assert (rate["num_errors"], rate["num_cold"]) == (1, 2)
        stages = rate["stages_ms"]
        assert list(stages) == ["receive", "fetch", "decode", "preprocess", "queue", "prefill"]
        whole = rate["time_to_first_token_ms"]["mean"]
        assert sum(stage["mean"] for stage in stages.values()) == pytest.approx(whole, abs=0.01)
        assert stages["decode"]["median"] > 0


async def test_warm_clips_are_decoded_once(flags, fork_host, tmp_path):
    report, lookups, _ = await evaluated([*flags, "--no-cold"], tmp_path, fork_host)

    assert lookups == {"hit": 8, "shared": 0, "miss": 1}
    assert [rate["num_cold"] for rate in report["rates"]] == [0, 0]
    assert "a mixture that depends on the caches" in (tmp_path / "evaluation.md").read_text()
