"""OpenAI's error shape, and the only place that knows HTTP status codes for this server's faults.

Texts are this server's own: what another library says in an exception stays in the log, as it may
hold addresses, paths or the client's data.
"""

import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from server.api.state import note_outcome
from server.errors import (
    EngineUnavailable,
    FileQuotaExceeded,
    FilesUnavailable,
    HeadersTooLarge,
    InternalFault,
    ModelNotFound,
    Overloaded,
    RequestError,
    RequestTimeout,
    RequestTooLarge,
    StorageFull,
    Unauthenticated,
    UploadNotFound,
    VideoChatError,
)
from server.metrics import Outcome

logger = logging.getLogger(__name__)

_Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]

ENGINE_RETRY_AFTER_SECONDS = 5
CLIENT_CLOSED_REQUEST = 499
"""Nobody receives it; it is what proxies log when the client hangs up."""
MAX_MESSAGE_CHARACTERS = 1000

_INTERNAL_MESSAGE = (
    "The server failed to answer this request. "
    "The cause is in its log, under this response's x-request-id."
)


@dataclass(frozen=True, slots=True)
class _Row:
    """How one kind of error is told to a client, and how it is counted."""

    status: int
    type: str
    outcome: Outcome
    code: str | None = None
    """Code for errors that do not carry their own."""


_INVALID_REQUEST = "invalid_request_error"
_SERVER_ERROR = "server_error"
_TABLE: dict[type[Exception], _Row] = {
    Unauthenticated: _Row(401, _INVALID_REQUEST, "client_error"),
    ModelNotFound: _Row(404, _INVALID_REQUEST, "client_error"),
    UploadNotFound: _Row(404, _INVALID_REQUEST, "client_error"),
    FilesUnavailable: _Row(404, _INVALID_REQUEST, "client_error"),
    RequestTimeout: _Row(408, _INVALID_REQUEST, "client_error"),
    HeadersTooLarge: _Row(431, _INVALID_REQUEST, "client_error"),
    FileQuotaExceeded: _Row(413, _INVALID_REQUEST, "client_error"),
    RequestTooLarge: _Row(413, _INVALID_REQUEST, "client_error"),
    RequestError: _Row(400, _INVALID_REQUEST, "client_error"),
    StorageFull: _Row(507, _SERVER_ERROR, "overloaded", "insufficient_storage"),
    Overloaded: _Row(503, _SERVER_ERROR, "overloaded", "server_overloaded"),
    EngineUnavailable: _Row(503, _SERVER_ERROR, "engine_error", "engine_unavailable"),
    InternalFault: _Row(500, _SERVER_ERROR, "internal_error", "internal_error"),
}
_INTERNAL = _TABLE[InternalFault]


def _row(error: BaseException) -> _Row:
    for kind in type(error).__mro__:
        if kind in _TABLE:
            return _TABLE[kind]
    return _INTERNAL


def error_status(error: BaseException) -> int:
    """Returns the HTTP status for ``error``; 500 for everything that is none of this server's."""
    return _row(error).status


def error_outcome(error: BaseException) -> Outcome:
    """Returns how a request that ends with ``error`` is counted."""
    return _row(error).outcome


def error_body(error: BaseException) -> dict[str, Any]:
    """Returns ``{"error": {"message", "type", "param", "code"}}`` for ``error``."""
    row = _row(error)
    if row is _INTERNAL:
        return _body(_INTERNAL_MESSAGE, row.type, None, row.code)
    if isinstance(error, RequestError):
        return _body(str(error), row.type, error.param, error.code)
    return _body(str(error), row.type, None, row.code)


def _body(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = message[:MAX_MESSAGE_CHARACTERS] + "..."
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _headers(error: BaseException) -> dict[str, str]:
    if isinstance(error, Overloaded):
        return {"retry-after": str(error.retry_after_seconds)}
    if isinstance(error, EngineUnavailable):
        return {"retry-after": str(ENGINE_RETRY_AFTER_SECONDS)}
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    # The openai client repeats every 5xx; a bug or a full disk would only be met again.
    is_lasting = _row(error) is _INTERNAL or isinstance(error, StorageFull)
    return {"x-should-retry": "false"} if is_lasting else {}


class JsonResponse(Response):
    """A JSON body in ASCII, which no proxy, log or lone surrogate can garble."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Returns ``content`` as compact JSON."""
        return compact_json(content)


def compact_json(content: Any) -> bytes:
    """Returns ``content`` as compact ASCII JSON.

    Raises:
        ValueError: it holds a number that JSON does not have, such as NaN.
    """
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def error_response(error: BaseException) -> Response:
    """Returns the HTTP response for ``error``."""
    return JsonResponse(error_body(error), error_status(error), _headers(error))


def log_fault(error: BaseException) -> None:
    """Write the traceback of ``error`` to the log if it is the server's own fault."""
    if _row(error) is _INTERNAL:
        logger.error("a request failed by a fault of the server", exc_info=error)


async def _on_error(request: Request, error: Exception) -> Response:
    note_outcome(request.scope, error_outcome(error))
    log_fault(error)
    return error_response(error)


_HTTP_ERRORS: Mapping[int, tuple[str, str]] = {
    404: ("unknown_url", "There is nothing at this URL. Chat is at /v1/chat/completions."),
    416: ("range_not_satisfiable", "The Range header asks for bytes that the file does not have."),
    405: ("method_not_allowed", "This URL does not take this HTTP method; see the Allow header."),
}


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Answers what starlette and FastAPI raise themselves, and ``UnsupportedMediaType``."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    note_outcome(request.scope, "client_error" if status < 500 else "internal_error")
    if isinstance(error, UnsupportedMediaType):
        code, message = "unsupported_media_type", error.detail
    else:
        code, message = _HTTP_ERRORS.get(status, ("http_error", HTTPStatus(status).phrase))
    kind = _INVALID_REQUEST if status < 500 else _SERVER_ERROR
    headers = {"allow": _allowed_methods(request)} if status == 405 else error.headers
    return JsonResponse(_body(message, kind, None, code), status, headers)


def _allowed_methods(request: Request) -> str:
    """Returns the methods of all routes to this path; starlette names those of the first one."""
    methods: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            methods.update(getattr(route, "methods", None) or ())
    return ", ".join(sorted(methods))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    """Answers a path or query parameter of the wrong form; without echo, which could be huge."""
    note_outcome(request.scope, "client_error")
    message = "A parameter of the URL has a wrong value."
    return JsonResponse(_body(message, _INVALID_REQUEST, None, "invalid_value"), 400)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    note_outcome(request.scope, "cancelled")
    return Response(status_code=CLIENT_CLOSED_REQUEST)


class UnsupportedMediaType(HTTPException):
    """The body is of a kind that this server does not read; the detail is for the client."""

    def __init__(self, detail: str) -> None:
        super().__init__(415, detail)


def exception_handlers() -> dict[int | type[Exception], _Handler]:
    """Returns the handlers for ``FastAPI(exception_handlers=...)``."""
    return {
        VideoChatError: _on_error,
        HTTPException: _on_http_error,
        RequestValidationError: _on_validation_error,
        ClientDisconnect: _on_disconnect,
        # Only for faults in the middleware itself; RequestLog has caught the others before.
        Exception: _on_error,
    }
