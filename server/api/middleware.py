"""Around every request, outermost first: ``RequestLog``, ``ChatAdmission``, ``BodyLimit``.

Pure ASGI, so that nothing buffers a stream or hides that the client has hung up.
"""

import asyncio
import hashlib
import logging
import re
import secrets
import time
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.disconnect import stopped
from server.api.errors import error_outcome, error_response, log_fault
from server.api.state import note_outcome, noted_outcome
from server.client import client_bound
from server.errors import Overloaded, RequestTimeout, RequestTooLarge, VideoChatError
from server.logs import request_id_bound
from server.metrics import Metrics, Outcome

logger = logging.getLogger(__name__)

CHAT_PATH = "/v1/chat/completions"
REQUEST_ID_HEADER = "x-request-id"

_CLIENT_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Asked every few seconds by machines; they would bury the requests of people.
_PROBES = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
_DRAIN_SECONDS = 2.0
_SLOWEST_BYTES_PER_SECOND = 100_000


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


class BodyLimit:
    """Bounds request bodies: each one in size and time, and those of chats in memory together.

    Answers 413 to one that is too large, whether or not it says its length, 408 to one that comes
    too slowly, and 503 to one for which there is no memory; unread, if it says its length.
    """

    def __init__(
        self, app: ASGIApp, *, max_body_bytes: int, max_bodies_bytes: int, timeout_seconds: float
    ) -> None:
        self.app = app
        self._max_body_bytes = max_body_bytes
        self._timeout_seconds = timeout_seconds
        self._memory = _Memory(max_bodies_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or answer 413, 408 or 503."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared_bytes = _declared_bytes(scope)
        body = _Body(
            declared_bytes=declared_bytes,
            max_bytes=self._max_body_bytes,
            timeout_seconds=self._timeout_seconds,
            memory=self._memory if scope["path"].startswith(CHAT_PATH) else None,
        )
        exchange = _LimitedExchange(receive, send, body)
        try:
            if declared_bytes > self._max_body_bytes:
                error = exchange.refuse(body.too_large())
                note_outcome(scope, error_outcome(error))
                await error_response(error)(scope, exchange.receive, exchange.send)
            else:
                await self.app(scope, exchange.receive, exchange.send)
        finally:
            # Until now: a video may be part of the request's JSON for as long as it is answered.
            body.free()


class _Memory:
    """A number of bytes that requests take and give back."""

    def __init__(self, num_bytes: int) -> None:
        self._num_free_bytes = num_bytes

    def take(self, num_bytes: int) -> bool:
        """Returns whether there was as much; if not, nothing is taken."""
        if num_bytes > self._num_free_bytes:
            return False
        self._num_free_bytes -= num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        self._num_free_bytes += num_bytes


class _Body:
    """What has come of a body, and what it may still cost."""

    def __init__(
        self,
        *,
        declared_bytes: int,
        max_bytes: int,
        timeout_seconds: float,
        memory: _Memory | None,
    ) -> None:
        self._declared_bytes = declared_bytes
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds
        self._memory = memory
        self._num_bytes = 0
        self._num_taken_bytes = 0
        self._began_at: float | None = None
        self.is_complete = False
        """Whether all of it has come, or the client is gone."""

    def expect(self) -> float:
        """Returns until when (of the event loop's clock) the next part must have come.

        Raises:
            Overloaded: there is no memory for it.
        """
        if self._began_at is None:
            self._began_at = asyncio.get_running_loop().time()
            self._take_memory(self._declared_bytes)
        due_seconds = self._num_bytes / _SLOWEST_BYTES_PER_SECOND
        return self._began_at + self._timeout_seconds + due_seconds

    def add(self, message: Message) -> None:
        """Note a part that has come.

        Raises:
            RequestTooLarge: there is too much of it.
            Overloaded: there is no memory for it.
        """
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > self._max_bytes:
            raise self.too_large()
        self._take_memory(self._num_bytes)
        self.is_complete = not message.get("more_body", False)

    def _take_memory(self, num_bytes: int) -> None:
        missing_bytes = num_bytes - self._num_taken_bytes
        if self._memory is None or missing_bytes <= 0:
            return
        if not self._memory.take(missing_bytes):
            raise Overloaded("The server has no memory for another request body. Try again later.")
        self._num_taken_bytes = num_bytes

    def free(self) -> None:
        """Give the memory back."""
        if self._memory is not None:
            self._memory.give_back(self._num_taken_bytes)

    def too_large(self) -> RequestTooLarge:
        return RequestTooLarge(
            f"The request body is larger than {self._max_bytes} bytes. Send a shorter or "
            "smaller video, or an http(s) URL instead of a data: URL."
        )

    def too_slow(self) -> RequestTimeout:
        return RequestTimeout(
            f"The request body is more than {self._timeout_seconds:g} s behind "
            f"{_SLOWEST_BYTES_PER_SECOND} bytes a second. Send a smaller video, or an http(s) URL "
            "instead of a data: URL."
        )


class _LimitedExchange:
    """Both directions of a request whose body is limited."""

    def __init__(self, receive: Receive, send: Send, body: _Body) -> None:
        self._receive = receive
        self._send = send
        self._body = body
        self._refused = False

    def refuse(self, error: VideoChatError) -> VideoChatError:
        """Returns the error for the client; from here on the body is of no interest."""
        self._refused = True
        return error

    async def receive(self) -> Message:
        if self._refused or self._body.is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._body.expect()):
                message = await self._receive()
            self._body.add(message)
        except TimeoutError:
            raise self.refuse(self._body.too_slow()) from None
        except VideoChatError as error:
            self.refuse(error)
            raise
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


def _client_key(scope: Scope) -> str:
    """Returns what tells this client from others, without the secret that may be in it."""
    credentials = Headers(scope=scope).get("authorization")
    if credentials is not None:
        return "key:" + hashlib.sha256(credentials.encode("latin-1")).hexdigest()
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


def _declared_bytes(scope: Scope) -> int:
    """Returns what Content-Length says; 0 if it says nothing or nonsense."""
    declared = Headers(scope=scope).get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) < 20 else 0


def _is_chat(scope: Scope) -> bool:
    return (scope["type"], scope.get("method"), scope.get("path")) == ("http", "POST", CHAT_PATH)


def _outcome_of_status(status: int | None) -> Outcome:
    """Returns how a request ended that nobody noted the outcome of; None is no answer at all."""
    if status is None:
        return "cancelled"
    if status < 400:
        return "success"
    return "client_error" if status < 500 else "internal_error"
