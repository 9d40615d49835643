"""Videos that are sent as lists of pictures: from the request to a clip, by real processes."""

import asyncio
import base64
import contextlib

import numpy as np
import pytest

from server.conversation import (
    Base64Source,
    FrameListSource,
    SamplingWish,
    UrlSource,
    VideoRequest,
)
from server.errors import InvalidRequest, InvalidVideo, RequestTooLarge, VideoUnreachable
from server.media.loader import VideoLoader
from server.media.memoryfile import MemoryFile
from server.media.picturelist import PictureList, pack_pictures
from server.settings import VideoSettings
from tests.clips.counter import ClipRecipe, counters
from tests.clips.pictures import encoded_counter, encoded_picture, plain_picture

pytestmark = pytest.mark.anyio


class OwnSize:
    temporal_patch_size = 2

    def frame_size(self, *, width, height, num_frames, limits):
        return width, height


@pytest.fixture
def make_loader(make_pool):
    def make(**settings):
        return VideoLoader(VideoSettings(**settings), OwnSize(), pool=make_pool(**settings))

    return make


def as_base64(data):
    return Base64Source(base64.b64encode(data).decode())


def as_data_url(data):
    return UrlSource("data:image/jpeg;base64," + base64.b64encode(data).decode())


def request(pictures, *, fps=2.0, num_frames=None):
    source = FrameListSource(tuple(pictures), fps)
    wish = SamplingWish(num_frames=num_frames or len(source.pictures))
    return VideoRequest(source, "video", wish, 0.0, "evs")


async def loaded(loader, video):
    return await loader.decode(await loader.fetch(video), video)


@pytest.mark.parametrize("codec", ["mjpeg", "png", "libwebp"])
@pytest.mark.parametrize("wrapped", [as_base64, as_data_url])
async def test_pictures_become_frames_dated_by_their_rate(make_loader, codec, wrapped):
    pictures = [wrapped(encoded_counter(number, codec=codec)) for number in range(6)]
    clip = await loaded(make_loader(), request(pictures, fps=4.0))
    assert counters(clip.frames) == [0, 1, 2, 3, 4, 5]
    assert clip.timestamps_seconds == (0, 0.25, 0.5, 0.75, 1.0, 1.25)
    assert clip.duration_seconds == 1.5


async def test_too_many_frames_are_thinned_out_evenly_and_never_cut(make_loader):
    pictures = [as_base64(encoded_counter(number)) for number in range(40)]
    clip = await loaded(make_loader(max_frames=8), request(pictures))
    assert counters(clip.frames) == list(range(0, 40, 5))
    clip = await loaded(make_loader(), request(pictures, num_frames=4))
    assert counters(clip.frames) == [0, 10, 20, 30]


async def test_one_picture_is_a_video_that_stands_still(make_loader):
    clip = await loaded(make_loader(), request([as_base64(encoded_counter(7))]))
    assert counters(clip.frames) == [7, 7]


async def test_pictures_take_the_size_of_the_first_one(make_loader):
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 250)]
    sizes = [(160, 96), (96, 160), (320, 64), (16, 16)]
    pictures = [
        encoded_picture(plain_picture(colour, width=width, height=height), "png")
        for colour, (width, height) in zip(colours, sizes, strict=True)
    ]
    clip = await loaded(make_loader(), request(map(as_base64, pictures)))
    assert clip.frames.shape == (4, 96, 160, 3)
    for frame, colour in zip(clip.frames, colours, strict=True):
        np.testing.assert_array_equal(frame, np.broadcast_to(np.uint8(colour), frame.shape))


