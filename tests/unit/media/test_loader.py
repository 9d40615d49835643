"""From a request's video to a clip, through real decoder processes."""

import base64

import numpy as np
import pytest

from server.conversation import SamplingWish, UrlSource, VideoRequest
from server.errors import ContextLengthExceeded, InvalidRequest, InvalidVideo
from server.media.loader import VideoLoader
from server.media.memoryfile import MemoryFile
from server.settings import VideoSettings
from tests.clips.counter import ClipRecipe, counters
from tests.clips.decoded import decoded_frames, packet_places

SIZE = (160, 96)

pytestmark = pytest.mark.anyio


class FixedGeometry:
    temporal_patch_size = 2

    def __init__(self, size=SIZE):
        self.size = size
        self.asked = []

    def frame_size(self, *, width, height, num_frames, limits):
        self.asked.append((width, height, num_frames))
        if width > 20 * height:
            raise InvalidVideo("too wide")
        return self.size

    def video_tokens(self, *, width, height, num_frames, pruning_rate, pruning_method):
        raise AssertionError("no request has a token budget")


@pytest.fixture(scope="module")
def source():
    return ClipRecipe(num_frames=60).encode()


@pytest.fixture
def loader(make_pool):
    return VideoLoader(VideoSettings(), FixedGeometry(), pool=make_pool())


def request(url="data:,", *, hint_params=None, **wish):
    params = hint_params or {}
    sampling = SamplingWish(**wish)
    return VideoRequest(
        UrlSource(url), "messages[1].video", sampling, 0.5, "evs", hint_params=params
    )


async def test_a_data_url_becomes_a_clip(loader, source):
    url = "data:video/mp4;base64," + base64.b64encode(source).decode()
    video = request(url, fps=5)
    clip = await loader.decode(await loader.fetch(video), video)
    assert counters(clip.frames) == list(range(0, 60, 6))
    assert clip.timestamps_seconds == pytest.approx([n / 5 for n in range(10)])
    assert clip.duration_seconds == pytest.approx(2.0)


async def test_a_stretch_keeps_the_times_of_the_whole_video(loader, source):
    clip = await loader.decode(
        MemoryFile.of(source), request(fps=5, start_seconds=0.8, end_seconds=1.6)
    )
    assert counters(clip.frames) == [24, 30, 36, 42]
    assert clip.timestamps_seconds == pytest.approx([0.8, 1.0, 1.2, 1.4])
    assert clip.duration_seconds == pytest.approx(0.8)


async def test_keyframes_stand_for_the_times_near_them(loader):
    keyed = ClipRecipe(num_frames=60, options={"g": "25", "sc_threshold": "0"}).encode()
    clip = await loader.decode(MemoryFile.of(keyed), request(fps=5, alignment="keyframe"))
    assert counters(clip.frames) == [0, 25, 50]
    assert clip.timestamps_seconds == pytest.approx([0, 25 / 30, 50 / 30])
    assert clip.duration_seconds == pytest.approx(2.0)


async def test_a_hint_that_the_video_does_not_allow_is_named(loader, source):
    where = {"start_offset": "messages[1].video.startOffset"}
    with pytest.raises(InvalidRequest, match="the video ends at 2") as caught:
        await loader.decode(MemoryFile.of(source), request(start_seconds=3.0, hint_params=where))
    assert caught.value.param == "messages[1].video.startOffset"


async def test_frames_have_the_size_of_the_model(make_pool, source):
    geometry = FixedGeometry((112, 56))
    loader = VideoLoader(VideoSettings(), geometry, pool=make_pool())
    clip = await loader.decode(MemoryFile.of(source), request(num_frames=6))
    assert clip.frames.shape == (6, 56, 112, 3)
    assert geometry.asked == [(160, 96, 6)]
    expected = decoded_frames(source, frame_indices=range(0, 60, 10), size=(112, 56))
    np.testing.assert_array_equal(clip.frames, expected)


async def test_the_plan_can_be_refused_before_anything_is_decoded(loader, source):
    plans = []

    def refuse(facts, plan):
        plans.append((facts.num_frames, plan.frames.num_frames, plan.frames.width))
        raise ContextLengthExceeded("too long")

    with pytest.raises(ContextLengthExceeded) as caught:
        await loader.decode(MemoryFile.of(source), request(num_frames=8), on_plan=refuse)
    assert caught.value.param == "messages[1].video"
    assert plans == [(60, 8, 160)]


async def test_errors_name_the_video(loader):
    with pytest.raises(InvalidVideo) as caught:
        await loader.decode(MemoryFile.of(b"hello" * 100), request())
    assert caught.value.param == "messages[1].video"
    with pytest.raises(InvalidVideo) as caught:
        await loader.decode(MemoryFile.of(b""), request())
    assert caught.value.param == "messages[1].video"
    with pytest.raises(InvalidRequest) as caught:
        await loader.fetch(request("nonsense"))
    assert caught.value.param == "messages[1].video"


async def test_a_shape_that_the_model_can_not_take_names_the_video(loader):
    thin = ClipRecipe(num_frames=4, width=4096, height=130).encode()
    with pytest.raises(InvalidVideo) as caught:
        await loader.decode(MemoryFile.of(thin), request())
    assert caught.value.param == "messages[1].video"


async def test_equal_content_keys_mean_equal_clips(make_pool, source):
    pool = make_pool()

    async def key(source, size=SIZE, **wish):
        loader = VideoLoader(VideoSettings(), FixedGeometry(size), pool=pool)
        return (await loader.decode(MemoryFile.of(source), request(**wish))).content_key

    assert await key(source, fps=2) == await key(source, fps=2)
    # Two ways to ask for the same frames.
    assert await key(source, fps=2) == await key(source, num_frames=4)
    others = [
        await key(source, fps=2),
        await key(source, fps=4),
        await key(source, fps=2, size=(112, 56)),
        await key(source, fps=2, size=(56, 112)),
        await key(source + b"\0", fps=2),
    ]
    assert len(set(others)) == len(others)


async def test_a_large_source_gives_the_same_clip(loader, source):
    # Copied and hashed off the event loop.
    padded = source + b"\0\0\0\x08free" * 200_000
    clip = await loader.decode(MemoryFile.of(padded), request(num_frames=4))
    assert counters(clip.frames) == [0, 15, 30, 45]


async def test_a_loader_starts_and_stops_its_own_processes(source):
    loader = VideoLoader(VideoSettings(), FixedGeometry())
    await loader.start()
    try:
        clip = await loader.decode(MemoryFile.of(source), request(num_frames=4))
    finally:
        await loader.stop()
    assert clip.num_frames == 4


async def test_a_clip_says_how_many_of_its_frames_were_replaced(loader):
    source = bytearray(ClipRecipe(num_frames=20, options={"g": "1"}).encode())
    position, size = packet_places(source)[7]
    source[position : position + size] = bytes(size)
    clip = await loader.decode(MemoryFile.of(bytes(source)), request(num_frames=20))
    assert clip.num_frames_replaced == 1
    assert counters(clip.frames)[6:9] == [6, 6, 8]
