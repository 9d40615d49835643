"""URLs that would make this server talk to its own network, and every way to hide that.

The network is a switchboard: the one public address is a real server of ours, and every other
address leads to a listener that must never be called.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpcore
import pytest

from server.conversation import FrameListSource, UrlSource
from server.errors import InvalidRequest, VideoUnreachable
from server.media.fetch import Fetcher
from server.media.hosts import HostList
from server.media.sizelimit import SizeLimit
from server.media.source import SourceReader
from server.media.targets import Rules, Target
from server.media.webfaults import Unreachable
from server.settings import VideoSettings

BODY = b"video" * 100
PUBLIC, PUBLIC_6 = "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"
LIMIT = SizeLimit(10_000)

# security.md, 3.5: D01 to D07.
FORBIDDEN = """
127.0.0.1 localhost LOCALHOST localhost. 127.255.255.254
2130706433 0x7f000001 0177.0.0.1 127.1 0 0x7f.1 017700000001 127.0.1
①②⑦.⓪.⓪.① 127。0。0。1
[::1] [::] [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::7f00:1] [64:ff9b:1::7f00:1]
[2002:7f00:1::] [2001::1] [fe80::1] [fe80::1%25eth0] [fec0::1] [fd00:ec2::254] [ff02::1]
[0:0:0:0:0:0:0:1] [::ffff:169.254.169.254] [::ffff:a00:1]
169.254.169.254 169.254.170.2 100.100.100.200 168.63.129.16 metadata.google.internal 2852039166
10.0.0.1 172.16.0.1 172.31.255.255 192.168.0.1 100.64.0.1 198.18.0.1 198.19.255.255 192.0.0.1
192.0.0.192 192.0.2.1 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255 0.0.0.0
prometheus vllm host.docker.internal kubernetes.default.svc
127.0.0.1.nip.example private-six.example
"""
FORBIDDEN_HOSTS = [*FORBIDDEN.split(), "\uff11\uff12\uff17.0.0.1"]

NAMES = {
    "public.example": [PUBLIC],
    "public.example.": [PUBLIC],
    "cdn.public.example": [PUBLIC],
    "six.example": [PUBLIC_6],
    "metadata.google.internal": ["169.254.169.254"],
    "prometheus": ["172.18.0.5"],
    "vllm": ["172.18.0.6"],
    "host.docker.internal": ["172.17.0.1"],
    "kubernetes.default.svc": ["10.96.0.1"],
    "127.0.0.1.nip.example": ["127.0.0.1"],
    "private-six.example": ["fd12:3456::1"],
    "mixed.example": [PUBLIC, "127.0.0.1"],
    "mixed-last.example": [PUBLIC_6, PUBLIC, "::1"],
}

pytestmark = pytest.mark.anyio


async def resolve(host: str, port: int) -> list[str]:
    if host in NAMES:
        return NAMES[host]
    # Numbers in every notation, and this machine's own name; nothing that asks the internet.
    flags = 0 if host.lower().startswith("localhost") else socket.AI_NUMERICHOST
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [str(info[4][0]) for info in found]


@dataclass
class Switchboard(httpcore.AsyncNetworkBackend):
    """Connects the public addresses to our server, and all others to the listener."""

    server_port: int
    listener_port: int
    asked: list[tuple[str, int]] = field(default_factory=list)

    async def connect_tcp(self, host, port, *arguments, **options):
        self.asked.append((host, port))
        is_public = host in (PUBLIC, PUBLIC_6)
        real_port = self.server_port if is_public else self.listener_port
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", real_port)

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)


@dataclass
class World:
    """A network with one public server on it."""

    board: Switchboard
    calls: list[int]
    """One entry per call of the listener."""
    answers: list[bytes]
    """What the server will say, in turn; the last one for ever."""
    requests: list[bytes]

    async def fetch(self, url: str, *, resolver=resolve, **settings) -> bytes:
        fetcher = Fetcher(VideoSettings(**settings), resolve=resolver, network=self.board)
        return (await fetcher.fetch(url, LIMIT, param="p")).read()

    async def refusal(self, url: str, **context) -> tuple[str, str, str | None]:
        with pytest.raises((VideoUnreachable, InvalidRequest)) as caught:
            await self.fetch(url, **context)
        return str(caught.value), caught.value.code, caught.value.param


def redirect(location: str, status: int = 302) -> bytes:
    return (
        f"HTTP/1.1 {status} Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
    ).encode()


OK = b"HTTP/1.1 200 OK\r\n\r\n" + BODY


@pytest.fixture
async def world() -> AsyncIterator[World]:
    calls: list[int] = []
    answers, requests = [OK], []

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answers.pop(0) if len(answers) > 1 else answers[0])
            await writer.drain()
        writer.close()

    async def listen(reader, writer):
        calls.append(1)
        writer.write(OK)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    ports = [each.sockets[0].getsockname()[1] for each in (server, listener)]
    yield World(Switchboard(*ports), calls, answers, requests)
    server.close()
    listener.close()


UNREACHABLE = (
    "The video URL could not be retrieved. Check that it is publicly reachable, or send the "
    "video as a data: URL.",
    "video_url_unreachable",
    "p",
)


async def test_public_addresses_pass(world: World):
    for host in ("public.example", "six.example", PUBLIC, f"[{PUBLIC_6}]", "PUBLIC.example."):
        assert await world.fetch(f"http://{host}/a.mp4") == BODY
    assert world.board.asked[0] == (PUBLIC, 80)
    assert world.calls == []


async def test_the_switchboard_would_show_a_connection(world: World):
    assert await world.fetch("http://127.0.0.1/", allow_private_addresses=True) == BODY
    assert world.calls == [1]


@pytest.mark.parametrize("host", FORBIDDEN_HOSTS)
async def test_forbidden_hosts_are_refused_with_one_text(world: World, host: str):
    for url in (f"http://{host}/latest/meta-data/", f"https://{host}:443/"):
        assert await world.refusal(url) == UNREACHABLE
    assert world.board.asked == []
    assert world.calls == []


@pytest.mark.parametrize("host", FORBIDDEN_HOSTS)
@pytest.mark.parametrize("hops", [1, 3])
async def test_redirects_to_them_are_refused_with_the_same_text(world: World, host: str, hops: int):
    status = {1: 302, 3: 307}[hops]
    onward = [redirect("/next", 308)] * (hops - 1)
    world.answers[:] = [*onward, redirect(f"http://{host}/", status), OK]
    assert await world.refusal("http://public.example/") == UNREACHABLE
    assert world.board.asked == [(PUBLIC, 80)] * hops
    assert world.calls == []


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "ftp://public.example/",
        "gopher://public.example/",
        "data:video/mp4;base64,AAAA",
        "//127.0.0.1/",
        "http://[::1/",
        "http://public.example:22/",
        "http://public.example:6379/",
        "http://user@public.example/",
        "http://public.example\\@127.0.0.1/",
        "x" * 70_000,
    ],
    ids=range(11),
)
async def test_redirects_elsewhere_are_refused_with_the_same_text(world: World, location: str):
    world.answers[:] = [redirect(location), OK]
    assert await world.refusal("http://public.example/") == UNREACHABLE
    assert len(world.board.asked) == 1
    assert world.calls == []


async def test_a_redirect_from_https_to_http_is_none():
    rules = Rules(any_port=False, hosts=HostList(()))
    target = Target.parse("https://public.example/", rules)
    assert target.redirected("https://public.example/b", rules).path == "/b"
    with pytest.raises(Unreachable):
        target.redirected("http://public.example/", rules)


@pytest.mark.parametrize(
    "url",
    [
        "http://good.example\\@127.0.0.1/",
        "http://good.example@127.0.0.1/",
        "http://good.example:80:90/",
        "http://127.0.0.1\t/",
        "http://127.0.0.1\r\nHost: x/",
        "http://public.example:22/",
        "http://public.example:25/",
        "http://public.example:6379/",
        "http://public.example:2375/",
        "http:////127.0.0.1/",
        "http://",
    ],
)
async def test_urls_that_parsers_read_differently_are_no_urls(world: World, url: str):
    _, code, param = await world.refusal(url)
    assert (code, param) == ("invalid_video_url", "p")
    assert world.board.asked == []
    assert world.calls == []


async def test_a_fragment_hides_no_host(world: World):
    assert await world.refusal("http://127.0.0.1#@public.example/") == UNREACHABLE
    assert world.board.asked == []


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1/", "rtsp://127.0.0.1/"),
        *("rtmp://127.0.0.1/", "unix:///run/x", "subfile,,start,0,end,9,,:/etc/passwd"),
        *("concat:/etc/passwd|b", "crypto:/etc/passwd", "pipe:0", "fd:0", "s3://bucket/a"),
        *("C:\\a.mp4", "//127.0.0.1/a", "", "javascript:1", "httpx://127.0.0.1/", "http:a"),
    ],
)
async def test_no_other_scheme_is_fetched(url: str):
    with pytest.raises(InvalidRequest) as caught:
        await SourceReader(VideoSettings()).read(UrlSource(url), param="p")
    assert caught.value.code == "invalid_video_url"


@pytest.mark.parametrize("host", ["mixed.example", "mixed-last.example"])
async def test_one_forbidden_address_among_good_ones_is_enough(world: World, host: str):
    assert await world.refusal(f"http://{host}/") == UNREACHABLE
    assert world.board.asked == []


@dataclass
class Rebinding:
    """Resolves a name to one address after the other."""

    addresses: list[str]
    num_lookups: int = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.num_lookups += 1
        return [self.addresses[min(self.num_lookups, len(self.addresses)) - 1]]


async def test_a_name_is_looked_up_once_and_what_was_checked_is_connected_to(world: World):
    rebinding = Rebinding([PUBLIC, "127.0.0.1"])
    assert await world.fetch("http://rebinding.example/", resolver=rebinding) == BODY
    assert rebinding.num_lookups == 1
    assert world.board.asked == [(PUBLIC, 80)]
    assert world.requests[0].lower().count(b"host: rebinding.example\r\n") == 1


async def test_a_name_that_changes_between_two_hops_is_refused(world: World):
    world.answers[:] = [redirect("http://rebinding.example/b"), OK]
    rebinding = Rebinding([PUBLIC, "127.0.0.1"])
    assert await world.refusal("http://rebinding.example/", resolver=rebinding) == UNREACHABLE
    assert rebinding.num_lookups == 2
    assert world.board.asked == [(PUBLIC, 80)]
    assert world.calls == []


async def test_a_name_that_does_not_exist_looks_the_same(world: World):
    async def nowhere(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def no_address(host: str, port: int) -> list[str]:
        return []

    assert await world.refusal("http://nowhere.example/", resolver=nowhere) == UNREACHABLE
    assert await world.refusal("http://nowhere.example/", resolver=no_address) == UNREACHABLE


async def test_of_a_thousand_addresses_a_few_are_tried(world: World):
    class Deaf(Switchboard):
        async def connect_tcp(self, host, port, *arguments, **options):
            self.asked.append((host, port))
            raise httpcore.ConnectError

    world.board = Deaf(0, 0)

    async def many(host: str, port: int) -> list[str]:
        return [f"93.184.{n // 256}.{n % 256}" for n in range(1000)]

    assert await world.refusal("http://many.example/", resolver=many) == UNREACHABLE
    assert len(world.board.asked) == 4


async def test_nothing_of_the_client_is_sent_along(world: World):
    await world.fetch("http://public.example/a.mp4?x=1")
    lines = world.requests[0].decode().splitlines()
    assert lines[0] == "GET /a.mp4?x=1 HTTP/1.1"
    names = {line.partition(":")[0].lower() for line in lines[1:] if line}
    assert names == {"host", "accept", "accept-encoding", "user-agent", "connection"}


async def test_pictures_of_a_list_are_held_to_the_same_rules():
    reader = SourceReader(VideoSettings())
    source = FrameListSource((UrlSource("http://127.0.0.1/1.jpg"),), 2.0)
    with pytest.raises(VideoUnreachable) as caught:
        await reader.read(source, param="p")
    assert (str(caught.value), caught.value.code) == UNREACHABLE[:2]
    assert caught.value.param == "p[0]"


# The list of allowed hosts


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("public.example", True),
        ("PUBLIC.example", True),
        ("public.example.", True),
        ("cdn.media.example", True),
        ("a.b.media.example", True),
        ("media.example", False),
        ("evilmedia.example", False),
        ("media.example.evil.example", False),
        ("cdn.public.example", False),
        (PUBLIC, False),
        ("", False),
    ],
)
def test_hosts_are_allowed_by_name_or_domain(host: str, allowed: bool):
    assert HostList(["public.example", "*.media.example"]).allows(host) is allowed
    assert HostList([]).allows(host)


async def test_other_hosts_are_not_even_looked_up(world: World):
    lookups = Rebinding([PUBLIC])
    text, code, param = await world.refusal(
        "http://cdn.public.example/", resolver=lookups, allowed_hosts=("public.example",)
    )
    assert (code, param) == ("invalid_video_url", "p")
    assert "host" in text
    assert lookups.num_lookups == 0
    assert await world.fetch("http://public.example/", allowed_hosts=("public.example",)) == BODY


async def test_a_redirect_to_another_host_is_refused(world: World):
    world.answers[:] = [redirect("http://cdn.public.example/"), OK]
    hosts = {"allowed_hosts": ("public.example",)}
    assert await world.refusal("http://public.example/", **hosts) == UNREACHABLE
    assert len(world.requests) == 1
    world.answers[:] = [redirect("http://cdn.public.example/"), OK]
    hosts = {"allowed_hosts": ("public.example", "*.public.example")}
    assert await world.fetch("http://public.example/", **hosts) == BODY


async def test_an_allowed_host_must_still_be_public(world: World):
    assert (await world.refusal("http://prometheus/", allowed_hosts=("prometheus",))) == UNREACHABLE
    assert world.board.asked == []


# Further parts of a file that is read by range

TAG = 'ETag: "one"\r\n'
PART_OF_MP4 = b"\0\0\0\x10ftypisom\0\0\0\0" + b"\0\x0f\x42\x40mdat" + bytes(984)


def part(start: int, body: bytes, total_bytes: int = 2_000_000) -> bytes:
    where = f"Content-Range: bytes {start}-{start + len(body) - 1}/{total_bytes}"
    head = f"HTTP/1.1 206 Partial\r\nContent-Length: {len(body)}\r\n{TAG}{where}\r\n\r\n"
    return head.encode() + body


async def open_by_range(world: World, url: str, *, resolver=resolve) -> tuple[str, str, str | None]:
    settings = VideoSettings(range_threshold_bytes=1000)
    fetcher = Fetcher(settings, resolve=resolver, network=world.board)
    with pytest.raises(VideoUnreachable) as caught:
        await fetcher.open(url, SizeLimit(3_000_000), param="p")
    return str(caught.value), caught.value.code, caught.value.param


async def test_a_name_that_changes_between_two_parts_is_refused(world: World):
    world.answers[:] = [part(0, PART_OF_MP4), OK]
    rebinding = Rebinding([PUBLIC, "127.0.0.1"])
    url = "http://rebinding.example/"
    assert await open_by_range(world, url, resolver=rebinding) == UNREACHABLE
    assert rebinding.num_lookups == 2
    assert world.board.asked == [(PUBLIC, 80)]
    assert world.calls == []


@pytest.mark.parametrize("host", FORBIDDEN_HOSTS)
async def test_a_part_that_redirects_to_a_forbidden_host_is_refused(world: World, host: str):
    world.answers[:] = [part(0, PART_OF_MP4), redirect(f"http://{host}/", 307), OK]
    assert await open_by_range(world, "http://public.example/") == UNREACHABLE
    assert world.board.asked == [(PUBLIC, 80)] * 2
    assert world.calls == []


async def test_a_part_that_redirects_to_a_forbidden_url_is_refused(world: World):
    for location in ("file:///etc/passwd", "http://public.example:22/", "//127.0.0.1/"):
        world.answers[:] = [part(0, PART_OF_MP4), redirect(location), OK]
        assert await open_by_range(world, "http://public.example/") == UNREACHABLE
    assert world.calls == []


async def test_parts_are_asked_for_with_nothing_of_the_client(world: World):
    world.answers[:] = [part(0, PART_OF_MP4), redirect("/other"), redirect("//127.0.0.1/")]
    assert await open_by_range(world, "http://public.example/a.mp4") == UNREACHABLE
    first, second, third = (request.decode().splitlines() for request in world.requests)
    assert first[0] == second[0] == "GET /a.mp4 HTTP/1.1"
    assert third[0] == "GET /other HTTP/1.1"
    for lines, more in ((first, {"connection"}), (second, {"if-range"}), (third, {"if-range"})):
        names = {line.partition(":")[0].lower() for line in lines[1:] if line}
        assert names == {"host", "accept", "accept-encoding", "user-agent", "range", *more}
