"""What request bodies may cost: bytes, time, and memory together.

Pure ASGI, as all that goes around a request is.
"""

import asyncio
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.disconnect import stopped
from server.api.errors import error_outcome, error_response
from server.api.middleware import CHAT_PATH, FORM_BYTES, declared_bytes, is_upload
from server.api.multipart import FILE_FIELD
from server.api.state import note_outcome
from server.errors import Overloaded, RequestTimeout, RequestTooLarge, VideoChatError

_DRAIN_SECONDS = 2.0
_SLOWEST_BYTES_PER_SECOND = 100_000


class BodyLimit:
    """Bounds request bodies: each one in size and time, and those of chats in memory together.

    Answers 413 to one that is too large, whether or not it says its length, 408 to one that comes
    too slowly, and 503 to one for which there is no memory; unread, if it says its length.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body_bytes: int,
        max_upload_bytes: int,
        max_bodies_bytes: int,
        timeout_seconds: float,
        on_large_upload: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare.

        Args:
            app: what is inside.
            max_body_bytes: limit for everything but uploads.
            max_upload_bytes: limit for the form that brings a file. It goes to disk as it comes,
                and has a deadline of its own there.
            max_bodies_bytes: memory for the bodies of all chats in flight.
            timeout_seconds: how far a body may be behind the slowest rate allowed.
            on_large_upload: called when an upload is refused unread.
        """
        self.app = app
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes
        self._timeout_seconds = timeout_seconds
        self._on_large_upload = on_large_upload
        self._memory = _Memory(max_bodies_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or answer 413, 408 or 503."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        uploads = is_upload(scope)
        expected_bytes = declared_bytes(Headers(scope=scope))
        max_bytes = self._max_upload_bytes if uploads else self._max_body_bytes
        body = _Body(
            declared_bytes=expected_bytes,
            max_bytes=max_bytes,
            timeout_seconds=None if uploads else self._timeout_seconds,
            memory=self._memory if scope["path"].startswith(CHAT_PATH) else None,
            is_upload=uploads,
        )
        exchange = _LimitedExchange(receive, send, body)
        try:
            if expected_bytes > max_bytes:
                error = exchange.refuse(body.too_large())
                note_outcome(scope, error_outcome(error))
                if uploads:
                    self._on_large_upload()
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
        timeout_seconds: float | None,
        memory: _Memory | None,
        is_upload: bool,
    ) -> None:
        self._declared_bytes = declared_bytes
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds
        self._memory = memory
        self._is_upload = is_upload
        self._num_bytes = 0
        self._num_taken_bytes = 0
        self._began_at: float | None = None
        self.is_complete = False
        """Whether all of it has come, or the client is gone."""

    def expect(self) -> float | None:
        """Returns until when (of the event loop's clock) the next part must have come, if ever.

        Raises:
            Overloaded: there is no memory for it.
        """
        if self._began_at is None:
            self._began_at = asyncio.get_running_loop().time()
            self._take_memory(self._declared_bytes)
        if self._timeout_seconds is None:
            return None
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
        if self._is_upload:
            return RequestTooLarge(
                f"The file is larger than {self._max_bytes - FORM_BYTES} bytes. Upload a shorter "
                "or smaller video.",
                param=FILE_FIELD,
            )
        return RequestTooLarge(
            f"The request body is larger than {self._max_bytes} bytes. Send a shorter or "
            "smaller video, or in a chat an http(s) URL instead of a data: URL."
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
