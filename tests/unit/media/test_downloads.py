"""When a video of a URL is used again, and when it is asked for anew."""

import asyncio
import base64

import pytest

from server.conversation import SamplingWish, UrlSource, VideoRequest
from server.errors import RequestTooLarge, VideoUnreachable
from server.media.loader import VideoLoader
from server.metrics import Metrics
from server.settings import VideoSettings
from tests.unit.media.test_fetch import BODY, answer, serving
from tests.unit.media.test_loader import FixedGeometry

NOT_MODIFIED = b"HTTP/1.1 304 Not Modified\r\n\r\n"
ETAG = {"ETag": '"one"'}
LONG_AGO = "Mon, 01 Jan 2024 00:00:00 GMT"
MINUTES_LATER = "Mon, 01 Jan 2024 00:05:00 GMT"
SECONDS_LATER = "Mon, 01 Jan 2024 00:00:05 GMT"

pytestmark = pytest.mark.anyio


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def make_loader(metrics, make_pool):
    def make(**changes):
        settings = VideoSettings(**{"allow_private_addresses": True, **changes})
        return VideoLoader(settings, FixedGeometry(), pool=make_pool(), metrics=metrics)

    return make


def asking(url, param="messages[0]"):
    return VideoRequest(UrlSource(url), param, SamplingWish(), 0.5, "evs")


def lookups(metrics):
    return {
        outcome: metrics.registry.get_sample_value(
            "videochat_cache_lookups_total", {"cache": "downloads", "outcome": outcome}
        )
        for outcome in ("hit", "shared", "miss")
    }


@pytest.mark.parametrize(
    ("headers", "condition"),
    [
        (ETAG, b'if-none-match: "one"'),
        ({"ETag": 'W/"one"', "Last_Modified": LONG_AGO}, b'if-none-match: w/"one"'),
        (
            {"Last_Modified": LONG_AGO, "Date": MINUTES_LATER},
            b"if-modified-since: mon, 01 jan 2024 00:00:00 gmt",
        ),
    ],
)
async def test_a_body_is_used_again_when_its_origin_says_that_it_holds(
    make_loader, metrics, headers, condition
):
    loader = make_loader()
    async with serving(answer(**headers), NOT_MODIFIED) as (url, seen):
        for _ in range(3):
            assert (await loader.fetch(asking(url + "/a.mp4"))).read() == BODY
    assert condition not in seen[0].lower()
    assert condition in seen[1].lower()
    assert condition in seen[2].lower()
    assert lookups(metrics) == {"hit": 2, "shared": 0, "miss": 1}


async def test_a_body_that_has_changed_takes_the_place_of_the_old_one(make_loader):
    loader = make_loader()
    answers = [answer(**ETAG), answer(b"other", ETag='"two"'), NOT_MODIFIED]
    async with serving(*answers) as (url, seen):
        bodies = [(await loader.fetch(asking(url))).read() for _ in range(3)]
    assert bodies == [BODY, b"other", b"other"]
    assert b'"two"' in seen[2]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {**ETAG, "Cache_Control": "no-store"},
        {**ETAG, "Cache_Control": "max-age=60, Private"},
        {**ETAG, "Cache_Control": 'private="set-cookie"'},
        {**ETAG, "Vary": "*"},
        {"Last_Modified": LONG_AGO},
        {"Last_Modified": LONG_AGO, "Date": SECONDS_LATER},
        {"Last_Modified": "yesterday", "Date": MINUTES_LATER},
    ],
)
async def test_what_may_not_be_kept_or_not_be_asked_about_is_loaded_anew(make_loader, headers):
    loader = make_loader()
    async with serving(answer(**headers)) as (url, seen):
        for _ in range(2):
            assert (await loader.fetch(asking(url))).read() == BODY
    assert len(seen) == 2
    assert not any(b"if-" in request.lower() for request in seen)


async def test_an_origin_that_changes_its_mind_about_keeping_is_obeyed(make_loader):
    loader = make_loader()
    now_private = b"HTTP/1.1 304 Not Modified\r\nCache-Control: private\r\n\r\n"
    async with serving(answer(**ETAG), now_private, answer(b"third")) as (url, seen):
        bodies = [(await loader.fetch(asking(url))).read() for _ in range(3)]
    assert bodies == [BODY, BODY, b"third"]
    assert b"if-none-match" not in seen[2].lower()


