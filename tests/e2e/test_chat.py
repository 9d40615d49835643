"""What a user of the OpenAI client sees, on the real engine."""

import asyncio
import contextlib
import functools
import http.server
import math
import os
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest

from server.demo.clip import CLIP_PATH
from server.timing import STAGES
from tests.e2e.conftest import text, user, video

QUESTION = "what moves in the video"


def ask(server, clip_url, *, rate=None, messages=None, **options):
    extra = {} if rate is None else {"video_pruning_rate": rate}
    return server.client().chat.completions.create(
        model="embedded",
        messages=messages or [user(video(clip_url), text(QUESTION))],
        max_tokens=options.pop("max_tokens", 12),
        temperature=0,
        extra_body={**extra, **options.pop("extra_body", {})},
        **options,
    )


def content(answer):
    return answer.choices[0].message.content


def report(answer):
    (video_report,) = answer.metrics["videos"]
    return video_report


def test_a_stream_says_what_the_whole_answer_says(server, clip_url):
    whole = ask(server, clip_url, rate=0.5)
    chunks = list(
        ask(server, clip_url, rate=0.5, stream=True, stream_options={"include_usage": True})
    )

    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert content(whole) == "".join(pieces)
    assert len([piece for piece in pieces if piece]) > 5
    last = chunks[-1]
    assert last.choices == []
    assert whole.usage.prompt_tokens == last.usage.prompt_tokens
    assert whole.usage.completion_tokens == last.usage.completion_tokens
    assert report(whole)["tokens_after"] == report(last)["tokens_after"]
    assert report(last)["tokens_after"] == last.usage.prompt_tokens_details.video_tokens


def test_a_stream_without_usage_ends_with_metrics_on_the_finishing_chunk(server, clip_url):
    *others, last = ask(server, clip_url, rate=0.5, stream=True)

    assert last.choices[0].finish_reason == "length"
    assert last.metrics["time_to_first_token_ms"] > 0
    assert last.usage is None
    assert not any(getattr(chunk, "metrics", None) for chunk in others)


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5, 0.75, 0.9])
def test_prompt_tokens_fall_with_the_rate(server, clip_url, rate):
    unpruned = ask(server, clip_url, rate=0, max_tokens=1)
    pruned = ask(server, clip_url, rate=rate, max_tokens=1)

    before, after = report(pruned)["tokens_before"], report(pruned)["tokens_after"]
    grids = math.ceil(report(pruned)["frames_sampled"] / 2)
    assert before == report(unpruned)["tokens_after"]
    assert abs(after - before * (1 - rate)) <= before / grids
    assert before - after == unpruned.usage.prompt_tokens - pruned.usage.prompt_tokens
    assert after == pruned.usage.prompt_tokens_details.video_tokens
    assert rate == report(pruned)["pruning_rate"]
    assert report(pruned)["effective_pruning_rate"] == pytest.approx(1 - after / before, abs=1e-4)


def test_rates_never_share_a_cache(server, clip_url):
    first, pruned, again = (ask(server, clip_url, rate=rate) for rate in (0, 0.75, 0))

    assert content(first) == content(again)
    assert content(first) != content(pruned)
    assert first.usage.prompt_tokens == again.usage.prompt_tokens > pruned.usage.prompt_tokens


def test_the_same_video_at_the_same_rate_is_found_in_the_prefix_cache(server, clip_url):
    ask(server, clip_url, rate=0.1)
    again = ask(server, clip_url, rate=0.1)

    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_clients_with_different_rates_at_once_get_what_they_get_alone(server, clip_url):
    rates = [0.0, 0.5, 0.75, 0.9, 0.0, 0.5]
    alone = {rate: content(ask(server, clip_url, rate=rate)) for rate in set(rates)}

    async def together():
        client = openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="unused")
        async with client:
            return await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model="embedded",
                        messages=[user(video(clip_url), text(QUESTION))],
                        max_tokens=12,
                        temperature=0,
                        extra_body={"video_pruning_rate": rate},
                    )
                    for rate in rates
                )
            )

    answers = asyncio.run(together())

    assert [alone[rate] for rate in rates] == [content(answer) for answer in answers]


