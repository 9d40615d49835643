"""The chat endpoint over real HTTP where time and disconnects matter, and in memory where not."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from server.conversation import SamplingWish
from server.errors import EngineUnavailable, InvalidVideo, Overloaded
from tests.unit.api.stubs import (
    QUESTION,
    StubPipeline,
    build_app,
    client_of,
    counted,
    http_settings,
    serving,
    until,
)

CHAT = "/v1/chat/completions"
COUNT = f"{CHAT}/input_tokens"
STREAMED = {**QUESTION, "stream": True}


@pytest.mark.anyio
async def test_answer_is_the_pipelines(pipeline: StubPipeline) -> None:
    app = build_app(pipeline)
    async with client_of(app) as client:
        response = await client.post(CHAT, json=QUESTION)

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json()["choices"][0]["message"]["content"] == "a red circle"
    assert response.json()["metrics"] == {"videos": []}
    assert pipeline.watches[0].stage_seconds["receive"] >= 0
    assert counted(app, "videochat_requests_total", outcome="success") == 1


@pytest.mark.anyio
async def test_video_and_hints_reach_the_pipeline(pipeline: StubPipeline) -> None:
    part = {"type": "video_url", "video_url": {"url": "https://x/clip.mp4"}}
    messages = [{"role": "user", "content": [part]}]
    async with client_of(build_app(pipeline)) as client:
        await client.post(
            CHAT, json={"messages": messages, "fps": 1, "video_pruning_rate": 0.5, "seed": 7}
        )

    (request,) = pipeline.requests
    assert request.videos[0].sampling == SamplingWish(fps=1)
    assert request.videos[0].pruning_rate == 0.5
    assert request.body["seed"] == 7
    assert not request.stream


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json"}, 200),
        ({"content-type": "Application/JSON; charset=utf-8"}, 200),
        ({}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 415),
        ({"content-type": "application/json", "content-encoding": "identity"}, 200),
    ],
)
async def test_body_must_be_announced_as_plain_json(
    pipeline: StubPipeline, headers: dict[str, str], status: int
) -> None:
    async with client_of(build_app(pipeline)) as client:
        response = await client.post(CHAT, content=json.dumps(QUESTION), headers=headers)
    assert response.status_code == status
    assert status == 200 or response.json()["error"]["code"] == "unsupported_media_type"


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code", "outcome"),
    [
        (InvalidVideo("No.", param="p"), 400, "invalid_video", "client_error"),
        (Overloaded("Busy."), 503, "server_overloaded", "overloaded"),
        (EngineUnavailable("Dead."), 503, "engine_unavailable", "engine_error"),
        (ValueError("x"), 500, "internal_error", "internal_error"),
    ],
)
async def test_error_before_the_first_chunk_has_its_own_status(
    stream: bool, error: Exception, status: int, code: str, outcome: str
) -> None:
    app = build_app(StubPipeline(error=error))
    async with client_of(app) as client:
        response = await client.post(CHAT, json={**QUESTION, "stream": stream})

    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["code"] == code
    assert counted(app, "videochat_requests_total", outcome=outcome) == 1


@pytest.mark.anyio
async def test_chunks_arrive_one_by_one() -> None:
    released = asyncio.Semaphore(0)
    pipeline = StubPipeline(between=released.acquire)  # type: ignore[arg-type]
    async with serving(build_app(pipeline)) as url, httpx.AsyncClient() as client:
        arrivals = []
        async with client.stream("POST", url + CHAT, json=STREAMED) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["x-request-id"]
            async for line in response.aiter_lines():
                if line:
                    arrivals.append(line)
                    released.release()  # The next one is not made before this one is here.

    assert len(arrivals) == 4
    assert arrivals[-1] == "data: [DONE]"
    assert json.loads(arrivals[2].removeprefix("data: "))["metrics"] == {"videos": []}


@pytest.mark.anyio
async def test_long_silence_before_the_first_chunk_sends_headers_and_comments() -> None:
    gate = asyncio.Event()
    pipeline = StubPipeline(before=gate.wait)  # type: ignore[arg-type]
    app = build_app(pipeline, settings=http_settings(keep_alive_comment_seconds=0.1))
    async with (
        serving(app) as url,
        httpx.AsyncClient() as client,
        client.stream("POST", url + CHAT, json=STREAMED) as response,
    ):
        assert response.status_code == 200
        lines = response.aiter_lines()
        comments = [line async for line in _first(lines, 3)]
        gate.set()
        rest = [line async for line in lines if line]
    assert comments == [": keep-alive"] * 3
    assert rest[-1] == "data: [DONE]"
    assert len([line for line in rest if line.startswith("data: {")]) == 3


async def _first(lines: Any, count: int) -> Any:
    while count:
        if line := await anext(lines):
            count -= 1
            yield line


@pytest.mark.anyio
async def test_error_after_long_silence_is_an_event() -> None:
    pipeline = StubPipeline(
        before=lambda: asyncio.sleep(0.25), error=InvalidVideo("No.", param="p")
    )
    app = build_app(pipeline, settings=http_settings(keep_alive_comment_seconds=0.1))
    async with client_of(app) as client:
        response = await client.post(CHAT, json=STREAMED)

    assert response.status_code == 200
    last = response.text.strip().splitlines()[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["param"] == "p"
    assert "[DONE]" not in response.text
    assert counted(app, "videochat_requests_total", outcome="client_error") == 1


@pytest.mark.anyio
@pytest.mark.parametrize("moment", ["non-stream", "before the first chunk", "in the stream"])
async def test_client_that_hangs_up_stops_the_work(moment: str) -> None:
    gate = asyncio.Event()
    in_stream = moment == "in the stream"
    pipeline = StubPipeline(
        before=None if in_stream else gate.wait,  # type: ignore[arg-type]
        between=gate.wait if in_stream else None,  # type: ignore[arg-type]
    )
    app = build_app(pipeline)
    async with serving(app) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(QUESTION if moment == "non-stream" else STREAMED).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        async with asyncio.timeout(5):
            await pipeline.started.wait()
            if in_stream:
                await reader.readuntil(b"data: ")
            writer.close()
            await pipeline.closed.wait()
        await until(lambda: counted(app, "videochat_requests_in_flight") == 0)
    assert pipeline.cancelled.is_set()
    assert counted(app, "videochat_requests_total", outcome="cancelled") == 1


@pytest.mark.anyio
async def test_a_hundred_clients_that_leave_leave_nothing_behind() -> None:
    pipeline = StubPipeline(between=lambda: asyncio.sleep(5))
    app = build_app(pipeline)
    async with serving(app) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps(STREAMED).encode()
        for _ in range(100):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                % (len(body), body)
            )
            await writer.drain()
            writer.close()
        await until(
            lambda: (
                counted(app, "videochat_requests_total", outcome="cancelled") == 100
                and counted(app, "videochat_requests_in_flight") == 0
            )
        )


@pytest.mark.anyio
async def test_server_that_stops_takes_no_new_chat(pipeline: StubPipeline) -> None:
    app = build_app(pipeline)
    app.state.draining = True
    async with client_of(app) as client:
        response = await client.post(CHAT, json=QUESTION)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert not pipeline.requests


@pytest.mark.anyio
async def test_the_cost_of_a_request_is_told_without_an_answer(pipeline: StubPipeline) -> None:
    app = build_app(pipeline)
    async with client_of(app) as client:
        response = await client.post(COUNT, json={**STREAMED, "fps": 1})
        wrong = await client.post(COUNT, json={**QUESTION, "fpss": 1})
        form = await client.post(COUNT, content=b"{}", headers={"content-type": "text/plain"})

    assert (response.status_code, response.json()["input_tokens"]) == (200, 3)
    assert response.headers["content-type"] == "application/json"
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "fpss")
    assert form.status_code == 415
    assert len(pipeline.requests) == 1
    assert counted(app, "videochat_requests_total", outcome="success") == 1


@pytest.mark.anyio
async def test_counting_is_admitted_as_a_chat_request_is() -> None:
    gate = asyncio.Event()
    pipeline = StubPipeline(before=gate.wait)  # type: ignore[arg-type]
    app = build_app(pipeline, settings=http_settings(max_concurrent_requests=1))
    async with client_of(app) as client:
        first = asyncio.create_task(client.post(COUNT, json=QUESTION))
        await until(lambda: bool(pipeline.requests))
        busy = [await client.post(path, json=QUESTION) for path in (CHAT, COUNT)]
        gate.set()
        assert (await first).status_code == 200
        app.state.draining = True
        draining = await client.post(COUNT, json=QUESTION)

    assert [response.status_code for response in (*busy, draining)] == [503] * 3
    assert all(response.headers["retry-after"] for response in (*busy, draining))


@pytest.mark.anyio
async def test_openapi_lists_the_errors(pipeline: StubPipeline) -> None:
    async with client_of(build_app(pipeline)) as client:
        document = (await client.get("/openapi.json")).json()
    operation = document["paths"][CHAT]["post"]
    assert {"200", "400", "404", "413", "503"} <= set(operation["responses"])
    assert "messages" in json.dumps(operation["requestBody"])
    assert "ErrorBody" in document["components"]["schemas"]
