"""Around every request: ``RequestLog``, ``ApiKeyGate``, ``ChatAdmission``, ``BodyLimit``.

Pure ASGI, so that nothing buffers a stream or hides that the client has hung up.
"""

import asyncio
import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.disconnect import stopped
from server.api.errors import error_outcome, error_response, log_fault
from server.api.keys import ApiKeyGate
from server.api.state import note_outcome, noted_outcome
from server.errors import Overloaded, RequestTooLarge
from server.logs import request_id_bound
from server.metrics import Metrics, Outcome
from server.settings import Settings

logger = logging.getLogger(__name__)

CHAT_PATH = "/v1/chat/completions"
COUNT_PATH = f"{CHAT_PATH}/input_tokens"
"""Fetches and probes videos as a chat request does, so it is admitted as one."""
FILES_PATH = "/v1/files"
FORM_BYTES = 65_536
"""What the form around an uploaded file may have."""
REQUEST_ID_HEADER = "x-request-id"

_CLIENT_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Asked every few seconds by machines; they would bury the requests of people.
_PROBES = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
_DRAIN_SECONDS = 2.0


def middleware(settings: Settings, metrics: Metrics) -> list[Middleware]:
    """Returns what goes around every request, outermost first."""
    http = settings.http
    return [
        Middleware(RequestLog),
        Middleware(ApiKeyGate, keys=http.api_keys),
        Middleware(ChatAdmission, metrics=metrics, max_requests=http.max_concurrent_requests),
        Middleware(
            BodyLimit,
            max_body_bytes=http.max_body_bytes,
            max_upload_bytes=settings.files.max_file_bytes + FORM_BYTES,
        ),
    ]


class RequestLog:
    """Gives every request an id, logs a line at its end, and answers what nothing else caught."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope)
        with request_id_bound(request_id):
            await _LoggedRequest(scope, send, request_id).run(self.app, receive)


class _LoggedRequest:
    """One request on its way through ``RequestLog``."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self._status: int | None = None
        self._started_at = time.monotonic()

    async def run(self, app: ASGIApp, receive: Receive) -> None:
        try:
            await app(self._scope, receive, self._send_with_id)
        except Exception as error:
            note_outcome(self._scope, error_outcome(error))
            log_fault(error)
            if self._status is not None:
                raise  # too late for an answer; the server closes the connection
            await error_response(error)(self._scope, receive, self._send_with_id)
        except asyncio.CancelledError:
            note_outcome(self._scope, "cancelled")
            raise
        finally:
            self._log()

    async def _send_with_id(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            MutableHeaders(scope=message)[REQUEST_ID_HEADER] = self._request_id
        await self._send(message)

    def _log(self) -> None:
        route = getattr(self._scope.get("route"), "path", "unmatched")
        method = self._scope["method"]
        logger.log(
            logging.DEBUG if route in _PROBES else logging.INFO,
            "request",
            extra={
                "method": method if method in _METHODS else "other",
                "route": route,
                "status": self._status,
                "ms": round((time.monotonic() - self._started_at) * 1000, 1),
                "outcome": noted_outcome(self._scope) or _outcome_of_status(self._status),
            },
        )


class ChatAdmission:
    """Counts chat requests, and refuses one too many before its body is read."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, max_requests: int) -> None:
        self.app = app
        self._metrics = metrics
        self._max_requests = max_requests
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or answer 503."""
        if not _is_chat(scope):
            await self.app(scope, receive, send)
            return
        status: int | None = None

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self._metrics.request() as record:
            if self._running >= self._max_requests:
                await self._refuse(scope, receive, send)
                record.outcome = "overloaded"
                return
            self._running += 1
            try:
                await self.app(scope, receive, send_noting_status)
            finally:
                self._running -= 1
                record.outcome = noted_outcome(scope) or _outcome_of_status(status)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = Overloaded(
            f"The server is busy with {self._max_requests} requests. Try again later."
        )
        note_outcome(scope, error_outcome(error))
        await error_response(error)(scope, receive, send)


class BodyLimit:
    """Answers 413 to a body above the limit, whether or not it says its length."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, max_upload_bytes: int) -> None:
        """Prepare.

        Args:
            app: what is inside.
            max_body_bytes: limit for everything but uploads.
            max_upload_bytes: limit for the form that brings a file.
        """
        self.app = app
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or answer 413."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        max_bytes = self._max_upload_bytes if _is_upload(scope) else self._max_body_bytes
        exchange = _LimitedExchange(receive, send, max_bytes)
        if declared_bytes(Headers(scope=scope)) > max_bytes:
            error = exchange.refusal()
            note_outcome(scope, error_outcome(error))
            await error_response(error)(scope, exchange.receive, exchange.send)
        else:
            await self.app(scope, exchange.receive, exchange.send)


class _LimitedExchange:
    """Both directions of a request whose body is counted."""

    def __init__(self, receive: Receive, send: Send, max_body_bytes: int) -> None:
        self._receive = receive
        self._send = send
        self._max_body_bytes = max_body_bytes
        self._num_bytes = 0
        self._refused = False

    def refusal(self) -> RequestTooLarge:
        """Returns the error for the client; from here on the body is of no interest."""
        self._refused = True
        return RequestTooLarge(
            f"The request body is larger than {self._max_body_bytes} bytes. Send a shorter or "
            "smaller video, or in a chat an http(s) URL instead of a data: URL."
        )

    async def receive(self) -> Message:
        message = await self._receive()
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > self._max_body_bytes and not self._refused:
            raise self.refusal()
        return message

    async def send(self, message: Message) -> None:
        if not self._refused:
            await self._send(message)
        elif message["type"] == "http.response.start":
            MutableHeaders(scope=message)["connection"] = "close"
            await self._send(message)
        else:
            await self._send({**message, "more_body": True})
            if not message.get("more_body"):
                await self._drain()
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drain(self) -> None:
        """Throw away for a moment what the client still sends.

        To close a connection with unread data resets it, and the client may lose the answer.
        """
        reading = asyncio.create_task(self._read_on())
        try:
            await asyncio.wait({reading}, timeout=_DRAIN_SECONDS)
        finally:
            await stopped(reading)

    async def _read_on(self) -> None:
        more = True
        while more:
            more = (await self._receive()).get("more_body", False)


def _request_id(scope: Scope) -> str:
    """Returns the client's own id if it is harmless, or a new one."""
    given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    return given if _CLIENT_REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(16)}"


def declared_bytes(headers: Headers) -> int:
    """Returns what Content-Length says; 0 if it says nothing or nonsense."""
    declared = headers.get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) < 20 else 0


def _is_chat(scope: Scope) -> bool:
    if (scope["type"], scope.get("method")) != ("http", "POST"):
        return False
    return scope.get("path") in (CHAT_PATH, COUNT_PATH)


def _is_upload(scope: Scope) -> bool:
    return (scope["method"], scope["path"]) == ("POST", FILES_PATH)


def _outcome_of_status(status: int | None) -> Outcome:
    """Returns how a request ended that nobody noted the outcome of; None is no answer at all."""
    if status is None:
        return "cancelled"
    if status < 400:
        return "success"
    return "client_error" if status < 500 else "internal_error"
