"""``eval`` on the whole application: real preprocessing, real token counts, a scripted engine."""

import asyncio
import json

import pytest

from server.cli import main
from server.demo.clip import CLIP_PATH

pytestmark = pytest.mark.anyio


async def test_tokens_and_stages_by_rate_are_the_servers(serve, tmp_path):
    (tmp_path / "shapes.mp4").write_bytes(CLIP_PATH.read_bytes())
    common = {"video": "shapes.mp4", "question": "what moves", "kind": "moves"}
    lines = [{"id": "1", "answers": ["a red circle"], **common}]
    lines += [{"id": "2", "answers": ["circle"], "match": {"type": "contains"}, **common}]
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--set", str(path), "--out", str(tmp_path), "--rates", "0", ".5", ".75"]

    async with serve() as service:
        base_url = f"{service.base_url}/v1"
        code = await asyncio.to_thread(main, ["eval", "--base-url", base_url, *flags])

    assert code == 0
    report = json.loads((tmp_path / "evaluation.json").read_text())
    assert report["notes"] == []
    assert [rate["accuracy"]["all"]["right"] for rate in report["rates"]] == [2, 2, 2]
    before = {rate["video_tokens_before"]["mean"] for rate in report["rates"]}
    assert len(before) == 1
    whole = before.pop()
    after = [rate["video_tokens"]["mean"] for rate in report["rates"]]
    assert after == [whole, whole / 2, whole / 4]
    prompts = [rate["prompt_tokens"]["mean"] for rate in report["rates"]]
    assert [prompts[0] - prompt for prompt in prompts] == [0, whole / 2, whole * 3 / 4]
    assert all(rate["stages_ms"]["decode"]["median"] > 0 for rate in report["rates"])
