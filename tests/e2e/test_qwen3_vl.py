"""A family with timestamps between grids and two pruning methods, over HTTP."""

import openai
import pytest

from tests.e2e.conftest import launch, stop, text, user, video, wait_until_ready
from tests.families import checkpoint


@pytest.fixture(scope="module")
def qwen3_vl():
    running = launch(options=["--model", str(checkpoint("qwen3_vl"))])
    try:
        wait_until_ready(running)
        yield running
    finally:
        stop(running)


def ask(server, *videos, **hints):
    client = server.client()
    return client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[user(*videos, text("what moves in the video"))],
        max_tokens=8,
        temperature=0,
        extra_body=hints,
    )


def test_each_method_keeps_its_own_tokens(qwen3_vl, clip_url):
    whole, evs, vidcom2 = (
        ask(qwen3_vl, video(clip_url), **hints)
        for hints in (
            {},
            {"video_pruning_rate": 0.75},
            {"video_pruning_rate": 0.75, "video_pruning_method": "vidcom2"},
        )
    )

    assert [answer.metrics["videos"][0]["tokens_after"] for answer in (whole, evs, vidcom2)] == [
        480,
        120,
        120,
    ]
    assert len({answer.choices[0].message.content for answer in (whole, evs, vidcom2)}) == 3
    # Every timestamp stays, so prompts differ by video tokens alone.
    assert whole.usage.prompt_tokens - evs.usage.prompt_tokens == 360
    assert evs.usage.prompt_tokens_details.video_tokens == 120


def test_two_videos_of_one_request_are_pruned_each_in_its_own_way(qwen3_vl, clip_url):
    answer = ask(
        qwen3_vl,
        video(clip_url, video_pruning_rate=0.9, video_pruning_method="vidcom2"),
        video(clip_url),
        video_pruning_rate=0.9,
    )

    first, second = answer.metrics["videos"]
    assert (first["pruning_method"], first["tokens_after"]) == ("vidcom2", 47)
    assert (second["pruning_method"], second["tokens_after"]) == ("evs", 60)


def test_the_methods_are_listed_and_another_is_refused(qwen3_vl, clip_url):
    assert qwen3_vl.client().models.list().data[0].video["pruning_methods"] == ["evs", "vidcom2"]
    with pytest.raises(openai.BadRequestError, match="it must be evs or vidcom2"):
        ask(qwen3_vl, video(clip_url), video_pruning_method="random")
