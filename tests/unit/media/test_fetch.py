"""Downloads from a server on this machine that does as badly as servers can."""

import asyncio
import socket
import threading
from contextlib import asynccontextmanager

import pytest

from server.errors import InvalidRequest, RequestTooLarge, VideoUnreachable
from server.media.fetch import Fetcher
from server.media.sizelimit import SizeLimit
from server.settings import VideoSettings

BODY = b"video" * 1000

pytestmark = pytest.mark.anyio


def answer(body=BODY, status="200 OK", *, length=None, **headers):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def serving(*answers):
    """Yields (base URL, requests seen); each connection gets the next answer, the last for ever."""
    seen = []

    async def handle(reader, writer):
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        reply = answers[min(len(seen), len(answers)) - 1]
        try:
            if callable(reply):
                await reply(writer)
            else:
                writer.write(reply)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", seen
    finally:
        server.close()


async def fetch(url, *, allow_private_addresses=True, **settings):
    settings = VideoSettings(
        **{
            "allow_private_addresses": allow_private_addresses,
            "fetch_timeout_seconds": 5,
            **settings,
        }
    )
    file = await Fetcher(settings).fetch(url, SizeLimit(settings.max_video_bytes), param="p")
    return file.read()


async def unreachable_text(url, **settings):
    with pytest.raises(VideoUnreachable) as caught:
        await fetch(url, **settings)
    assert caught.value.param == "p"
    assert caught.value.code == "video_url_unreachable"
    return str(caught.value)


async def test_a_video_is_fetched_without_cookies_or_compression():
    async with serving(answer()) as (url, seen):
        assert await fetch(url + "/a%20b/ü.mp4?x=1&y=ä#part") == BODY
    request = seen[0].decode()
    assert request.startswith("GET /a%20b/%C3%BC.mp4?x=1&y=%C3%A4 HTTP/1.1\r\n")
    assert "accept-encoding: identity" in request.lower()
    assert "cookie" not in request.lower()


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with serving(answer()) as (url, _):
        assert await fetch(url) == BODY


async def test_a_body_without_a_length_ends_with_the_connection():
    async with serving(b"HTTP/1.1 200 OK\r\n\r\n" + BODY) as (url, _):
        assert await fetch(url) == BODY


async def test_a_chunked_body_is_put_together():
    chunks = b"5\r\nvideo\r\n3\r\nabc\r\n0\r\n\r\n"
    reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    async with serving(reply) as (url, _):
        assert await fetch(url) == b"videoabc"


async def test_redirects_are_followed():
    redirect = answer(b"", "302 Found", Location="/other?a=b")
    async with serving(redirect, redirect, redirect, answer()) as (url, seen):
        assert await fetch(url) == BODY
    assert seen[-1].startswith(b"GET /other?a=b ")


async def test_redirects_end():
    async with serving(answer(b"", "301 Moved", Location="/again")) as (url, seen):
        await unreachable_text(url)
    assert len(seen) == 4


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "http://user:secret@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "\\\\127.0.0.1\\share",
        "http://[::1/",
    ],
)
async def test_redirects_to_forbidden_urls_are_not_followed(location):
    async with serving(answer(b"", "302 Found", Location=location)) as (url, seen):
        await unreachable_text(url)
    assert len(seen) == 1


async def test_the_limit_holds_whatever_the_header_says():
    async with serving(b"HTTP/1.1 200 OK\r\n\r\n" + BODY) as (url, _):
        assert await fetch(url, max_video_bytes=len(BODY)) == BODY
        with pytest.raises(RequestTooLarge) as caught:
            await fetch(url, max_video_bytes=len(BODY) - 1)
    assert caught.value.param == "p"


async def test_a_body_announced_too_large_is_not_read():
    async def announce(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(3600)

    async with serving(announce) as (url, _):
        with pytest.raises(RequestTooLarge):
            await fetch(url)


async def test_an_endless_body_is_cut_at_the_limit():
    async def pour(writer):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(100_000))
            await writer.drain()

    async with serving(pour) as (url, _):
        with pytest.raises(RequestTooLarge):
            await fetch(url, max_video_bytes=1_000_000)


async def _drip(writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def _silent(writer):
    await asyncio.sleep(3600)


async def _hang_up(writer):
    writer.transport.abort()


@pytest.mark.parametrize("behaviour", [_drip, _silent])
async def test_one_deadline_covers_everything(behaviour):
    async with serving(behaviour) as (url, _):
        await unreachable_text(url, fetch_timeout_seconds=0.4)


async def test_redirects_share_the_deadline():
    async def slowly(writer):
        await asyncio.sleep(0.3)
        writer.write(answer(b"", "302 Found", Location="/"))
        await writer.drain()

    async with serving(slowly) as (url, seen):
        await unreachable_text(url, fetch_timeout_seconds=0.5)
    assert len(seen) == 2


@pytest.mark.parametrize(
    "reply",
    [
        answer(length=len(BODY) + 1),
        answer(status="404 Not Found"),
        answer(status="206 Partial Content"),
        answer(status="500 Oops"),
        answer(b"", "302 Found"),
        answer(Content_Encoding="gzip"),
        answer(Content_Encoding="br"),
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        _hang_up,
    ],
)
async def test_every_bad_answer_gets_the_same_text(reply):
    async with serving(reply) as (url, _):
        text = await unreachable_text(url)
    assert text == await unreachable_text("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
        "10.0.0.1",
        "①②⑦.⓪.⓪.①",
        "127。0。0。1",
        "localhost.",
    ],
)
async def test_private_addresses_look_like_unreachable_ones(host):
    blocked = await unreachable_text(f"http://{host}/a.mp4", allow_private_addresses=False)
    assert blocked == await unreachable_text("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com:22/a.mp4",
        "http://user@example.com/a.mp4",
        "http://user:secret@example.com/a.mp4",
        "http://@example.com/",
        "http://good.example\\@127.0.0.1/",
        "http://exa mple.com/",
        "http://example.com/\r\nHost: evil",
        "http://example.com/\x00",
        "http://",
        "http:///a.mp4",
        "http://example.com:port/",
        "http://example.com:99999/",
        "http://[::1/",
        "http://" + "a" * 64 + ".com/",
        "http://example.com/" + "a" * 2048,
        "ftp://example.com/",
    ],
)
async def test_malformed_urls_are_named(url):
    with pytest.raises(InvalidRequest) as caught:
        await fetch(url, allow_private_addresses=False)
    assert caught.value.code == "invalid_video_url"
    assert caught.value.param == "p"
    assert "secret" not in str(caught.value)


async def test_nothing_is_left_open():
    async with serving(answer()) as (url, _):
        await fetch(url)
        task = asyncio.create_task(fetch(url.replace("127.0.0.1", "localhost")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])


async def test_names_that_take_long_to_look_up_hold_nothing_else_up(monkeypatch):
    answered = threading.Event()
    started = []

    def look_up(*_, **__):
        started.append(1)
        answered.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "slow")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    fetcher = Fetcher(VideoSettings())
    fetches = [
        asyncio.create_task(fetcher.fetch("http://slow.example/", SizeLimit(1), param="p"))
        for _ in range(100)
    ]
    try:
        async with asyncio.timeout(20):
            while not started:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            # Other work in threads, such as decoding base64, is not in line behind the lookups.
            assert await asyncio.gather(*(asyncio.to_thread(int, n) for n in "1234")) == [
                1,
                2,
                3,
                4,
            ]
        assert len(started) <= 16
    finally:
        answered.set()
        outcomes = await asyncio.gather(*fetches, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {VideoUnreachable}
