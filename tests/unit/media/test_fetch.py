"""Downloads from a server on this machine that does as badly as servers can."""

import asyncio
import datetime
import ipaddress
import socket
import ssl
import struct
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


async def _reset_midway(writer):
    writer.write(answer(length=10 * len(BODY)))
    await writer.drain()
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
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
        answer(status="401 Unauthorized", WWW_Authenticate="Basic"),
        answer(status="404 Not Found"),
        answer(status="206 Partial Content"),
        answer(b"", status="204 No Content"),
        answer(b"", status="304 Not Modified"),
        answer(status="429 Too Many Requests", Retry_After="0"),
        answer(status="500 Oops"),
        answer(status="503 Busy", Retry_After="0"),
        answer(b"", "302 Found"),
        answer(Content_Encoding="gzip"),
        answer(Content_Encoding="br"),
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Again: and again\r\n" * 10_000 + b"\r\n",
        _hang_up,
        _reset_midway,
    ],
    ids=range(22),
)
async def test_every_bad_answer_gets_the_same_text_and_no_second_try(reply):
    async with serving(reply) as (url, seen):
        text = await unreachable_text(url)
    assert len(seen) == 1
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


async def test_a_certificate_that_nobody_vouches_for_is_none(tmp_path):
    pytest.importorskip("cryptography", reason="makes the certificate")
    identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity.load_cert_chain(self_signed(tmp_path / "identity.pem"))
    seen = []

    async def handle(reader, writer):
        seen.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=identity)
    port = server.sockets[0].getsockname()[1]
    text = await unreachable_text(f"https://127.0.0.1:{port}/a.mp4")
    server.close()
    assert text == await unreachable_text("http://127.0.0.1:1/")
    assert seen == []


def self_signed(path):
    """Returns ``path`` with a key and a certificate for 127.0.0.1 in it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path


async def test_a_fetch_that_is_cancelled_hangs_up():
    gone, reading = asyncio.Event(), asyncio.Event()

    async def pour_until_gone(writer):
        writer.write(answer(length=10**9))
        await writer.drain()
        reading.set()
        try:
            while True:
                writer.write(bytes(100_000))
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            gone.set()
            raise

    async with serving(pour_until_gone) as (url, _), asyncio.timeout(20):
        task = asyncio.create_task(fetch(url, max_video_bytes=10**9))
        await reading.wait()
        task.cancel()
        await asyncio.wait([task])
        await gone.wait()
    assert task.cancelled()


# How many at once from one host


class Origin:
    """A server that answers nobody before it is told to."""

    def __init__(self):
        self.num_connected = 0
        self.may_answer = asyncio.Event()

    async def answer(self, writer):
        self.num_connected += 1
        await self.may_answer.wait()
        writer.write(answer())
        await writer.drain()


def fetcher_of(**settings):
    return Fetcher(VideoSettings(allow_private_addresses=True, **settings))


def fetching(fetcher, url):
    async def fetch():
        return (await fetcher.fetch(url, SizeLimit(100_000), param="p")).read()

    return asyncio.create_task(fetch())


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_slow_host_gets_its_share_of_downloads_and_others_theirs():
    origin = Origin()
    fetcher = fetcher_of(max_downloads_per_host=2)
    async with serving(origin.answer) as (url, _), serving(answer()) as (other_url, _):
        fetches = [fetching(fetcher, f"{url}/{n}.mp4") for n in range(50)]
        await until(lambda: origin.num_connected == 2)
        by_name = other_url.replace("127.0.0.1", "localhost")
        assert await fetching(fetcher, by_name) == BODY
        assert origin.num_connected == 2
        origin.may_answer.set()
        assert await asyncio.gather(*fetches) == [BODY] * 50
    assert fetcher._web.slots.num_hosts == 0


async def test_waiting_for_a_host_counts_towards_the_deadline():
    origin = Origin()
    fetcher = fetcher_of(max_downloads_per_host=1, fetch_timeout_seconds=0.5)
    async with serving(origin.answer) as (url, _):
        fetches = [fetching(fetcher, url) for _ in range(3)]
        outcomes = await asyncio.gather(*fetches, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [VideoUnreachable] * 3
    assert origin.num_connected == 1
    assert fetcher._web.slots.num_hosts == 0


async def test_who_leaves_gives_the_slot_to_the_next():
    origin = Origin()
    fetcher = fetcher_of(max_downloads_per_host=1)
    async with serving(origin.answer) as (url, _):
        first, second, third = (fetching(fetcher, url) for _ in range(3))
        await until(lambda: origin.num_connected == 1)
        first.cancel()
        second.cancel()
        await asyncio.wait([first, second])
        await until(lambda: origin.num_connected == 2)
        origin.may_answer.set()
        assert await third == BODY
    assert fetcher._web.slots.num_hosts == 0


async def test_a_redirect_to_the_same_host_needs_no_second_slot():
    redirect = answer(b"", "302 Found", Location="/b.mp4")
    fetcher = fetcher_of(max_downloads_per_host=1)
    async with serving(redirect, answer()) as (url, _):
        assert await fetching(fetcher, url) == BODY


async def test_names_that_take_long_do_not_keep_others_from_being_found(monkeypatch):
    answered, look_up_now = threading.Event(), socket.getaddrinfo

    def look_up(host, *arguments, **options):
        if "slow" not in str(host):
            return look_up_now(host, *arguments, **options)
        answered.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "slow")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    fetcher = fetcher_of()
    slow = [fetching(fetcher, f"http://slow{n}.example/") for n in range(20)]
    try:
        async with serving(answer()) as (url, _), asyncio.timeout(20):
            await asyncio.sleep(0)
            assert await fetching(fetcher, url.replace("127.0.0.1", "localhost")) == BODY
        assert not any(task.done() for task in slow)
    finally:
        answered.set()
        outcomes = await asyncio.gather(*slow, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {VideoUnreachable}


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