@pytest.mark.parametrize(
    ("picture", "code"),
    [
        (b"hello" * 100, "invalid_video"),
        (b"", "invalid_video"),
        (encoded_counter(1)[:40], "video_decode_failed"),
        (b"GIF89a" + bytes(100), "invalid_video"),
        (ClipRecipe(num_frames=3).encode(), "unsupported_container"),
    ],
    ids=["text", "empty", "cut", "gif", "mp4"],
)
@pytest.mark.parametrize("position", [0, 2])
async def test_what_is_no_picture_is_a_named_fault(make_loader, picture, code, position):
    pictures = [encoded_counter(number) for number in range(3)]
    pictures[position] = picture
    with pytest.raises(InvalidVideo) as caught:
        await loaded(make_loader(), request(map(as_base64, pictures)))
    assert caught.value.param == "video"
    assert caught.value.code == code


async def test_a_huge_picture_is_refused(make_loader):
    pictures = [encoded_counter(0), encoded_counter(1, width=160, height=98)]
    loader = make_loader(max_pixels_per_frame=160 * 96)
    with pytest.raises(InvalidVideo) as caught:
        await loaded(loader, request(map(as_base64, pictures)))
    assert caught.value.code == "video_resolution_too_large"


async def test_a_file_made_like_a_list_keeps_to_the_limits(make_loader):
    packed = pack_pictures(PictureList([encoded_counter(0)] * 5, 2.0))
    with pytest.raises(InvalidVideo) as caught:
        await make_loader(max_source_frames=4).decode(
            MemoryFile.of(packed), request([as_base64(b"")])
        )
    assert caught.value.code == "video_too_long"
    with pytest.raises(InvalidVideo) as caught:
        await make_loader().decode(MemoryFile.of(packed[:-1]), request([as_base64(b"")]))
    assert caught.value.code == "invalid_video"


async def test_a_picture_has_its_own_limit(make_loader):
    loader = make_loader(max_picture_bytes=1000)
    fine, large = as_base64(bytes(1000)), as_base64(bytes(1001))
    assert await loader.fetch(request([fine, fine]))
    with pytest.raises(RequestTooLarge) as caught:
        await loader.fetch(request([fine, large]))
    assert caught.value.param == "video[1]"
    assert "picture" in str(caught.value)


async def test_all_pictures_together_are_a_video(make_loader):
    loader = make_loader(max_video_bytes=3000)
    picture = as_base64(bytes(1000))
    assert await loader.fetch(request([picture] * 3))
    with pytest.raises(RequestTooLarge) as caught:
        await loader.fetch(request([picture] * 4))
    assert caught.value.param == "video"


async def test_a_malformed_picture_is_named(make_loader):
    with pytest.raises(InvalidRequest) as caught:
        await make_loader().fetch(request([as_base64(b"x"), UrlSource("ftp://x/1.jpg")]))
    assert caught.value.param == "video[1]"


@contextlib.asynccontextmanager
async def serving(body, *, stalls=False):
    """Yields (URL, most connections at once); a server that stalls answers nobody."""
    open_now, most = 0, [0]

    async def handle(reader, writer):
        nonlocal open_now
        open_now += 1
        most[0] = max(most[0], open_now)
        try:
            await reader.readuntil(b"\r\n\r\n")
            if stalls:
                await reader.read()
            else:
                await asyncio.sleep(0)
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            open_now -= 1
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", most
    finally:
        server.close()


async def test_pictures_are_fetched_a_few_at_a_time(make_loader):
    async with serving(encoded_counter(5)) as (url, most):
        loader = make_loader(allow_private_addresses=True)
        clip = await loaded(loader, request([UrlSource(url)] * 20))
    assert counters(clip.frames) == [5] * 20
    assert 1 <= most[0] <= 8


async def test_one_deadline_covers_the_whole_list(make_loader):
    async with serving(b"", stalls=True) as (url, most):
        loader = make_loader(allow_private_addresses=True, fetch_timeout_seconds=0.5)
        with pytest.raises(VideoUnreachable) as caught:
            await loader.fetch(request([UrlSource(url)] * 100))
    assert caught.value.code == "video_url_unreachable"
    assert most[0] <= 8