def test_each_video_of_a_request_has_its_own_rate(server, clip_url):
    def both(first, second):
        parts = [
            video(clip_url, video_pruning_rate=first),
            video(clip_url, video_pruning_rate=second),
        ]
        answer = ask(server, clip_url, messages=[user(*parts, text(QUESTION))])
        return [item["tokens_after"] for item in answer.metrics["videos"]], content(answer)

    tokens, answer = both(0, 0.75)
    swapped_tokens, swapped_answer = both(0.75, 0)

    assert tokens == swapped_tokens[::-1]
    assert tokens[0] > tokens[1]
    assert answer != swapped_answer


def test_a_longer_dialogue_with_the_video_in_an_earlier_turn(server, clip_url):
    messages = [
        {"role": "system", "content": "answer in one word"},
        user(text("look at this"), video(clip_url), text(QUESTION)),
        {"role": "assistant", "content": "circle"},
        {"role": "user", "content": "what color is it"},
    ]

    answer = ask(server, clip_url, rate=0.5, messages=messages)

    assert content(answer)
    assert report(answer)["tokens_after"] < report(answer)["tokens_before"]


def test_text_alone_is_answered(server):
    answer = ask(server, "", messages=[{"role": "user", "content": "what is a circle"}])

    assert content(answer)
    assert answer.metrics["videos"] == []
    assert answer.metrics["stages_ms"]["decode"] == 0 or answer.metrics["stages_ms"]["decode"] < 5


def test_sampling_follows_fps_and_num_frames(server, clip_url):
    def frames(**hints):
        answer = ask(server, clip_url, messages=[user(video(clip_url, **hints), text("what"))])
        return report(answer)["frames_sampled"]

    assert frames() == 16  # 8 seconds at the default of 2
    assert frames(fps=1) == 8
    assert frames(num_frames=6) == 6


@pytest.mark.parametrize(
    "hints",
    [
        {},
        {"video_pruning_rate": 0.75, "fps": 3},
        {"start_offset": "1.5s", "end_offset": 6, "max_pixels": 20_000},
        {"frame_alignment": "keyframe"},
        {"video_token_budget": 120},
    ],
)
def test_what_a_request_costs_is_told_before(server, clip_url, hints):
    messages = [user(video(clip_url, **hints), text(QUESTION)), user(video(clip_url))]
    foretold = httpx.post(
        f"{server.base_url}/v1/chat/completions/input_tokens",
        json={"messages": messages},
        timeout=60,
    ).json()
    # Counting first must not make the engine take a stand-in for the video.
    first, again = (ask(server, clip_url, messages=messages) for _ in range(2))

    assert foretold["input_tokens"] == first.usage.prompt_tokens
    # How many frames had to be replaced is known only where frames are decoded.
    reported = [{**told, "frames_replaced": None} for told in first.metrics["videos"]]
    assert foretold["videos"] == reported
    assert content(first) == content(again)


def test_a_stretch_and_a_budget_change_what_the_model_sees(server, clip_url):
    def answer(**hints):
        return ask(server, clip_url, messages=[user(video(clip_url, **hints), text(QUESTION))])

    whole, half, tight = answer(), answer(end_offset=4), answer(video_token_budget=100)

    assert (report(whole)["span_seconds"], report(half)["span_seconds"]) == (8.0, 4.0)
    assert report(half)["frames_sampled"] == 8
    assert report(tight)["tokens_after"] <= 100
    assert half.usage.prompt_tokens < whole.usage.prompt_tokens
    assert len({content(found) for found in (whole, half, tight)}) == 3


def test_a_video_is_fetched_from_an_http_url(server):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=str(CLIP_PATH.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as origin:
        threading.Thread(target=origin.serve_forever, daemon=True).start()
        answer = ask(server, f"http://127.0.0.1:{origin.server_port}/{CLIP_PATH.name}", rate=0.5)
        origin.shutdown()

    assert content(answer)
    assert answer.metrics["stages_ms"]["fetch"] > 0


@pytest.mark.parametrize("rate", [1.0, 1, -0.1, True, "x", "0.5", [0.5], 2])
def test_what_is_no_rate_is_a_400_that_names_the_field(server, clip_url, rate):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, clip_url, rate=rate)

    assert caught.value.param == "video_pruning_rate"
    assert "video_pruning_rate" in caught.value.message


def test_nan_as_a_rate_is_a_400(server):
    body = '{"messages":[{"role":"user","content":"a"}],"video_pruning_rate":NaN}'
    response = httpx.post(
        f"{server.base_url}/v1/chat/completions",
        content=body,
        headers={"Content-Type": "application/json"},
    )

    assert response.status_code == 400
    assert {"message", "type", "param", "code"} == set(response.json()["error"])


