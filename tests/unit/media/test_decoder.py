"""What only shows in a real decoder process, with its limits."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from server.errors import InvalidVideo
from server.media.clip import FramePlan
from server.media.memoryfile import MemoryFile
from tests.clips.counter import ClipRecipe, counters
from tests.clips.decoded import decoded_frames, packet_places

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("size", [(160, 96), (1280, 720)])
async def test_many_spans_are_decoded_within_little_memory(make_pool, size):
    width, height = size
    source = ClipRecipe(
        num_frames=120, width=width, height=height, options={"g": "10", "preset": "ultrafast"}
    ).encode()
    chosen = tuple(range(5, 120, 20))
    async with make_pool(decode_memory_bytes=250_000_000).open(MemoryFile.of(source)) as video:
        await video.probe()
        frames = (await video.decode(FramePlan(chosen, width, height))).view()
    assert counters(frames) == list(chosen)
    expected = decoded_frames(source, frame_indices=chosen, size=size)
    np.testing.assert_array_equal(frames, expected)


def _picture(kind):
    buffer = io.BytesIO()
    Image.new("RGB", (640, 384)).save(buffer, kind)
    return buffer.getvalue()


# This process has FFmpeg's log switched on, a decoder has not; and only the log tells it.
@pytest.mark.parametrize(
    "kind", ["mp4", "hevc", "webm", "avi", "PNG", "JPEG", "BMP", "WEBP", "GIF"]
)
@pytest.mark.parametrize("max_pixels", [640 * 384 - 1, 640 * 384 // 9])
async def test_a_picture_above_the_limit_is_named(make_pool, kind, max_pixels):
    recipe = ClipRecipe(num_frames=8, width=640, height=384)
    source = {
        "mp4": recipe.encode,
        "hevc": replace(recipe, codec="libx265", options={"x265-params": "log-level=none"}).encode,
        "webm": replace(recipe, container="webm", codec="libvpx-vp9").encode,
        "avi": replace(recipe, container="avi", codec="mpeg4").encode,
    }.get(kind, lambda: _picture(kind))()
    with pytest.raises(InvalidVideo) as caught:
        async with make_pool(max_pixels_per_frame=max_pixels).open(MemoryFile.of(source)) as video:
            await video.probe()
    assert caught.value.code == "video_resolution_too_large"


@pytest.mark.parametrize("deed", ["too many replaced", "no count"])
async def test_a_decoder_that_miscounts_is_a_broken_video(make_pool, deed):
    async with make_pool().open(MemoryFile.of(deed.encode().ljust(32, b"\0"))) as video:
        await video.probe()
        with pytest.raises(InvalidVideo) as caught:
            await video.decode(FramePlan((0,), 112, 112))
    assert caught.value.code == "video_decode_failed"


async def test_replaced_frames_are_counted(make_pool):
    source = bytearray(ClipRecipe(num_frames=20, options={"g": "1"}).encode())
    for number in (7, 8):
        position, size = packet_places(source)[number]
        source[position : position + size] = bytes(size)
    async with make_pool().open(MemoryFile.of(bytes(source))) as video:
        await video.probe()
        decoded = await video.decode(FramePlan((6, 7, 7, 8, 9), 160, 96))
    assert decoded.num_replaced == 3
    assert counters(decoded.view()) == [6, 6, 6, 6, 9]


async def test_too_little_memory_is_named_wherever_it_runs_out(make_pool):
    options = {"g": "2", "preset": "ultrafast"}
    source = ClipRecipe(num_frames=4, width=3840, height=2160, options=options).encode()
    outcomes = []
    for megabytes in (100, 115, 300):
        pool = make_pool(decode_memory_bytes=megabytes * 1_000_000)
        outcomes.append(await _outcome(pool, source, FramePlan((0, 2, 3), 1920, 1080)))
    assert set(outcomes) == {"decoded", "video_too_complex"}


async def _outcome(pool, source, plan):
    try:
        async with pool.open(MemoryFile.of(source)) as video:
            await video.probe()
            await video.decode(plan)
    except InvalidVideo as error:
        return error.code
    return "decoded"
