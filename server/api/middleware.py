"""Around every request: ``RequestLog``, ``ApiKeyGate``, ``ChatAdmission``, ``BodyLimit``.

Pure ASGI, so that nothing buffers a stream or hides that the client has hung up.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.errors import error_outcome, error_response, log_fault
from server.api.state import note_outcome, noted_outcome, owner_in
from server.client import client_bound
from server.errors import Overloaded
from server.logs import request_id_bound
from server.metrics import Metrics, Outcome

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
    """Counts chat requests, and refuses one too many before its body is read.

    Says for whom each one is served: for the API key that it comes with, which counts whether or
    not anybody checks it, or else for its address.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        max_requests: int,
        is_full_for: Callable[[str], bool] = lambda client: False,
    ) -> None:
        self.app = app
        self._metrics = metrics
        self._max_requests = max_requests
        self._is_full_for = is_full_for
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

        client = _client_key(scope)
        with self._metrics.request() as record, client_bound(client):
            refusal = self._refusal(client)
            if refusal is not None:
                note_outcome(scope, error_outcome(refusal))
                await error_response(refusal)(scope, receive, send)
                record.outcome = "overloaded"
                return
            self._running += 1
            try:
                await self.app(scope, receive, send_noting_status)
            finally:
                self._running -= 1
                record.outcome = noted_outcome(scope) or _outcome_of_status(status)

    def _refusal(self, client: str) -> Overloaded | None:
        if self._running >= self._max_requests:
            return Overloaded(
                f"The server is busy with {self._max_requests} requests. Try again later."
            )
        if self._is_full_for(client):
            return Overloaded("Too many videos are waiting to be decoded. Try again later.")
        return None


def _request_id(scope: Scope) -> str:
    """Returns the client's own id if it is harmless, or a new one."""
    given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    return given if _CLIENT_REQUEST_ID.fullmatch(given) else new_request_id()


def new_request_id() -> str:
    """Returns an id that no other request has."""
    return f"req-{secrets.token_hex(16)}"


def _client_key(scope: Scope) -> str:
    """Returns what tells this client from others: the owner of its key, or its address.

    Without API keys anybody could have as many as they like, so they say nothing.
    """
    if owner := owner_in(scope):
        return f"key:{owner}"
    host, _ = scope.get("client") or ("", 0)
    try:
        address = ip_address(host)
    except ValueError:
        return f"address:{host}"
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if isinstance(address, IPv6Address):
        # Whoever has one address of a network of this size has them all.
        return f"address:{IPv6Network((int(address), 64), strict=False)}"
    return f"address:{address}"


def declared_bytes(headers: Headers) -> int:
    """Returns what Content-Length says; 0 if it says nothing or nonsense."""
    declared = headers.get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) < 20 else 0


def _is_chat(scope: Scope) -> bool:
    if (scope["type"], scope.get("method")) != ("http", "POST"):
        return False
    return scope.get("path") in (CHAT_PATH, COUNT_PATH)


def is_upload(scope: Scope) -> bool:
    """Returns whether the request brings a file to be kept."""
    return (scope["method"], scope["path"]) == ("POST", FILES_PATH)


def _outcome_of_status(status: int | None) -> Outcome:
    """Returns how a request ended that nobody noted the outcome of; None is no answer at all."""
    if status is None:
        return "cancelled"
    if status < 400:
        return "success"
    return "client_error" if status < 500 else "internal_error"