@pytest.mark.parametrize(
    ("url", "hints", "options", "param"),
    [
        ("data:video/mp4;base64,AAAA", {}, {}, "messages[0].content[0].video_url.url"),
        ("data:video/mp4;base64,%%%", {}, {}, "messages[0].content[0].video_url.url"),
        ("ftp://example.org/a.mp4", {}, {}, "messages[0].content[0].video_url.url"),
        (None, {"fps": 0}, {}, "messages[0].content[0].video_url.fps"),
        (None, {"speed": 2}, {}, "messages[0].content[0].video_url.speed"),
        (None, {}, {"temperature": -3}, "temperature"),
        (None, {}, {"extra_body": {"video_prunning_rate": 0.5}}, "video_prunning_rate"),
        (
            None,
            {},
            {"extra_body": {"mm_processor_kwargs": {"do_resize": False}}},
            "mm_processor_kwargs.do_resize",
        ),
    ],
)
def test_bad_input_is_a_400_that_names_the_parameter(server, clip_url, url, hints, options, param):
    messages = [user(video(url or clip_url, **hints), text(QUESTION))]
    options = {"temperature": 0, **options}

    with pytest.raises(openai.BadRequestError) as caught:
        server.client().chat.completions.create(model="embedded", messages=messages, **options)

    assert param == caught.value.param


def test_a_prompt_longer_than_the_context_is_a_400_and_harms_nobody(server, clip_url):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, clip_url, messages=[{"role": "user", "content": "circle " * 9000}])

    assert caught.value.code == "context_length_exceeded"
    assert content(ask(server, clip_url))


def test_an_unknown_model_is_a_404(server):
    with pytest.raises(openai.NotFoundError):
        server.client().chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "a"}]
        )


def test_a_client_that_leaves_stops_the_engines_work(server, clip_url):
    running = "vllm:num_requests_running"
    body = {
        "messages": [user(video(clip_url), text(QUESTION))],
        "max_tokens": 6000,
        "ignore_eos": True,
        "stream": True,
    }

    frames_before = held_frames(server)
    with httpx.stream(
        "POST", f"{server.base_url}/v1/chat/completions", json=body, timeout=60
    ) as response:
        assert "role" in next(response.iter_lines())

    assert eventually(lambda: server.total(running) == 0)
    assert eventually(lambda: server.total("videochat_requests_in_flight") == 0)
    assert eventually(lambda: held_frames(server) <= frames_before)
    assert server.samples()['videochat_requests_total{outcome="cancelled"}'] >= 1


def held_frames(server):
    """Decoded clips that the server's process holds on to."""
    held = 0
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            held += "memfd:frames" in os.readlink(link)
    return held


def eventually(condition, *, seconds=10):
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return holds


def test_the_stages_add_up_to_the_time_to_first_token(server, clip_url):
    answer = ask(server, clip_url, rate=0.3)

    stages = answer.metrics["stages_ms"]
    assert list(STAGES) == list(stages)
    assert sum(stages.values()) == pytest.approx(answer.metrics["time_to_first_token_ms"], rel=0.05)
    assert stages["decode"] > 0
    assert stages["prefill"] > 0


def test_prometheus_counts_one_first_token_and_its_stages(server, clip_url):
    def counts():
        return (
            server.total("videochat_time_to_first_token_seconds_count"),
            server.total("videochat_time_to_first_token_seconds_sum"),
            server.total("videochat_stage_seconds_sum"),
        )

    count, ttft_seconds, stage_seconds = counts()
    ask(server, clip_url, rate=0.35)
    count_after, ttft_after, stage_after = counts()

    assert count_after - count == 1
    assert stage_after - stage_seconds == pytest.approx(ttft_after - ttft_seconds, rel=0.05)


def test_vllms_own_metrics_are_on_the_same_endpoint(server, clip_url):
    ask(server, clip_url)

    assert server.total("vllm:prompt_tokens_total") > 0
    assert server.total("vllm:time_to_first_token_seconds_count") > 0


def test_the_other_endpoints(server):
    models = server.client().models.list().data
    version = httpx.get(f"{server.base_url}/version").json()

    assert [model.id for model in models] == ["embedded"]
    assert version["vllm"] == "0.32.0"
    for path in ("/health", "/health/live", "/health/ready"):
        assert httpx.get(server.base_url + path).status_code == 200
