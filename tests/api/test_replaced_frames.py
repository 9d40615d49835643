"""A video with damaged frames is answered, and the answer says how many they were."""

import base64
import json

import pytest

from tests.clips.counter import ClipRecipe
from tests.clips.decoded import packet_places

CHAT = "/v1/chat/completions"
REPLACED = "videochat_video_frames_replaced_total"
pytestmark = pytest.mark.anyio


def damaged(*frames):
    """Returns a data: URL of 20 frames, each decodable by itself but for the ones given."""
    source = bytearray(ClipRecipe(num_frames=20, options={"g": "1"}).encode())
    places = packet_places(bytes(source))
    for frame in frames:
        position, size = places[frame]
        source[position : position + size] = bytes(size)
    return "data:video/mp4;base64," + base64.b64encode(source).decode()


@pytest.fixture
def damaged_body(body):
    body["messages"][0]["content"][0]["video_url"] = {"url": damaged(7, 8, 13), "num_frames": 20}
    return body


async def metrics_of(http, body):
    if not body.get("stream"):
        return (await http.post(CHAT, json=body)).json()["metrics"]
    async with http.stream("POST", CHAT, json=body) as response:
        events = [line async for line in response.aiter_lines() if line]
    assert events[-1] == "data: [DONE]"
    return json.loads(events[-2].removeprefix("data: "))["metrics"]


@pytest.mark.parametrize("stream", [False, True])
async def test_replaced_frames_are_told_and_counted(serve, damaged_body, stream):
    async with serve() as service, service.http() as http:
        metrics = await metrics_of(http, {**damaged_body, "stream": stream})
        (video,) = metrics["videos"]
        assert (video["frames_sampled"], video["frames_replaced"]) == (20, 3)
        assert service.sample(REPLACED) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_whole_video_has_none(serve, body, stream):
    async with serve() as service, service.http() as http:
        metrics = await metrics_of(http, {**body, "stream": stream})
        assert [video["frames_replaced"] for video in metrics["videos"]] == [0]
        assert service.sample(REPLACED) == 0


async def test_what_is_kept_of_a_damaged_video_is_told_again(serve, damaged_body):
    async with serve() as service, service.http() as http:
        told = [await metrics_of(http, damaged_body) for _ in range(2)]
        hits = service.sample("videochat_cache_lookups_total", cache="clips", outcome="hit")
        assert hits == 1
    assert [metrics["videos"][0]["frames_replaced"] for metrics in told] == [3, 3]


async def test_counting_tokens_decodes_nothing_and_does_not_know(serve, damaged_body):
    async with serve() as service, service.http() as http:
        counted = (await http.post(f"{CHAT}/input_tokens", json=damaged_body)).json()
        assert counted["videos"][0]["frames_replaced"] is None
        assert service.sample(REPLACED) == 0
