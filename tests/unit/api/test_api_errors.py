import json
import logging

import pytest
from starlette.exceptions import HTTPException

from server.api.errors import (
    MAX_MESSAGE_CHARACTERS,
    compact_json,
    error_body,
    error_outcome,
    error_response,
)
from server.errors import (
    ConfigurationError,
    ContextLengthExceeded,
    EngineUnavailable,
    HeadersTooLarge,
    InternalFault,
    InvalidRequest,
    InvalidVideo,
    ModelNotFound,
    Overloaded,
    RequestTimeout,
    RequestTooLarge,
    VideoUnreachable,
)
from server.settings import Settings
from tests.unit.api.stubs import QUESTION, StubEngine, StubPipeline, build_app, client_of

SERVER_ERRORS = [
    (Overloaded("Busy."), 503, "server_overloaded", "overloaded"),
    (EngineUnavailable("Loading."), 503, "engine_unavailable", "engine_error"),
    (InternalFault("secret"), 500, "internal_error", "internal_error"),
    (ConfigurationError("secret"), 500, "internal_error", "internal_error"),
    (ValueError("secret"), 500, "internal_error", "internal_error"),
]
REQUEST_ERRORS = [
    (InvalidRequest("m", param="n"), 400, "invalid_value"),
    (InvalidVideo("m"), 400, "invalid_video"),
    (VideoUnreachable("m"), 400, "video_url_unreachable"),
    (ContextLengthExceeded("m"), 400, "context_length_exceeded"),
    (ModelNotFound("m"), 404, "model_not_found"),
    (RequestTimeout("m"), 408, "request_timeout"),
    (RequestTooLarge("m"), 413, "request_too_large"),
    (HeadersTooLarge("m"), 431, "headers_too_large"),
]


@pytest.mark.parametrize(("error", "status", "code"), REQUEST_ERRORS)
def test_request_errors_name_field_and_code(error: InvalidRequest, status: int, code: str) -> None:
    response = error_response(error)

    assert response.status_code == status
    assert json.loads(response.body) == {
        "error": {
            "message": "m",
            "type": "invalid_request_error",
            "param": error.param,
            "code": code,
        }
    }
    assert error_outcome(error) == "client_error"


@pytest.mark.parametrize(("error", "status", "code", "outcome"), SERVER_ERRORS)
def test_server_errors_have_all_four_keys_and_no_secret(
    error: Exception, status: int, code: str, outcome: str
) -> None:
    response = error_response(error)

    body = json.loads(response.body)["error"]
    assert (response.status_code, body["type"], body["param"]) == (status, "server_error", None)
    assert (body["code"], error_outcome(error)) == (code, outcome)
    assert "secret" not in body["message"]


def test_clients_are_told_when_to_come_back_and_when_not() -> None:
    assert error_response(Overloaded("x", retry_after_seconds=7)).headers["retry-after"] == "7"
    assert "retry-after" in error_response(EngineUnavailable("x")).headers
    assert error_response(InternalFault("x")).headers["x-should-retry"] == "false"
    assert error_response(ValueError()).headers["x-should-retry"] == "false"


def test_body_is_short_and_ascii_whatever_the_message() -> None:
    body = error_response(InvalidRequest("\ud800\u2028é" * 10_000)).body
    assert bytes(body).isascii()
    assert len(error_body(InvalidRequest("x" * 10_000))["error"]["message"]) < (
        MAX_MESSAGE_CHARACTERS + 10
    )


def test_numbers_that_json_does_not_have_are_never_sent() -> None:
    with pytest.raises(ValueError, match="JSON"):
        compact_json({"x": float("nan")})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "unknown_url"),
        ("POST", "/v1/chat/completions/", 404, "unknown_url"),
        ("POST", "/v1//chat/completions", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_unknown_urls_and_methods_are_told_in_the_same_shape(
    pipeline: StubPipeline, method: str, path: str, status: int, code: str
) -> None:
    async with client_of(build_app(pipeline)) as client:
        response = await client.request(method, path)

    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    assert status != 405 or response.headers["allow"]
    assert response.headers["x-request-id"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/files", "GET, HEAD, POST"),
        ("PUT", "/v1/files/file-1", "DELETE, GET, HEAD"),
        ("POST", "/v1/files/file-1/content", "GET, HEAD"),
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models/a/b", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ],
)
async def test_allow_names_every_method_of_a_path(
    pipeline: StubPipeline, method: str, path: str, allowed: str
) -> None:
    async with client_of(build_app(pipeline)) as client:
        response = await client.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)


@pytest.mark.anyio
async def test_foreign_exception_is_logged_and_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = StubPipeline(error=ValueError("/home/secret at 0x7f00"))
    async with client_of(build_app(pipeline)) as client:
        response = await client.post("/v1/chat/completions", json=QUESTION)

    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert response.headers["x-should-retry"] == "false"
    assert response.headers["x-request-id"]
    (fault,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert fault.exc_info is not None
    assert "secret" in str(fault.exc_info[1])


@pytest.mark.anyio
async def test_wrong_path_parameter_and_foreign_http_error_have_the_shape_too() -> None:
    app = build_app(StubPipeline())

    @app.get("/number/{number}")
    async def number(number: int) -> None:
        raise HTTPException(418, "secret")

    async with client_of(app) as client:
        wrong, teapot = await client.get("/number/x"), await client.get("/number/1")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_value")
    assert (teapot.status_code, teapot.json()["error"]["code"]) == (418, "http_error")
    assert "secret" not in teapot.text


@pytest.mark.anyio
async def test_engine_that_is_not_there_yet_is_503_with_retry_after() -> None:
    class Loading(StubEngine):
        @property
        def facts(self):  # type: ignore[no-untyped-def,override]
            raise EngineUnavailable("The engine is loading.")

        @facts.setter
        def facts(self, value: object) -> None:
            pass

    app = build_app(StubPipeline(), engine=Loading(), settings=Settings())
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json=QUESTION)
    assert response.status_code == 503
    assert response.headers["retry-after"]
