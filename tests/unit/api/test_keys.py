"""Who is let in where keys are set, and that nothing of a request is looked at before."""

import asyncio
import hashlib
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI, Request

from server.api.keys import OPEN_PATHS
from server.api.state import owner_of
from server.settings import HttpSettings, Settings
from tests.unit.api.stubs import (
    QUESTION,
    StubPipeline,
    build_app,
    client_of,
    counted,
    serving,
)

FIRST, SECOND = "first-key-of-ours", "second-key-of-ours"
GOOD = {"authorization": f"Bearer {FIRST}"}
CHAT = "/v1/chat/completions"
pytestmark = pytest.mark.anyio


@pytest.fixture
def app(pipeline: StubPipeline) -> FastAPI:
    settings = Settings(http=HttpSettings.model_validate({"api_keys": [FIRST, SECOND]}))
    return build_app(pipeline, settings=settings)


@pytest.mark.parametrize(
    "value", [f"Bearer {FIRST}", f"Bearer {SECOND}", f"bearer {FIRST}", f"BEARER {SECOND}"]
)
async def test_every_key_opens(app: FastAPI, value: str) -> None:
    async with client_of(app) as client:
        response = await client.post(CHAT, json=QUESTION, headers={"authorization": value})
    assert response.status_code == 200


WRONG: list[list[tuple[bytes, bytes]]] = [
    [],
    *(
        [(b"authorization", value)]
        for value in (
            b"",
            b"Bearer",
            b"Bearer ",
            b"Bearer wrong-key-of-ours",
            b"Bearer " + FIRST[:-1].encode(),
            b"Bearer " + FIRST.encode() + b"x",
            b"Bearer  " + FIRST.encode(),
            b"Bearer " + FIRST.upper().encode(),
            b"Basic " + FIRST.encode(),
            FIRST.encode(),
            b"Bearer " + FIRST.encode() + b"," + SECOND.encode(),
            b"Bearer \xff\xfe",
            b"Bearer " + b"x" * 100_000,
        )
    ),
    [(b"authorization", b"Bearer " + FIRST.encode())] * 2,
    [(b"x-api-key", FIRST.encode())],
]


@pytest.mark.parametrize("headers", WRONG, ids=range(len(WRONG)))
async def test_everything_else_gets_one_answer(app: FastAPI, headers: Any) -> None:
    async with client_of(app) as client:
        response = await client.get(f"/v1/models?api_key={FIRST}", headers=headers)
        plain = await client.get("/v1/models")
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]
    assert response.content == plain.content
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        "invalid_api_key",
        None,
    )


async def test_every_route_needs_a_key_but_those_for_machines(app: FastAPI) -> None:
    async with client_of(app) as client:
        document = (await client.get("/openapi.json", headers=GOOD)).json()
        for path in (*document["paths"], "/openapi.json", "/", "/docs", "/v2", "//v1/models"):
            for method in ("GET", "POST", "OPTIONS", "HEAD", "DELETE", "TRACE"):
                status = (await client.request(method, path)).status_code
                assert (status == 401) == (path not in OPEN_PATHS), (method, path)
    assert {path for path in document["paths"] if path.startswith("/v1/")}


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: x/health?",
        b"GET /v1/models HTTP/1.1\r\nHost: x/health#",
        b"GET http://x/v1/models HTTP/1.1\r\nHost: x",
        b"GET /%76%31/models HTTP/1.1\r\nHost: x",
        b"GET /v1%2fmodels HTTP/1.1\r\nHost: x",
        b"GET /v1/models?/health HTTP/1.1\r\nHost: x",
        b"GET /health/../v1/models HTTP/1.1\r\nHost: x",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Forwarded-Prefix: /health",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Original-URL: /health",
    ],
)
async def test_no_way_to_write_a_request_goes_around_the_key(
    app: FastAPI, request_line: bytes
) -> None:
    async with serving(app) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_line + b"\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    assert b" 401 " in answer.splitlines()[0]
    assert b'"tiny"' not in answer


async def test_a_body_without_a_key_is_not_read(app: FastAPI, pipeline: StubPipeline) -> None:
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": b"x", "more_body": True}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
    await app(scope, receive, send)
    assert sent[0]["status"] == 401
    assert taken == 0
    assert not pipeline.requests
    assert counted(app, "videochat_requests_total", outcome="client_error") == 0


async def test_the_owner_is_a_digest_of_the_key(app: FastAPI) -> None:
    owners = []

    @app.get("/who")
    async def who(request: Request) -> None:
        owners.append(owner_of(request))

    async with client_of(app) as client:
        for key in (FIRST, SECOND, FIRST):
            await client.get("/who", headers={"authorization": f"Bearer {key}"})
    assert owners[0] == owners[2] == hashlib.sha256(FIRST.encode()).hexdigest()
    assert owners[1] != owners[0]


async def test_without_keys_everything_is_open(pipeline: StubPipeline) -> None:
    async with client_of(build_app(pipeline)) as client:
        assert (await client.get("/v1/models")).status_code == 200
        wrong = {"authorization": "Bearer whatever"}
        assert (await client.get("/v1/models", headers=wrong)).status_code == 200


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append  # type: ignore[method-assign]
    logger = logging.getLogger("server")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


async def test_keys_are_in_no_log_or_text(app: FastAPI, records: list[logging.LogRecord]) -> None:
    async with client_of(app) as client:
        await client.get("/v1/models", headers=GOOD)
        await client.get("/v1/models", headers={"authorization": f"Bearer {FIRST}x"})
    assert [vars(record)["status"] for record in records] == [200, 401]
    assert FIRST not in repr([vars(record) for record in records])
    settings = app.state.settings
    assert FIRST not in f"{settings!r} {settings} {settings.model_dump_json()}"


async def test_the_openai_client_sends_its_key(app: FastAPI) -> None:
    async with serving(app) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=SECOND) as client:
            assert [model.id async for model in client.models.list()] == ["tiny"]
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.models.list()
    assert caught.value.code == "invalid_api_key"


async def test_probes_need_no_key(app: FastAPI) -> None:
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as client:
        for path in ("/health/live", "/health", "/metrics"):
            assert (await client.get(path)).status_code == 200
