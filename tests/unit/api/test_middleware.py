import asyncio
import logging

import httpx
import pytest

from server.client import current_client
from server.settings import HttpSettings, Settings
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


@pytest.mark.anyio
async def test_every_response_has_an_id_of_our_own(pipeline: StubPipeline) -> None:
    async with client_of(build_app(pipeline)) as client:
        responses = [await client.get(path) for path in ("/health/live", "/nothing")]
        responses.append(await client.post(CHAT, json=QUESTION))

    ids = {response.headers["x-request-id"] for response in responses}
    assert len(ids) == 3
    assert all(given.startswith("req-") and len(given) == 36 for given in ids)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        ("abc-1.2_3", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("", False),
        ("a b", False),
        ("a\tb", False),
        ('"}{"level":"error', False),
        ("é", False),
    ],
)
async def test_clients_id_is_kept_if_it_is_harmless(
    pipeline: StubPipeline, given: str, is_kept: bool
) -> None:
    headers = {"x-request-id": given.encode("latin-1")}
    async with client_of(build_app(pipeline)) as client:
        response = await client.get("/health/live", headers=headers)  # type: ignore[arg-type]
    assert (response.headers["x-request-id"] == given) == is_kept


def request_lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage() == "request"]


@pytest.mark.anyio
async def test_one_line_is_logged_per_request_without_anything_of_the_client(
    pipeline: StubPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "server")
    async with client_of(build_app(pipeline)) as client:
        await client.post(CHAT + "?key=secret", json=QUESTION)
        await client.post(CHAT, json={"secret": 1})
        await client.get("/v1/models/secret")
        await client.request("SECRET", "/secret")
        await client.get("/health/live")

    lines = request_lines(caplog)
    told = [[vars(line)[key] for key in ("method", "route", "status", "outcome")] for line in lines]
    assert told == [
        ["POST", CHAT, 200, "success"],
        ["POST", CHAT, 400, "client_error"],
        ["GET", "/v1/models/{model:path}", 404, "client_error"],
        ["other", "unmatched", 404, "client_error"],
        ["GET", "/health/live", 200, "success"],
    ]
    assert "secret" not in repr([vars(line) for line in lines]).lower()
    assert [line.levelno for line in lines] == [logging.INFO] * 4 + [logging.DEBUG]
    assert all(vars(line)["ms"] >= 0 for line in lines)


@pytest.mark.anyio
async def test_one_request_too_many_is_503_and_the_next_one_is_served() -> None:
    gate = asyncio.Event()
    pipeline = StubPipeline(before=gate.wait)  # type: ignore[arg-type]
    app = build_app(pipeline, settings=http_settings(max_concurrent_requests=1))
    async with client_of(app) as client:
        first = asyncio.create_task(client.post(CHAT, json=QUESTION))
        await pipeline.started.wait()
        assert counted(app, "videochat_requests_in_flight") == 1
        refused = await client.post(CHAT, json=QUESTION)
        health = await client.get("/health/live")
        gate.set()
        served = await first
        again = await client.post(CHAT, json=QUESTION)

    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "server_overloaded"
    assert int(refused.headers["retry-after"]) >= 1
    assert [health.status_code, served.status_code, again.status_code] == [200, 200, 200]
    assert counted(app, "videochat_requests_total", outcome="overloaded") == 1
    assert counted(app, "videochat_requests_total", outcome="success") == 2
    assert counted(app, "videochat_requests_in_flight") == 0


@pytest.mark.anyio
async def test_refusal_comes_before_the_body() -> None:
    gate = asyncio.Event()
    pipeline = StubPipeline(before=gate.wait)  # type: ignore[arg-type]
    app = build_app(pipeline, settings=http_settings(max_concurrent_requests=1))
    async with serving(app) as url, httpx.AsyncClient() as client:
        first = asyncio.create_task(client.post(url + CHAT, json=QUESTION))
        await pipeline.started.wait()
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n")
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
        writer.close()
        await writer.wait_closed()
        gate.set()
        assert (await first).status_code == 200


@pytest.mark.anyio
async def test_client_that_leaves_while_it_sends_is_cancelled(pipeline: StubPipeline) -> None:
    app = build_app(pipeline)
    async with serving(app) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
        )
        await until(lambda: counted(app, "videochat_requests_in_flight") == 1)
        writer.close()
        await until(lambda: counted(app, "videochat_requests_total", outcome="cancelled") == 1)
    assert not pipeline.requests


@pytest.mark.anyio
async def test_a_client_whose_videos_would_be_refused_is_refused_before_its_body(
    pipeline: StubPipeline,
) -> None:
    asked = []

    def is_full_for(client: str) -> bool:
        asked.append(client)
        return len(asked) == 1

    app = build_app(pipeline, is_full_for=is_full_for)
    async with serving(app) as url, httpx.AsyncClient() as client:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n")
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
            head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        assert b"retry-after: " in head
        assert (await client.post(url + CHAT, json=QUESTION)).status_code == 200

    assert asked == ["address:127.0.0.1"] * 2
    assert counted(app, "videochat_requests_total", outcome="overloaded") == 1


def _noting(clients: list[str]) -> StubPipeline:
    async def note() -> None:
        clients.append(current_client())

    return StubPipeline(before=note)


@pytest.mark.anyio
async def test_clients_without_keys_are_told_apart_by_address() -> None:
    clients: list[str] = []
    app = build_app(_noting(clients))
    for address in ("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::2", "2001:db8:1::1"):
        transport = httpx.ASGITransport(app=app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            invented = {"Authorization": f"Bearer {len(clients)}"}
            await client.post(CHAT, json=QUESTION, headers=invented)

    ipv4, mapped, first, neighbour, elsewhere = clients
    assert ipv4 == mapped == "address:192.0.2.1"
    assert first == neighbour == "address:2001:db8::/64"
    assert elsewhere == "address:2001:db8:1::/64"


@pytest.mark.anyio
async def test_clients_with_keys_are_told_apart_by_them() -> None:
    clients: list[str] = []
    secrets = [secret * 8 for secret in ("one-", "two-")]
    app = build_app(
        _noting(clients), settings=Settings(http=HttpSettings.model_validate({"api_keys": secrets}))
    )
    async with client_of(app) as client:
        for secret in (*secrets, secrets[0]):
            await client.post(CHAT, json=QUESTION, headers={"Authorization": f"Bearer {secret}"})

    one, two, one_again = clients
    assert one == one_again != two
    assert one.startswith("key:")
    assert not any("one-" in client or "two-" in client for client in clients)
