"""uvicorn's HTTP protocol, with a note of when each request began to arrive."""

import time
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_EXTENSION = "videochat.first_byte"


class FirstByteProtocol(HttpToolsProtocol):
    """Notes the time at which the first byte of each request arrives.

    An application is called only when all headers are there; over a slow line that is late.
    For ``uvicorn.Config(http=FirstByteProtocol)``.
    """

    def on_message_begin(self) -> None:
        """Called by the parser at the first byte of each request of a connection."""
        super().on_message_begin()
        scope = cast(dict[str, Any], self.scope)
        scope.setdefault("extensions", {})[_EXTENSION] = {"monotonic_seconds": time.monotonic()}


def first_byte_at(scope: Scope) -> float:
    """Returns the CLOCK_MONOTONIC time of the request's first byte; now, if nobody noted it."""
    noted = scope.get("extensions", {}).get(_EXTENSION)
    return time.monotonic() if noted is None else cast(float, noted["monotonic_seconds"])
