"""Videos of URLs that are read by range: the same frames for a part of the bytes."""

import asyncio
import io
import os

import av
import numpy as np
import pytest

from server.conversation import SamplingWish, UrlSource, VideoRequest
from server.errors import InvalidVideo, RequestTooLarge, VideoUnreachable
from server.media.loader import VideoLoader
from server.media.memoryfile import MemoryFile
from server.media.remotefile import RemoteFile
from server.media.workers import DecoderPool
from server.metrics import Metrics
from server.settings import VideoSettings
from tests.clips.counter import ClipRecipe, counters
from tests.unit.media.rangeorigin import RangeOrigin
from tests.unit.media.test_loader import FixedGeometry
from tests.unit.media.test_sharing import CountingHost
from tests.unit.media.test_workers import open_descriptors

SIZE = (320, 192)
NUM_FRAMES = 600
RECIPE = ClipRecipe(
    num_frames=NUM_FRAMES,
    width=SIZE[0],
    height=SIZE[1],
    options={"g": "30", "qp": "4", "preset": "ultrafast"},
)

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def source():
    """6 MB with its table at the end."""
    return RECIPE.encode()


@pytest.fixture(scope="module")
def small_source():
    return ClipRecipe(num_frames=200, options={"g": "20", "bf": "2"}).encode()


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def host(fork_host):
    return CountingHost(fork_host)


@pytest.fixture
def make_loader(metrics, host):
    def make(size=SIZE, **changes):
        settings = VideoSettings(
            **{"allow_private_addresses": True, "range_threshold_bytes": 1000, **changes}
        )
        pool = DecoderPool(settings, host=host)
        return VideoLoader(settings, FixedGeometry(size), pool=pool, metrics=metrics)

    return make


def asking(url, **wish):
    return VideoRequest(UrlSource(url), "messages[0]", SamplingWish(**wish), 0.5, "evs")


async def load(loader, url, **wish):
    video = asking(url, **wish)
    return await loader.decode(await loader.fetch(video), video)


def downloads(metrics):
    return {
        kind: metrics.registry.get_sample_value("videochat_downloads_total", {"kind": kind})
        for kind in ("range", "whole")
    }


async def assert_equal_to_whole(make_loader, url, clip, **wish):
    whole = await load(make_loader(range_threshold_bytes=None, clip_cache_bytes=0), url, **wish)
    np.testing.assert_array_equal(clip.frames, whole.frames)
    assert clip.timestamps_seconds == whole.timestamps_seconds
    assert clip.duration_seconds == whole.duration_seconds
    assert clip.num_frames_replaced == whole.num_frames_replaced == 0


def memory_files():
    return [name for name in open_descriptors() if "memfd" in name]


async def until_memory_files_are_as(before):
    # Large files are closed by a thread.
    async with asyncio.timeout(10):
        while len(memory_files()) > len(before):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def front_loaded(source, path):
    """Returns the clip with its table before its packets."""
    with (
        av.open(io.BytesIO(source)) as container,
        av.open(str(path), "w", options={"movflags": "faststart"}) as out,
    ):
        stream = container.streams.video[0]
        copy = out.add_stream_from_template(stream)
        for packet in container.demux(stream):
            if packet.dts is not None:
                packet.stream = copy
                out.mux(packet)
    return path.read_bytes()


# What is read


async def test_four_frames_of_a_long_clip_take_a_part_of_it(make_loader, metrics, source):
    origin = RangeOrigin(source)
    async with origin.serving() as url:
        clip = await load(make_loader(), url, num_frames=4)
        sent = origin.bytes_sent
        await assert_equal_to_whole(make_loader, url, clip, num_frames=4)
    assert counters(clip.frames) == [0, 150, 300, 450]
    assert sent < 0.3 * len(source)
    assert origin.bytes_sent - sent == len(source)
    assert downloads(metrics) == {"range": 1, "whole": 1}
    received = metrics.registry.get_sample_value("videochat_download_bytes_total")
    assert received == pytest.approx(sent + len(source), rel=0.05)


async def test_a_table_at_the_front_needs_no_request_of_its_own(make_loader, source, tmp_path):
    origin = RangeOrigin(front_loaded(source, tmp_path / "clip.mp4"))
    async with origin.serving() as url:
        clip = await load(make_loader(), url, num_frames=4)
    assert counters(clip.frames) == [0, 150, 300, 450]
    assert len(origin.asks) <= 5
    assert origin.ranges[0] == "bytes=0-"
    assert origin.bytes_sent < 0.3 * len(source)


