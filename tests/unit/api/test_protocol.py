import asyncio
import time

import pytest

from server.api.protocol import first_byte_at
from tests.unit.api.stubs import StubPipeline, build_app, serving

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = b'{"messages":[{"role":"user","content":"Hi"}]}'
LENGTH = b"Content-Length: %d\r\n\r\n" % len(BODY)


async def read_response(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = [
        int(line.partition(b":")[2])
        for line in head.splitlines()
        if line.lower().startswith(b"content-length")
    ]
    await reader.readexactly(length)
    return head


@pytest.mark.anyio
async def test_receiving_begins_with_the_first_byte_of_each_request(
    pipeline: StubPipeline,
) -> None:
    async with serving(build_app(pipeline)) as url, asyncio.timeout(10):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))

        # Slow headers and a slow body; then, on the same connection, all at once.
        for piece, pause in ((HEAD[:1], 0.2), (HEAD[1:] + LENGTH, 0.1), (BODY, 0.0)):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        assert (await read_response(reader)).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(0.2)
        writer.write(HEAD + LENGTH + BODY)
        assert (await read_response(reader)).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await writer.wait_closed()

    slow, quick = (watch.stage_seconds["receive"] for watch in pipeline.watches)
    assert slow > 0.28
    assert quick < 0.2


def test_without_the_protocol_the_first_byte_came_now() -> None:
    before = time.monotonic()
    assert before <= first_byte_at({"type": "http"}) <= time.monotonic()
