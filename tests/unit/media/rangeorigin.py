"""A server on this machine that gives out one file, by range too, and misbehaves when told to."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

_PIECE_BYTES = 1 << 14
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Ask:
    """One request."""

    path: str
    headers: dict[str, str]
    writer: asyncio.StreamWriter
    number: int

    @property
    def is_first(self) -> bool:
        """Whether it asks for the file from the start."""
        return self.headers.get("range", "bytes=0-") == "bytes=0-"


@dataclass
class RangeOrigin:
    """What the server has, and what it was asked."""

    data: bytes
    validators: dict[str, str] = field(default_factory=lambda: {"ETag": '"one"'})
    before: Callable[["RangeOrigin", Ask], Awaitable[bool]] | None = None
    """Sees each request first; returns whether it has answered it."""
    asks: list[Ask] = field(default_factory=list)
    bytes_sent: int = 0

    @property
    def ranges(self) -> list[str | None]:
        """What was asked for, in order."""
        return [ask.headers.get("range") for ask in self.asks]

    async def answer(self, ask: Ask) -> None:
        """Answer as a good server does."""
        if ask.headers.get("if-none-match") == self.validators.get("ETag", ""):
            await self.send(ask, "304 Not Modified", self.validators)
            return
        match = _RANGE.fullmatch(ask.headers.get("range", ""))
        holds = ask.headers.get("if-range") in (None, *self.validators.values())
        if match is None or not holds:
            await self.send(ask, "200 OK", self.validators, self.data)
            return
        first = int(match[1])
        last = min(int(match[2] or len(self.data) - 1), len(self.data) - 1)
        if first > last:
            await self.send(ask, "416 Range Not Satisfiable")
            return
        where = {"Content-Range": f"bytes {first}-{last}/{len(self.data)}"}
        body = self.data[first : last + 1]
        await self.send(ask, "206 Partial Content", {**self.validators, **where}, body)

    async def send(
        self,
        ask: Ask,
        status: str,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        length: int | None = None,
    ) -> None:
        """Send an answer."""
        length = len(body) if length is None else length
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        ask.writer.write("\r\n".join([*lines, "", ""]).encode())
        for start in range(0, len(body), _PIECE_BYTES):
            piece = body[start : start + _PIECE_BYTES]
            ask.writer.write(piece)
            await ask.writer.drain()
            self.bytes_sent += len(piece)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Yields the URL."""
        connections: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.add(task := asyncio.current_task())
            # What waits in buffers was not asked for, but counts as sent.
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE_BYTES)
            writer.transport.set_write_buffer_limits(high=_PIECE_BYTES)
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    ask = _parsed(await reader.readuntil(b"\r\n\r\n"), writer, len(self.asks))
                    self.asks.append(ask)
                    if self.before is None or not await self.before(self, ask):
                        await self.answer(ask)
            writer.close()
            connections.discard(task)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/clip.mp4"
        finally:
            server.close()
            for task in list(connections):
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)


def _parsed(request: bytes, writer: asyncio.StreamWriter, number: int) -> Ask:
    first, *lines = request.decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in lines if line)
    headers = {name.lower(): value.strip() for name, _, value in fields}
    return Ask(first.split()[1], headers, writer, number)
