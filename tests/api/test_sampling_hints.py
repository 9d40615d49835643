"""How a request's videos are sampled, on a scripted engine with the embedded model."""

import base64
import io
import re

import httpx
import pytest
from PIL import Image

CHAT = "/v1/chat/completions"
PART = "messages[0].content[0].video_url"
pytestmark = pytest.mark.anyio


def hinted(body, **hints):
    """The request with hints on its only video."""
    (message,) = body["messages"]
    part, *others = message["content"]
    part = {**part, "video_url": {**part["video_url"], **hints}}
    return {**body, "messages": [{**message, "content": [part, *others]}]}


async def report(http: httpx.AsyncClient, body):
    response = await http.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    (found,) = response.json()["metrics"]["videos"]
    return found


async def test_the_answer_tells_what_was_granted(serve, body):
    settings = {"video": {"max_frames": 12, "max_fps": 4.0}}
    async with serve(settings=settings) as service, service.http() as http:
        plain = await report(http, body)
        clamped = await report(http, {**body, "fps": 100, "max_frames": 50, "end_offset": 99})
        cut = await report(http, hinted(body, num_frames=4, start_offset="2s", end_offset=4))

    assert plain["frames_sampled"] == 12
    assert plain["granted"] == {
        "fps": 2.0,
        "num_frames": None,
        "min_frames": 4,
        "max_frames": 12,
        "start_offset": 0.0,
        "end_offset": 8.0,
        "frame_alignment": "exact",
        "min_pixels": None,
        "max_pixels": None,
        "total_pixels": None,
        "spatial_limit": None,
        "video_token_budget": None,
    }
    assert (clamped["granted"]["fps"], clamped["granted"]["max_frames"]) == (4.0, 12)
    assert clamped["granted"]["end_offset"] == 8.0
    assert (cut["frames_sampled"], cut["span_seconds"]) == (4, 2.0)
    assert (cut["granted"]["start_offset"], cut["granted"]["end_offset"]) == (2.0, 4.0)


async def test_keyframes_are_taken_once_each(serve, body):
    async with serve() as service, service.http() as http:
        found = await report(http, hinted(body, frame_alignment="keyframe", num_frames=16))

    assert 2 <= found["frames_sampled"] <= 16
    assert found["granted"]["frame_alignment"] == "keyframe"


async def test_frames_have_the_size_asked_for_and_the_prompt_the_tokens_of_it(serve, body):
    settings = {"video": {"max_model_pixels_per_frame": 40_000}}
    async with serve(settings=settings) as service, service.http() as http:
        plain = await report(http, body)
        small = await report(http, hinted(body, max_pixels=12_000))
        total = await report(http, {**body, "video_config": {"total_pixels": 16 * 12_000}})
        side = await report(http, hinted(body, spatial_limit=100))
        refused = await http.post(CHAT, json=hinted(body, max_pixels=100))

    assert plain["granted"]["max_pixels"] == 40_000
    assert plain["width"] * plain["height"] <= 40_000
    assert small["width"] * small["height"] <= 12_000
    assert small["tokens_before"] == 8 * small["width"] * small["height"] // 28**2
    assert small["tokens_after"] == small["tokens_before"] // 2
    assert (total["width"], total["height"]) == (small["width"], small["height"])
    assert max(side["width"], side["height"]) <= 100
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == f"{PART}.max_pixels"


