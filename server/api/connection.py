"""What a connection may cost outside of its requests' bodies: header bytes, and silence.

Nothing of an application runs before a request's headers are there, nor while a client does not
read, so these bounds are part of the protocol.
"""

import asyncio
import logging
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from server.api.errors import error_outcome, error_response
from server.api.middleware import REQUEST_ID_HEADER, new_request_id
from server.api.protocol import FirstByteProtocol
from server.errors import (
    HeadersTooLarge,
    InvalidRequest,
    Overloaded,
    RequestTimeout,
    VideoChatError,
)
from server.logs import request_id_bound
from server.settings import HttpSettings

logger = logging.getLogger(__name__)

MAX_HEADER_BYTES = 65_536
"""What the request line, headers and trailers of a request may have."""
MAX_HEADERS = 100
MAX_WAITING_REQUESTS = 100
"""Requests of one connection that wait for the answer to another."""
_DRAIN_SECONDS = 2.0


def bounded_protocol(settings: HttpSettings) -> type["BoundedProtocol"]:
    """Returns a protocol with the deadlines of ``settings``, for ``uvicorn.Config(http=...)``."""

    class Protocol(BoundedProtocol):
        header_timeout_seconds = settings.header_timeout_seconds
        write_timeout_seconds = settings.write_timeout_seconds

    return Protocol


class BoundedProtocol(FirstByteProtocol):
    """Ends connections whose headers are too large or too slow, and those that nobody reads.

    Answers 431, 408, and 400 to what is no HTTP, in OpenAI's shape; where an answer could be taken
    for that to another request it only closes the connection.
    """

    header_timeout_seconds: float
    write_timeout_seconds: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Prepare as upstream does."""
        super().__init__(*args, **kwargs)
        self._is_refused = False
        self._refusal: VideoChatError | None = None
        """Why a callback stopped the parser."""
        self._in_headers = True
        """Whether no body is due: headers are, or nothing."""
        self._has_begun = False
        """Whether a part of a request is there."""
        self._num_headers = 0
        self._num_header_bytes = 0
        self._num_silent_bytes = 0
        """Bytes of which nothing came but parts of a header, or of what is around a body."""
        self._running: RequestResponseCycle | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    # From the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called first. A client that then sends nothing is late, too."""
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called last."""
        for timer in (self._header_timer, self._write_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        # Upstream tells only the newest of several requests sent at once, which is not served yet.
        self._disconnect(self._running)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        if self._has_ended():
            return
        self._num_silent_bytes += len(data)
        super().data_received(data)
        if self._has_ended():
            return
        if self._num_silent_bytes > MAX_HEADER_BYTES:
            self._refuse(_headers_too_large())
        elif not self._is_answering():
            self._expect_headers()

    def pause_writing(self) -> None:
        """Called when much is unsent because the client does not read."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Called when the client has read."""
        super().resume_writing()
        if self._write_timer is not None and not self.transport.is_closing():
            self._write_timer.cancel()
            self._write_timer = None

    # From the parser

    def on_message_begin(self) -> None:
        """Called at the first byte of a request."""
        super().on_message_begin()
        self._has_begun = True
        self._num_headers = self._num_header_bytes = self._num_silent_bytes = 0
        self._expect_headers()

    def on_url(self, url: bytes) -> None:
        """Called with a part of the URL."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called with each header, and with each trailer after a body in chunks."""
        self._num_headers += 1
        self._count(len(name) + len(value) + len(b": \r\n"))
        if self._in_headers:  # a trailer must not change what has been looked at
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Called when a request can be started."""
        super().on_headers_complete()
        if len(self.pipeline) > MAX_WAITING_REQUESTS:
            # There is no answer while another one is under way: the connection is closed.
            raise Overloaded("Too many requests wait on this connection.")
        self._in_headers = False
        self._num_silent_bytes = 0
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def on_body(self, body: bytes) -> None:
        """Called with a part of the body; what is around it is counted anew."""
        self._num_silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called when the body has come."""
        super().on_message_complete()
        self._in_headers = True
        self._has_begun = False

    def send_400_response(self, msg: str) -> None:
        """Called by upstream when the parser has given up."""
        self._refuse(
            self._refusal
            or InvalidRequest(
                "The request is not valid HTTP/1.1. Send it with an HTTP client, and to a server "
                "without TLS by http://.",
                code="invalid_http",
            )
        )

    # From the response and from timers

    def on_response_complete(self) -> None:
        """Called when all of the response has been handed to the transport."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_reading()

    def timeout_keep_alive_handler(self) -> None:
        """Called when no further request has come."""
        super().timeout_keep_alive_handler()
        self._expect_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _expect_headers(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(
                self.header_timeout_seconds, self._on_header_timeout
            )

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if self._has_ended():
            return
        if self._is_answering():
            self._expect_headers()  # the answer to the request before is not to be cut
        elif self._has_begun and self._in_headers:
            self._refuse(
                RequestTimeout(
                    "The headers of the request did not come within "
                    f"{self.header_timeout_seconds:g} s. Send the request again, at once."
                )
            )
        else:
            self._close()

    def _expect_reading(self) -> None:
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(
                self.write_timeout_seconds, self._on_write_timeout
            )

    def _on_write_timeout(self) -> None:
        logger.info("a connection was cut because its client does not read")
        self.transport.abort()

    # Endings

    def _count(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > MAX_HEADER_BYTES or self._num_headers > MAX_HEADERS:
            self._refusal = _headers_too_large()
            raise self._refusal  # out of a callback it stops the parser

    def _has_ended(self) -> bool:
        return self._is_refused or self.transport.is_closing()

    def _is_answering(self) -> bool:
        cycle = cast(RequestResponseCycle | None, self.cycle)
        return cycle is not None and not cycle.response_complete

    def _can_answer(self) -> bool:
        """Returns whether a response now would be that to the request that is at fault."""
        if self._in_headers:
            return not self._is_answering()
        return not self.pipeline and not self.cycle.response_started

    def _refuse(self, error: VideoChatError) -> None:
        """Answer with ``error`` if possible, and end the connection."""
        self._is_refused = True
        if not self._can_answer():
            self._close()
            return
        request_id = new_request_id()
        response = error_response(error)
        self.transport.write(self._head(response.status_code, response.raw_headers, request_id))
        self.transport.write(bytes(response.body))
        with request_id_bound(request_id):
            outcome = error_outcome(error)
            logger.info("request", extra={"status": response.status_code, "outcome": outcome})
        self._disconnect(self.cycle)
        self._linger()

    def _head(self, status: int, headers: list[tuple[bytes, bytes]], request_id: str) -> bytes:
        lines = [
            *self.server_state.default_headers,
            *headers,
            (REQUEST_ID_HEADER.encode(), request_id.encode()),
            (b"connection", b"close"),
        ]
        return STATUS_LINE[status] + b"".join(b"%b: %b\r\n" % line for line in lines) + b"\r\n"

    def _disconnect(self, cycle: RequestResponseCycle | None) -> None:
        """Tell the application that nobody waits for its answer."""
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _linger(self) -> None:
        """Throw away for a moment what the client still sends.

        To close a connection with unread data resets it, and the client may lose the answer.
        """
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._linger_timer = self.loop.call_later(_DRAIN_SECONDS, self._close)

    def _close(self) -> None:
        self.transport.close()
        self._expect_reading()


def _headers_too_large() -> HeadersTooLarge:
    return HeadersTooLarge(
        f"The request line and headers have more than {MAX_HEADER_BYTES} bytes or {MAX_HEADERS} "
        "headers. Send fewer or shorter ones, and videos in the body."
    )