async def test_a_url_that_would_be_refused_now_is_refused(make_loader):
    loader = make_loader()
    expired = answer(b"", "403 Forbidden")
    async with serving(answer(**ETAG), expired) as (url, _):
        assert (await loader.fetch(asking(url + "/?signature=x"))).read() == BODY
        with pytest.raises(VideoUnreachable):
            await loader.fetch(asking(url + "/?signature=x"))


async def test_an_answer_to_a_question_that_was_not_asked_is_no_video(make_loader):
    async with serving(NOT_MODIFIED) as (url, _):
        with pytest.raises(VideoUnreachable):
            await make_loader().fetch(asking(url))


async def test_a_redirect_is_followed_anew_and_its_end_is_asked_about(make_loader):
    loader = make_loader()
    to_first = answer(b"", "302 Found", Location="/first.mp4")
    to_second = answer(b"", "302 Found", Location="/second.mp4")
    answers = [to_first, answer(**ETAG), to_first, NOT_MODIFIED, to_second, answer(b"second")]
    async with serving(*answers) as (url, seen):
        bodies = [(await loader.fetch(asking(url))).read() for _ in range(3)]
    assert bodies == [BODY, BODY, b"second"]
    has_asked = [b"if-none-match" in request.lower() for request in seen]
    # Nobody else's file is asked about by the tag of this one.
    assert has_asked == [False, False, False, True, False, False]


async def test_other_queries_are_other_videos(make_loader):
    loader = make_loader()
    async with serving(answer(**ETAG), answer(b"other")) as (url, seen):
        assert (await loader.fetch(asking(url + "/?v=1"))).read() == BODY
        assert (await loader.fetch(asking(url + "/?v=2"))).read() == b"other"
    assert b"if-none-match" not in seen[1].lower()


async def test_bodies_go_when_others_need_the_room(make_loader, metrics):
    loader = make_loader(download_cache_bytes=6000)
    async with serving(answer(**ETAG)) as (url, seen):
        for path in ("/a", "/b", "/a"):
            await loader.fetch(asking(url + path))
    assert not any(b"if-none-match" in request.lower() for request in seen)
    held = metrics.registry.get_sample_value("videochat_cache_bytes", {"cache": "downloads"})
    assert len(BODY) < held < 6000


async def test_one_download_serves_all_who_ask_at_once(make_loader, metrics):
    loader = make_loader(download_cache_bytes=0)
    async with serving(answer()) as (url, seen):
        bodies = await asyncio.gather(*(loader.fetch(asking(url)) for _ in range(3)))
    assert [body.read() for body in bodies] == [BODY] * 3
    assert len(seen) == 1
    assert lookups(metrics) == {"hit": 0, "shared": 2, "miss": 1}


async def test_an_error_is_told_to_each_under_its_own_name(make_loader):
    loader = make_loader(max_video_bytes=10)
    async with serving(answer()) as (url, seen):
        errors = await asyncio.gather(
            *(loader.fetch(asking(url, f"messages[{n}]")) for n in range(3)),
            return_exceptions=True,
        )
    assert [type(error) for error in errors] == [RequestTooLarge] * 3
    assert [error.param for error in errors] == [f"messages[{n}]" for n in range(3)]
    assert len(seen) == 1


async def test_who_leaves_does_not_end_the_download_for_the_other(make_loader):
    gate, closed = asyncio.Event(), asyncio.Event()

    async def hold(writer):
        await gate.wait()
        writer.write(answer())
        await writer.drain()
        closed.set()

    loader = make_loader()
    async with serving(hold) as (url, seen):
        leaving, staying = (asyncio.create_task(loader.fetch(asking(url))) for _ in range(2))
        while not seen:  # noqa: ASYNC110  # the server has no event
            await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.wait({leaving})
        gate.set()
        assert (await staying).read() == BODY
        await closed.wait()
    assert leaving.cancelled()


async def test_the_last_to_leave_closes_the_connection(make_loader):
    asked, closed = asyncio.Event(), asyncio.Event()

    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        assert await reader.read() == b""
        writer.close()
        closed.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    loader = make_loader()
    tasks = [asyncio.create_task(loader.fetch(asking(url))) for _ in range(2)]
    await asked.wait()
    for task in tasks:
        task.cancel()
    async with asyncio.timeout(5):
        await closed.wait()
    await asyncio.wait(tasks)
    server.close()


async def test_a_data_url_is_no_download(make_loader, metrics):
    url = "data:video/mp4;base64," + base64.b64encode(BODY).decode()
    assert (await make_loader().fetch(asking(url))).read() == BODY
    assert lookups(metrics) == {"hit": 0, "shared": 0, "miss": 0}