async def test_a_video_is_made_to_fit_its_token_budget(serve, body):
    del body["video_pruning_rate"]
    settings = {"pruning": {"max_rate": 0.8}}
    async with serve(settings=settings) as service, service.http() as http:
        free = await report(http, body)
        pruned = await report(http, {**body, "video_token_budget": free["tokens_before"] // 2})
        floor = await report(
            http, {**hinted(body, video_token_budget=400), "video_pruning_rate": 0.75}
        )
        shortened = await report(http, hinted(body, video_token_budget=100))
        refused = await http.post(CHAT, json=hinted(body, video_token_budget=10))

    assert free["pruning_rate"] == 0
    assert pruned["tokens_after"] == free["tokens_before"] // 2
    assert pruned["frames_sampled"] == free["frames_sampled"] == 16
    assert pruned["granted"]["video_token_budget"] == free["tokens_before"] // 2
    assert floor["pruning_rate"] == 0.75
    assert shortened["frames_sampled"] < 16
    assert 0 < shortened["tokens_after"] <= 100
    assert shortened["pruning_rate"] <= 0.8
    assert refused.json()["error"]["param"] == f"{PART}.video_token_budget"


async def test_what_only_the_video_can_tell_is_a_400_that_names_the_hint(serve, body):
    async with serve() as service, service.http() as http:
        late = await http.post(CHAT, json=hinted(body, video_metadata={"start_offset": "9s"}))
        request_wide = await http.post(CHAT, json={**body, "start_offset": 9})

    assert (late.status_code, request_wide.status_code) == (400, 400)
    assert late.json()["error"]["param"] == f"{PART}.video_metadata.start_offset"
    assert "ends at 8.000 s" in late.json()["error"]["message"]
    assert request_wide.json()["error"]["param"] == "start_offset"


def followed(error, name):
    """The value that a refusal says is enough for a limit."""
    assert error["param"] == f"{PART}.{name}"
    return int(re.search(r"at the least, which makes (\d+)\.", error["message"])[1])


async def test_the_value_that_a_refusal_names_is_the_least_that_is_taken(serve, body):
    def made(video, name):
        pixels = video["width"] * video["height"]
        side = max(video["width"], video["height"])
        return {"max_pixels": pixels, "total_pixels": 2 * pixels, "spatial_limit": side}[name]

    async with serve() as service, service.http() as http:
        for name in ("max_pixels", "total_pixels", "spatial_limit"):
            refused = await http.post(CHAT, json=hinted(body, num_frames=2, **{name: 1}))
            least = followed(refused.json()["error"], name)
            found = await report(http, hinted(body, num_frames=2, **{name: least}))
            above = await report(http, hinted(body, num_frames=2, **{name: least * 4 // 3}))
            below = await http.post(CHAT, json=hinted(body, num_frames=2, **{name: least - 1}))

            assert refused.status_code == below.status_code == 400
            assert followed(below.json()["error"], name) == made(found, name) == least
            assert made(above, name) <= least * 4 // 3


async def test_a_lower_limit_on_pixels_never_makes_frames_smaller(serve, body):
    async with serve() as service, service.http() as http:
        plain = await report(http, body)
        pixels = plain["width"] * plain["height"]
        for min_pixels in (pixels, pixels + 500, 2 * pixels, 40 * pixels):
            found = await report(http, hinted(body, min_pixels=min_pixels))
            assert found["width"] * found["height"] >= pixels


COUNTS = [
    # frames, then granted: num_frames, min_frames, max_frames
    ({"num_frames": 1}, (2, 2, 1, 256)),
    ({"num_frames": 3}, (4, 4, 1, 256)),
    ({"num_frames": 7}, (8, 8, 1, 256)),
    ({"max_frames": 1}, (2, None, 2, 2)),
    ({"min_frames": 3, "max_frames": 3}, (2, None, 2, 2)),
]


async def test_the_numbers_of_frames_that_are_told_are_those_used(serve, body):
    async with serve() as service, service.http() as http:
        for hints, expected in COUNTS:
            found = await report(http, hinted(body, **hints))
            granted = found["granted"]
            told = (granted["num_frames"], granted["min_frames"], granted["max_frames"])
            assert (found["frames_sampled"], *told) == expected


async def test_all_pictures_of_a_list_are_taken_though_they_are_an_odd_number(serve):
    encoded = io.BytesIO()
    Image.new("RGB", (160, 120), "red").save(encoded, "PNG")
    url = "data:image/png;base64," + base64.b64encode(encoded.getvalue()).decode()
    content = [{"type": "video", "video": [url] * 3}, {"type": "text", "text": "what moves"}]
    async with serve() as service, service.http() as http:
        found = await report(http, {"messages": [{"role": "user", "content": content}]})

    assert (found["frames_sampled"], found["granted"]["num_frames"]) == (3, 3)


async def test_hints_that_say_two_things_are_a_400_that_names_both(serve, body):
    async with serve() as service, service.http() as http:
        level = await http.post(CHAT, json={**body, "fps": 1, "sample_fps": 2})
        part = await http.post(CHAT, json=hinted(body, start_offset=1, startOffset="2s"))
        objects = {"mm_processor_kwargs": {"fps": 1}, "video_config": {"fps": 2}}
        beside = await http.post(CHAT, json={**body, **objects})
        equal = await report(http, {**body, "fps": 1, "sample_fps": 1.0})

    told = [response.json()["error"] for response in (level, part, beside)]
    assert [response.status_code for response in (level, part, beside)] == [400] * 3
    assert [error["param"] for error in told] == [
        "sample_fps",
        f"{PART}.startOffset",
        "video_config.fps",
    ]
    assert "fps and sample_fps mean the same" in told[0]["message"]
    assert f"{PART}.start_offset and {PART}.startOffset mean the same" in told[1]["message"]
    assert equal["granted"]["fps"] == 1
