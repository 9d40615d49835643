"""Rate 0 must equal an engine that was started without pruning, token for token."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from server.demo.clip import CLIP_PATH
from server.demo.model import ensure_model
from tests.clips.decoded import decoded_frames
from tests.e2e.conftest import text, user, video

MAX_TOKENS = 16
QUESTION = "what moves in the video"
PROMPT = "<|im_start|>user\n{videos}" + QUESTION + "<|im_end|>\n<|im_start|>assistant\n"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


@pytest.mark.parametrize("num_videos", [1, 2])
def test_rate_zero_equals_an_engine_without_pruning(server, clip_url, tmp_path, num_videos):
    answer = server.client().chat.completions.create(
        model="embedded",
        messages=[user(*[video(clip_url)] * num_videos, text(QUESTION))],
        max_tokens=MAX_TOKENS,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
        extra_body={"video_pruning_rate": 0},
    )
    seen = answer.metrics["videos"][0]
    reference = run_reference(tmp_path, num_videos, (seen["width"], seen["height"]))

    choice = answer.choices[0]
    assert reference["prompt_tokens"] == answer.usage.prompt_tokens
    assert reference["text"] == choice.message.content
    ours = [[top.logprob for top in step.top_logprobs] for step in choice.logprobs.content]
    theirs = [[logprob for _, logprob in step[:3]] for step in reference["steps"]]
    np.testing.assert_allclose(ours, theirs, atol=2e-3)


def run_reference(tmp_path, num_videos, size):
    """Plain vLLM in a process of its own, on the frames that our decoder gives."""
    clip = decoded_frames(CLIP_PATH.read_bytes(), frame_indices=range(0, 192, 12), size=size)
    path = tmp_path / "input.npz"
    np.savez(
        path,
        frames=clip,
        timestamps_seconds=np.arange(16) / 2,
        duration_seconds=8.0,
        prompt=PROMPT.format(videos=VIDEO * num_videos),
        num_videos=num_videos,
    )
    script = Path(__file__).with_name("unpruned_engine.py")
    done = subprocess.run(
        [sys.executable, str(script), str(ensure_model()), str(path), str(MAX_TOKENS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