async def test_frames_between_keyframes_are_the_right_ones(make_loader, source):
    origin = RangeOrigin(source)
    async with origin.serving() as url:
        clip = await load(make_loader(), url, num_frames=14)
        await assert_equal_to_whole(make_loader, url, clip, num_frames=14)


async def test_keyframes_take_less_than_the_frames_between_them(make_loader, source):
    origin = RangeOrigin(source)
    async with origin.serving() as url:
        loader = make_loader(max_fps=30)
        clip = await load(loader, url, fps=0.4, alignment="keyframe")
    assert all(number % 30 == 0 for number in counters(clip.frames))
    assert len(clip.frames) == 8
    assert origin.bytes_sent < 0.3 * len(source)


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"g": "20", "bf": "3", "x264-params": "open-gop=1"}),
        ("libx264", {"g": "1000"}),
        ("libx265", {"x265-params": "keyint=20:log-level=none"}),
        ("libsvtav1", {"g": "20"}),
        ("mpeg4", {"g": "20"}),
    ],
)
async def test_codecs_give_the_frames_of_the_whole(make_loader, codec, options):
    origin = RangeOrigin(ClipRecipe(num_frames=150, codec=codec, options=options).encode())
    async with origin.serving() as url:
        clip = await load(make_loader((160, 96)), url, num_frames=8)
        whole = make_loader((160, 96), range_threshold_bytes=None, clip_cache_bytes=0)
        expected = await load(whole, url, num_frames=8)
    np.testing.assert_array_equal(clip.frames, expected.frames)
    assert clip.timestamps_seconds == expected.timestamps_seconds
    assert origin.ranges[0] == "bytes=0-"
    assert origin.ranges[-1] is None


async def test_a_file_above_the_limit_is_sampled_within_it(make_loader, source):
    origin = RangeOrigin(source)
    async with origin.serving() as url:
        loader = make_loader(max_video_bytes=2_000_000)
        clip = await load(loader, url, num_frames=4)
        assert counters(clip.frames) == [0, 150, 300, 450]
        with pytest.raises(RequestTooLarge) as caught:
            await load(loader, url, num_frames=200)
        assert caught.value.param == "messages[0]"
        assert (await load(loader, url, num_frames=4)).num_frames == 4
        with pytest.raises(RequestTooLarge):
            await load(make_loader(max_ranged_video_bytes=6_000_000), url, num_frames=4)


# What is kept


async def test_the_second_question_reads_and_decodes_nothing(make_loader, host, metrics, source):
    origin = RangeOrigin(source)
    async with origin.serving() as url:
        loader = make_loader()
        first = await load(loader, url, num_frames=4)
        sent, num_asks = origin.bytes_sent, len(origin.asks)
        second = await load(loader, url, num_frames=4)
    assert second.content_key == first.content_key
    np.testing.assert_array_equal(second.frames, first.frames)
    assert origin.bytes_sent == sent
    assert len(origin.asks) == num_asks + 1
    assert origin.asks[-1].headers["if-none-match"] == '"one"'
    assert host.num_started == 1
    assert downloads(metrics) == {"range": 1, "whole": 0}


async def test_another_plan_reads_what_is_missing(make_loader, source):
    origin = RangeOrigin(source)
    async with origin.serving() as url:
        loader = make_loader()
        await load(loader, url, num_frames=4)
        sent = origin.bytes_sent
        clip = await load(loader, url, num_frames=6)
        again = origin.bytes_sent - sent
        assert counters(clip.frames) == [0, 100, 200, 300, 400, 500]
        assert 0 < again < 0.2 * len(source)
        sent = origin.bytes_sent
        await load(loader, url, num_frames=2)
        assert origin.bytes_sent == sent


