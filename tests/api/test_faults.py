"""What clients and operators see when things go wrong, on a scripted engine."""

import asyncio
import json

import httpx
import pytest

CHAT = "/v1/chat/completions"
pytestmark = pytest.mark.anyio


async def events(response):
    return [line.removeprefix("data: ") async for line in response.aiter_lines() if line]


async def hold_until_closed(reader, writer):
    """Read what comes and answer nothing."""
    while await reader.read(65536):
        pass
    writer.close()


async def test_an_engine_that_dies_in_mid_stream_ends_it_with_an_error_and_no_done(serve, body):
    async with serve(dies_after=2) as service, service.http() as http:
        async with http.stream("POST", CHAT, json={**body, "stream": True}) as response:
            received = await events(response)
        ready = await http.get("/health/ready")
        await service.settle(lambda: service.failures)

    assert response.status_code == 200
    assert json.loads(received[-1])["error"]["code"] == "engine_unavailable"
    assert "[DONE]" not in received
    assert ready.status_code == 503
    assert service.sample("videochat_requests_total", outcome="engine_error") == 1


async def test_an_engine_that_dies_before_the_first_token_is_a_503(serve, body):
    async with serve(dies_after=0) as service, service.http() as http:
        streamed = await http.post(CHAT, json={**body, "stream": True})
        whole = await http.post(CHAT, json=body)

    for response in (streamed, whole):
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_unavailable"
        assert int(response.headers["retry-after"]) > 0


async def test_a_client_that_leaves_a_stream_aborts_the_engines_request(serve, body):
    async with serve(words=(" a",) * 400, seconds_between=0.05) as service, service.http() as http:
        async with http.stream("POST", CHAT, json={**body, "stream": True}) as response:
            await anext(response.aiter_lines())
        await service.settle(lambda: not service.engine_client.running)

        assert len(service.engine_client.aborted) == 1
        await service.settle(lambda: service.sample("videochat_requests_in_flight") == 0)
        assert service.sample("videochat_requests_total", outcome="cancelled") == 1


async def test_a_client_that_does_not_wait_for_a_whole_answer_aborts_it(serve, body):
    async with serve(seconds_before_first=30) as service, service.http() as http:
        request = asyncio.create_task(http.post(CHAT, json=body))
        await service.settle(lambda: service.engine_client.running)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await service.settle(lambda: not service.engine_client.running)

        assert len(service.engine_client.aborted) == 1
        await service.settle(lambda: service.sample("videochat_requests_in_flight") == 0)


async def test_a_client_that_leaves_while_its_video_is_fetched_frees_everything(serve, body):
    silent = await asyncio.start_server(hold_until_closed, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    body["messages"][0]["content"][0]["video_url"]["url"] = f"http://127.0.0.1:{port}/a.mp4"
    settings = {"video": {"allow_private_addresses": True}}
    async with serve(settings=settings) as service, service.http() as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.post(CHAT, json=body, timeout=0.5)
        await service.settle(lambda: service.sample("videochat_requests_in_flight") == 0)

        assert service.sample("videochat_videos_total", outcome="cancelled") == 1
        assert service.engine_client.aborted == []
    silent.close()
    await silent.wait_closed()


async def test_one_request_too_many_is_refused_before_its_body_is_read(serve, body):
    settings = {"http": {"max_concurrent_requests": 1}}
    async with (
        serve(settings=settings, seconds_before_first=4) as service,
        service.http() as http,
    ):
        first = asyncio.create_task(http.post(CHAT, json=body))
        await service.settle(lambda: service.engine_client.running)
        second = await http.post(CHAT, json=body)

        assert second.status_code == 503
        assert second.json()["error"]["code"] == "server_overloaded"
        assert (await first).status_code == 200


async def test_the_role_alone_is_not_the_first_token(serve, body):
    async with (
        serve(words=("", "", " red"), seconds_between=0.2) as service,
        service.http() as http,
        http.stream("POST", CHAT, json={**body, "stream": True}) as response,
    ):
        received = await events(response)

    *_, last, done = received
    metrics = json.loads(last)["metrics"]
    assert done == "[DONE]"
    assert metrics["stages_ms"]["prefill"] > 390
    assert sum(metrics["stages_ms"].values()) == pytest.approx(
        metrics["time_to_first_token_ms"], abs=0.01
    )


async def test_a_slow_upload_counts_from_its_first_byte(serve, body):
    async with serve() as service:
        payload = json.dumps(body).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
        port = int(service.base_url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head[:20].encode())
        await asyncio.sleep(0.2)
        writer.write(head[20:].encode() + payload[:100])
        await asyncio.sleep(0.2)
        writer.write(payload[100:])
        answer = (await reader.read()).partition(b"\r\n\r\n")[2]
        writer.close()

    assert json.loads(answer)["metrics"]["stages_ms"]["receive"] > 390


async def test_a_video_that_can_not_fit_is_refused_before_it_is_decoded(serve, body):
    body["video_pruning_rate"] = 0
    body["messages"][0]["content"] = [
        *[body["messages"][0]["content"][0]] * 4,
        {"type": "text", "text": "what"},
    ]
    for part in body["messages"][0]["content"][:4]:
        part["video_url"] = {**part["video_url"], "num_frames": 190}
    async with serve() as service, service.http() as http:
        response = await http.post(CHAT, json=body)

    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert "video_pruning_rate" in error["message"]
    assert error["param"].startswith("messages[0].content[")
    assert service.sample("videochat_video_frames_count") == 0


async def test_an_answer_that_outlasts_the_grace_period_ends_with_an_error(serve, body):
    async with serve(words=(" a",) * 400, seconds_between=0.05) as service, service.http() as http:
        waiting = asyncio.create_task(http.post(CHAT, json=body))
        async with http.stream("POST", CHAT, json={**body, "stream": True}) as response:
            lines = response.aiter_lines()
            await anext(lines)
            await service.settle(lambda: len(service.engine_client.running) == 2)
            service.pipeline.expire()
            received = [line async for line in lines if line]
        whole = await waiting

    assert json.loads(received[-1].removeprefix("data: "))["error"]["code"] == "engine_unavailable"
    assert whole.status_code == 503
    assert whole.json()["error"]["code"] == "engine_unavailable"


async def test_ready_is_503_until_the_engine_answers_and_names_why(serve):
    async with serve() as service, service.http() as http:
        service.engine_client._dead = True
        response = await http.get("/health/ready")
        live = await http.get("/health/live")

    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_unavailable"
    assert live.status_code == 200
