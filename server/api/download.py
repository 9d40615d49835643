"""A stored file on its way out: whole, or the one part of it that a Range header asks for."""

import asyncio
import re
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api.disconnect import until_disconnect
from server.api.state import note_outcome
from server.errors import InternalFault

_READ_BYTES = 1 << 18
_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})-(\d{0,18})\s*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, stop) of a file."""

    start: int
    stop: int


def requested_span(header: str | None, num_bytes: int) -> Span | None:
    """Returns the part of a file that a Range header asks for, None for the whole file.

    A header that is malformed or asks for several parts is to be ignored, says RFC 9110.

    Raises:
        HTTPException: 416, the part lies beyond the file.
    """
    match = _RANGE.fullmatch(header or "")
    if match is None or match[0].strip().endswith("=-"):
        return None
    first, last = match[1], match[2]
    if not first:
        span = Span(max(0, num_bytes - int(last)), num_bytes)
    else:
        stop = min(int(last) + 1, num_bytes) if last else num_bytes
        span = Span(int(first), stop)
        if last and int(last) < int(first):
            return None
    if span.start >= span.stop:
        raise HTTPException(416, headers={"content-range": f"bytes */{num_bytes}"})
    return span


class FileDownload(Response):
    """Sends an open file, or a part of it, and closes it in every case.

    It is sent as a mere attachment: no browser shall take what strangers upload for a page.
    """

    def __init__(self, file: BinaryIO, *, filename: str, num_bytes: int, span: Span | None) -> None:
        """Prepare the response.

        Args:
            file: closed by this response.
            filename: for the client to save it under.
            num_bytes: size of the file.
            span: the part to send, None for all of it.
        """
        headers = {
            "content-type": "application/octet-stream",
            "content-disposition": f"attachment; filename*=UTF-8''{quote(filename, safe='')}",
            "x-content-type-options": "nosniff",
            "cache-control": "private, no-store",
            "accept-ranges": "bytes",
        }
        if span is not None:
            headers["content-range"] = f"bytes {span.start}-{span.stop - 1}/{num_bytes}"
        self._span = span or Span(0, num_bytes)
        headers["content-length"] = str(self._span.stop - self._span.start)
        super().__init__(status_code=200 if span is None else 206, headers=headers)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, or to HEAD its headers. Returns when sent, or when the client hung up."""
        try:
            await until_disconnect(receive, self._send(send, is_head=scope["method"] == "HEAD"))
        except ClientDisconnect:
            note_outcome(scope, "cancelled")
        finally:
            self._file.close()

    async def _send(self, send: Send, *, is_head: bool) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        if is_head:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        left_bytes = self._span.stop - self._span.start
        self._file.seek(self._span.start)
        while left_bytes:
            chunk = await asyncio.to_thread(self._file.read, min(_READ_BYTES, left_bytes))
            if not chunk:
                raise InternalFault("a stored file has lost its end")
            left_bytes -= len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": left_bytes > 0})