async def test_what_is_read_later_counts_as_kept(make_loader, metrics, source):
    def held():
        return metrics.registry.get_sample_value("videochat_cache_bytes", {"cache": "downloads"})

    origin = RangeOrigin(source)
    async with origin.serving() as url:
        loader = make_loader()
        file = await loader.fetch(asking(url))
        assert held() == pytest.approx(file.held_bytes, abs=100)
        await load(loader, url, num_frames=4)
        assert held() == pytest.approx(file.held_bytes, abs=100)
        # One that grows out of the cache is not kept.
        small = make_loader(download_cache_bytes=file.held_bytes - 10_000)
        kept = await small.fetch(asking(url))
        assert small._downloads.get(kept.origin.target.identity) is not None
        await load(small, url, num_frames=6)
        assert small._downloads.get(kept.origin.target.identity) is None
        assert held() == 0


async def test_two_at_once_share_everything(make_loader, host, source):
    origin = RangeOrigin(source)
    async with origin.serving() as url:
        loader = make_loader()
        clips = await asyncio.gather(*(load(loader, url, num_frames=4) for _ in range(3)))
    assert [counters(clip.frames) for clip in clips] == [[0, 150, 300, 450]] * 3
    assert host.num_started == 1
    assert origin.ranges.count("bytes=0-") == 1


async def test_what_may_not_be_kept_is_read_anew(make_loader, host, source):
    origin = RangeOrigin(source, {"ETag": '"one"', "Cache-Control": "no-store"})
    async with origin.serving() as url:
        loader = make_loader()
        keys = {(await load(loader, url, num_frames=4)).content_key for _ in range(2)}
    assert len(keys) == 2
    assert origin.ranges.count("bytes=0-") == 2


async def test_equal_files_of_two_urls_never_stand_for_each_other(make_loader, source):
    # The same size and table; only bytes that the first question does not read differ.
    other = bytearray(source)
    middle = len(source) // 2
    other[middle : middle + 1000] = bytes(1000)
    origins = RangeOrigin(source), RangeOrigin(bytes(other))
    loader = make_loader()
    async with origins[0].serving() as url, origins[1].serving() as other_url:
        first = await load(loader, url, num_frames=2)
        second = await load(loader, other_url, num_frames=2)
    assert first.content_key != second.content_key
    assert origins[1].bytes_sent > 0


async def test_a_kept_file_that_has_changed_is_replaced(make_loader, source):
    origin = RangeOrigin(source)
    async with origin.serving() as url:
        loader = make_loader()
        await load(loader, url, num_frames=4)
        origin.data = ClipRecipe(num_frames=10, width=320, height=192).encode()
        origin.validators = {"ETag": '"two"'}
        clip = await load(loader, url, num_frames=10)
    assert counters(clip.frames) == list(range(10))


# Where all of it is read


async def _ignore_ranges(origin, ask):
    ask.headers.pop("range", None)
    return False


async def _refuse_ranges(origin, ask):
    if "range" in ask.headers:
        await origin.send(ask, "416 Range Not Satisfiable")
        return True
    return False


def _lie_about(content_range):
    async def answer(origin, ask):
        if "range" in ask.headers:
            headers = {**origin.validators, "Content-Range": content_range}
            await origin.send(ask, "206 Partial Content", headers, origin.data)
            return True
        return False

    return answer


