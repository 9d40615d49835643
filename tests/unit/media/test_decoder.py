"""What only shows in a real decoder process, with its limits."""

import numpy as np
import pytest

from server.media.clip import FramePlan
from tests.clips.counter import ClipRecipe, counters
from tests.clips.decoded import decoded_frames

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("size", [(160, 96), (1280, 720)])
async def test_many_spans_are_decoded_within_little_memory(make_pool, size):
    width, height = size
    source = ClipRecipe(
        num_frames=120, width=width, height=height, options={"g": "10", "preset": "ultrafast"}
    ).encode()
    chosen = tuple(range(5, 120, 20))
    async with make_pool(decode_memory_bytes=250_000_000).open(source) as video:
        await video.probe()
        frames = await video.decode(FramePlan(chosen, width, height))
    assert counters(frames) == list(chosen)
    expected = decoded_frames(source, frame_indices=chosen, size=size)
    np.testing.assert_array_equal(frames, expected)
