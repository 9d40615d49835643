"""What a request would cost, against what it does cost on a scripted engine."""

import copy

import pytest
import torch

from tests.families import checkpoint

CHAT = "/v1/chat/completions"
COUNT = f"{CHAT}/input_tokens"
pytestmark = pytest.mark.anyio


async def costs(http, body):
    """Returns what was foretold and what the answer says, each as (tokens, videos)."""
    counted = await http.post(COUNT, json=body)
    assert counted.status_code == 200, counted.text
    answered = await http.post(CHAT, json=body)
    assert answered.status_code == 200, answered.text
    foretold, answer = counted.json(), answered.json()
    # Known only where frames are decoded.
    told = [video.pop("frames_replaced") for video in (*foretold["videos"], *videos_of(answer))]
    assert told == [None] * len(foretold["videos"]) + [0] * len(videos_of(answer))
    return (
        (foretold["input_tokens"], foretold["videos"]),
        (answer["usage"]["prompt_tokens"], videos_of(answer)),
    )


def videos_of(answer):
    return answer["metrics"]["videos"]


def two_videos(body):
    """A dialogue about the same clip twice, each time in another way."""
    body = copy.deepcopy(body)
    (message,) = body["messages"]
    part, text = message["content"]
    first = {**part, "video_pruning_rate": 0.75, "num_frames": 6, "max_pixels": 20_000}
    second = {**part, "start_offset": "2.5s", "end_offset": 7, "video_token_budget": 150}
    body["messages"] = [
        {"role": "system", "content": "answer in one word"},
        {"role": "user", "content": [first, text]},
        {"role": "assistant", "content": "a circle"},
        {"role": "user", "content": [text, second, text]},
    ]
    return body


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"video_pruning_rate": 0.0},
        {"video_pruning_rate": 0.9, "fps": 4},
        {"num_frames": 5, "min_pixels": 60_000},
        {"frame_alignment": "keyframe"},
        {"video_token_budget": 100, "max_tokens": 5, "seed": 1},
    ],
)
async def test_it_is_what_the_answer_reports(serve, body, fields):
    async with serve() as service, service.http() as http:
        foretold, reported = await costs(http, {**body, **fields})
    assert foretold == reported


async def test_several_videos_in_a_dialogue(serve, body):
    async with serve() as service, service.http() as http:
        foretold, reported = await costs(http, two_videos(body))
    assert foretold == reported
    assert [video["tokens_after"] for video in foretold[1]][1] <= 150


async def test_text_alone_is_counted_too(serve):
    body = {"messages": [{"role": "user", "content": "what is a circle"}], "stream": True}
    async with serve() as service, service.http() as http:
        counted = await http.post(COUNT, json={**body, "stream_options": {"include_usage": True}})
        answered = await http.post(CHAT, json={**body, "stream": False})
    tokens = answered.json()["usage"]["prompt_tokens"]
    assert counted.json() == {
        "object": "response.input_tokens",
        "input_tokens": tokens,
        "videos": [],
    }


ENGINE_ARGUMENTS = {
    "qwen3_vl": {},
    "nemotron_nano_vl": {"dtype": "bfloat16", "trust_remote_code": True},
}


@pytest.mark.parametrize("name", ENGINE_ARGUMENTS)
async def test_families_with_text_between_the_frames(serve, body, name):
    served = serve(model=checkpoint(name), engine_arguments=ENGINE_ARGUMENTS[name])
    # As the server does it with enforce_eager: Nemotron's resize would be compiled first.
    with torch.compiler.set_stance("force_eager"):
        async with served as service, service.http() as http:
            for request in (body, two_videos_of_any_size(body)):
                foretold, reported = await costs(http, request)
                assert foretold == reported


def two_videos_of_any_size(body):
    body = two_videos(body)
    del body["messages"][1]["content"][0]["max_pixels"]
    return body


async def test_nothing_is_decoded_and_the_engine_is_asked_for_nothing(serve, body):
    async with serve() as service, service.http() as http:
        assert (await http.post(COUNT, json=body)).status_code == 200
        assert service.sample("videochat_videos_total", outcome="success") == 0
        assert service.sample("videochat_stage_seconds_count", stage="decode") == 0
        assert service.engine_client.num_requests == 0
        # What was rendered for counting is not taken for the clip itself.
        answer = await http.post(CHAT, json=body)
        assert answer.status_code == 200
        assert service.engine_client.num_requests == 1


async def test_what_chat_refuses_is_refused_in_the_same_words(serve, body):
    late = {**body, "start_offset": 99}
    broken = copy.deepcopy(body)
    broken["messages"][0]["content"][0]["video_url"]["url"] = "data:video/mp4;base64,AAAA"
    long = {"messages": [{"role": "user", "content": "circle " * 9000}]}
    many = {**body, "fps": 30, "video_pruning_rate": 0.0}
    async with serve() as service, service.http() as http:
        for request in (late, broken, long, many):
            counted = await http.post(COUNT, json=request)
            answered = await http.post(CHAT, json=request)
            assert counted.status_code == 400
            assert counted.json() == answered.json()


async def test_a_prompt_that_only_its_text_makes_too_long_is_refused(serve, body):
    body = {**body, "video_pruning_rate": 0.0}
    async with serve() as service, service.http() as http:
        tokens = (await http.post(COUNT, json=body)).json()["input_tokens"]
        body["messages"].insert(0, {"role": "user", "content": " circle" * (8192 - tokens)})
        counted = await http.post(COUNT, json=body)
        answered = await http.post(CHAT, json=body)
    assert counted.status_code == answered.status_code == 400
    error = counted.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert answered.json()["error"]["code"] == "context_length_exceeded"