@pytest.mark.parametrize(
    ("validators", "before"),
    [
        ({"ETag": '"one"'}, _ignore_ranges),
        ({"ETag": '"one"'}, _refuse_ranges),
        ({"ETag": '"one"'}, _lie_about("bytes 5-10/20")),
        ({"ETag": '"one"'}, _lie_about("bytes 0-10/*")),
        ({"ETag": '"one"'}, _lie_about("bytes 0-10/5")),
        ({"ETag": '"one"'}, _lie_about("nonsense")),
        ({"ETag": 'W/"one"'}, None),
        ({"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}, None),
        ({}, None),
    ],
    ids=range(9),
)
async def test_an_origin_without_sure_ranges_is_read_whole(
    make_loader, metrics, small_source, validators, before
):
    origin = RangeOrigin(small_source, validators, before)
    async with origin.serving() as url:
        clip = await load(make_loader((160, 96)), url, num_frames=4)
    assert counters(clip.frames) == [0, 50, 100, 150]
    assert downloads(metrics) == {"range": 0, "whole": 1}
    assert len(origin.asks) <= 2


async def test_a_date_long_past_tells_that_a_file_is_the_same(make_loader, metrics, small_source):
    dates = {
        "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT",
        "Date": "Mon, 01 Jan 2024 01:00:00 GMT",
    }
    origin = RangeOrigin(small_source, dates)
    async with origin.serving() as url:
        clip = await load(make_loader((160, 96)), url, num_frames=4)
    assert counters(clip.frames) == [0, 50, 100, 150]
    assert downloads(metrics) == {"range": 1, "whole": 0}


async def test_small_files_take_one_request(make_loader, metrics, small_source):
    origin = RangeOrigin(small_source)
    async with origin.serving() as url:
        loader = make_loader((160, 96), range_threshold_bytes=len(small_source))
        file = await loader.fetch(asking(url))
        assert isinstance(file, MemoryFile)
        assert file.read() == small_source
    assert origin.ranges == ["bytes=0-"]


@pytest.mark.parametrize(
    "recipe",
    [
        ClipRecipe(num_frames=50, container="matroska"),
        ClipRecipe(num_frames=50, container_options={"movflags": "frag_keyframe+empty_moov"}),
    ],
    ids=["matroska", "fragmented"],
)
async def test_other_files_are_read_whole(make_loader, metrics, recipe):
    origin = RangeOrigin(recipe.encode())
    async with origin.serving() as url:
        clip = await load(make_loader((160, 96)), url, num_frames=4)
    assert counters(clip.frames) == [0, 12, 25, 37]
    assert downloads(metrics) == {"range": 0, "whole": 1}


async def test_no_video_is_told_as_ever(make_loader):
    for data in (b"hello" * 1000, b"\0\0\0\x08moov" + bytes(5000), b""):
        async with RangeOrigin(data).serving() as url:
            with pytest.raises(InvalidVideo) as caught:
                await load(make_loader(), url, num_frames=4)
            assert caught.value.param == "messages[0]"


async def test_damage_is_looked_at_with_all_of_the_file(make_loader, small_source):
    # The keyframe that the last frames need, so that decoding goes on from the one before.
    source = bytearray(small_source)
    with av.open(io.BytesIO(small_source)) as container:
        places = [(p.pos, p.size) for p in container.demux(video=0) if p.is_keyframe and p.size]
    position, size = places[7]
    source[position : position + size] = bytes(size)
    origin = RangeOrigin(bytes(source))
    async with origin.serving() as url:
        clip = await load(make_loader((160, 96)), url, num_frames=40)
        whole = make_loader((160, 96), range_threshold_bytes=None)
        expected = await load(whole, url, num_frames=40)
    np.testing.assert_array_equal(clip.frames, expected.frames)
    assert clip.num_frames_replaced == expected.num_frames_replaced > 0


# Origins that change, lie or fail between two ranges


def _later(answer):
    """Returns a behaviour that begins after the first answer."""

    async def behave(origin, ask):
        return not ask.is_first and await answer(origin, ask)

    return behave


async def _change(origin, ask):
    origin.data = ClipRecipe(num_frames=50, width=320, height=192).encode()
    origin.validators = {"ETag": '"two"'}
    return False


async def _change_secretly(origin, ask):
    """Give out another file under the old tag."""
    origin.data = ClipRecipe(num_frames=50, width=320, height=192).encode()
    return False


async def _send_other_tag(origin, ask):
    if "range" not in ask.headers:
        return False
    first, last = (int(edge) for edge in ask.headers["range"][6:].split("-"))
    where = {"Content-Range": f"bytes {first}-{last}/{len(origin.data)}", "ETag": '"two"'}
    await origin.send(ask, "206 Partial Content", where, origin.data[first : last + 1])
    return True


async def _send_elsewhere(origin, ask):
    if "range" not in ask.headers:
        return False
    first, last = (int(edge) for edge in ask.headers["range"][6:].split("-"))
    where = {"Content-Range": f"bytes {first + 1}-{last}/{len(origin.data)}", **origin.validators}
    await origin.send(ask, "206 Partial Content", where, origin.data[first : last + 1])
    return True


async def _send_more(origin, ask):
    if "range" not in ask.headers:
        return False
    first, last = (int(edge) for edge in ask.headers["range"][6:].split("-"))
    where = {"Content-Range": f"bytes {first}-{last}/{len(origin.data)}", **origin.validators}
    await origin.send(ask, "206 Partial Content", where, origin.data[first : last + 1] + b"more")
    return True


@pytest.mark.parametrize(
    ("behave", "expected"),
    [
        (_change, [0, 12, 25, 37]),
        (_change_secretly, [0, 12, 25, 37]),
        (_send_other_tag, [0, 150, 300, 450]),
        (_send_elsewhere, [0, 150, 300, 450]),
        (_send_more, [0, 150, 300, 450]),
        (_refuse_ranges, [0, 150, 300, 450]),
    ],
)
async def test_a_file_that_changes_is_read_whole_once(
    make_loader, metrics, source, behave, expected
):
    origin = RangeOrigin(source, before=_later(behave))
    async with origin.serving() as url:
        clip = await load(make_loader(), url, num_frames=4)
    assert counters(clip.frames) == expected
    assert origin.ranges.count(None) == 1
    assert downloads(metrics)["whole"] == 1


@pytest.mark.parametrize("after", [4, 5])
async def test_a_file_that_changes_while_it_is_decoded_is_read_whole(
    make_loader, host, source, after
):
    async def change(origin, ask):
        if ask.number == after - 1:
            await _change(origin, ask)
        return False

    origin = RangeOrigin(source, before=change)
    async with origin.serving() as url:
        clips = await asyncio.gather(
            *(load(loader, url, num_frames=4) for loader in [make_loader()] * 2)
        )
    assert [counters(clip.frames) for clip in clips] == [[0, 12, 25, 37]] * 2
    assert origin.ranges.count(None) == 1


async def test_a_connection_that_breaks_is_made_again_for_the_rest(make_loader, source):
    broken = []

    async def break_off(origin, ask):
        first, last = (int(edge) for edge in ask.headers["range"][6:].split("-"))
        if broken or last - first < 100_000:
            return False
        broken.append(first)
        where = {"Content-Range": f"bytes {first}-{last}/{len(origin.data)}", **origin.validators}
        body = origin.data[first : first + 50_000]
        await origin.send(ask, "206 Partial Content", where, body, length=last + 1 - first)
        ask.writer.close()
        return True

    origin = RangeOrigin(source, before=_later(break_off))
    async with origin.serving() as url:
        clip = await load(make_loader(), url, num_frames=4)
    assert counters(clip.frames) == [0, 150, 300, 450]
    (first,) = broken
    assert any((part or "").startswith(f"bytes={first + 50_000}-") for part in origin.ranges)


async def _hang_up(origin, ask):
    ask.writer.transport.abort()
    return True


async def _fail(origin, ask):
    await origin.send(ask, "500 Oops")
    return True


async def _forbid(origin, ask):
    await origin.send(ask, "403 Forbidden")
    return True


async def _compress(origin, ask):
    await origin.send(ask, "206 Partial Content", {"Content-Encoding": "gzip"}, b"x")
    return True


async def _go_round(origin, ask):
    await origin.send(ask, "302 Found", {"Location": "/again"})
    return True


async def _be_silent(origin, ask):
    await asyncio.sleep(3600)
    return True


@pytest.mark.parametrize("behave", [_hang_up, _fail, _forbid, _compress, _go_round, _be_silent])
async def test_an_origin_that_fails_is_unreachable(make_loader, source, behave):
    origin = RangeOrigin(source, before=_later(behave))
    async with origin.serving() as url:
        with pytest.raises(VideoUnreachable) as caught:
            await load(make_loader(fetch_timeout_seconds=1), url, num_frames=4)
    assert caught.value.param == "messages[0]"
    assert caught.value.code == "video_url_unreachable"


async def test_an_origin_that_falls_silent_while_decoding_is_unreachable(make_loader, host, source):
    async def behave(origin, ask):
        return ask.number >= 3 and await _be_silent(origin, ask)

    origin = RangeOrigin(source, before=behave)
    async with origin.serving() as url:
        with pytest.raises(VideoUnreachable):
            await load(make_loader(fetch_timeout_seconds=1), url, num_frames=4)
    assert host.num_started == 1


async def test_the_time_to_decode_does_not_run_while_parts_are_fetched(make_loader, source):
    async def wait(origin, ask):
        await asyncio.sleep(1.0 if ask.number >= 2 else 0)
        return False

    origin = RangeOrigin(source, before=wait)
    async with origin.serving() as url:
        clip = await load(make_loader(decode_timeout_seconds=1.5), url, num_frames=4)
    assert counters(clip.frames) == [0, 150, 300, 450]


async def test_who_leaves_while_parts_are_fetched_leaves_nothing(make_loader, source):
    silent = asyncio.Event()

    async def behave(origin, ask):
        if ask.number < 3:
            return False
        silent.set()
        return await _be_silent(origin, ask)

    origin = RangeOrigin(source, before=behave)
    async with origin.serving() as url:
        loader = make_loader()
        before = memory_files()
        task = asyncio.create_task(load(loader, url, num_frames=4))
        await silent.wait()
        task.cancel()
        await asyncio.wait([task])
        loader._downloads.forget()
        del task
        await until_memory_files_are_as(before)


async def test_nothing_leaks(make_loader, source):
    origin = RangeOrigin(source, {"ETag": '"one"', "Cache-Control": "no-store"})

    async def one(loader):
        assert (await load(loader, url, num_frames=4)).num_frames == 4

    async with origin.serving() as url:
        loader = make_loader(clip_cache_bytes=0)
        await one(loader)
        before = memory_files()
        for _ in range(5):
            await one(loader)
        await until_memory_files_are_as(before)


async def test_a_part_of_the_file_is_in_memory(make_loader, source):
    origin = RangeOrigin(source)
    async with origin.serving() as url:
        loader = make_loader()
        file = await loader.fetch(asking(url))
        assert isinstance(file, RemoteFile)
        await loader.decode(file, asking(url, num_frames=4))
    assert file.num_bytes == len(source)
    assert file.held_bytes < 0.3 * len(source)
    assert os.fstat(file.fd).st_blocks * 512 < 0.35 * len(source)


async def test_a_slow_origin_keeps_no_decoder_from_others(make_loader, host, source):
    silent = asyncio.Event()

    async def behave(origin, ask):
        if ask.number < 2:
            return False
        silent.set()
        return await _be_silent(origin, ask)

    slow, fast = RangeOrigin(source, before=behave), RangeOrigin(source)
    loader = make_loader(max_concurrent_decodes=1, max_queued_decodes=0)
    async with slow.serving() as slow_url, fast.serving() as url:
        waiting = asyncio.create_task(load(loader, slow_url, num_frames=4))
        await silent.wait()
        while loader.is_full_for("anyone"):  # noqa: ASYNC110  # the answer before the silence
            await asyncio.sleep(0.01)
        assert (await load(loader, url, num_frames=4)).num_frames == 4
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_parts_are_asked_for_where_the_first_redirect_led(make_loader, source):
    async def redirect(origin, ask):
        if ask.path != "/clip.mp4":
            return False
        await origin.send(ask, "302 Found", {"Location": "/real.mp4"})
        return True

    origin = RangeOrigin(source, before=redirect)
    async with origin.serving() as url:
        loader = make_loader()
        for _ in range(2):
            clip = await load(loader, url, num_frames=4)
            assert counters(clip.frames) == [0, 150, 300, 450]
    paths = [ask.path for ask in origin.asks]
    assert paths == ["/clip.mp4", *["/real.mp4"] * (len(paths) - 3), "/clip.mp4", "/real.mp4"]


async def test_a_part_may_be_elsewhere_by_now(make_loader, source):
    async def redirect(origin, ask):
        if ask.path != "/clip.mp4" or ask.is_first:
            return False
        await origin.send(ask, "307 Temporary Redirect", {"Location": "/elsewhere.mp4"})
        return True

    origin = RangeOrigin(source, before=redirect)
    async with origin.serving() as url:
        clip = await load(make_loader(max_downloads_per_host=1), url, num_frames=4)
    assert counters(clip.frames) == [0, 150, 300, 450]
    assert "/elsewhere.mp4" in {ask.path for ask in origin.asks}


async def test_what_a_plan_needs_is_known_without_decoding(make_loader, host, source):
    origin = RangeOrigin(source)
    async with origin.serving() as url:
        loader, video = make_loader(), asking(url, num_frames=4)
        facts, plan = await loader.plan(await loader.fetch(video), video)
        assert (facts.num_frames, plan.frames.num_frames) == (NUM_FRAMES, 4)
        clip = await loader.decode(await loader.fetch(video), video)
    assert counters(clip.frames) == [0, 150, 300, 450]
    assert origin.ranges.count("bytes=0-") == 2  # the second one is answered with 304
    assert origin.bytes_sent < 0.3 * len(source)
