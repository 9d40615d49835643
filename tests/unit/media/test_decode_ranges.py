"""Decoding files with holes gives what decoding the whole files gives; no network here."""

import asyncio
import dataclasses

import av
import numpy as np
import pytest

from server.errors import InvalidVideo
from server.media.byteranges import total_bytes
from server.media.clip import FramePlan
from server.media.decode import VideoSource
from server.media.packettable import read_table
from server.media.remotefile import RemoteFile
from server.media.sourcefile import SourceFile, SparseFile
from tests.clips.counter import ClipRecipe, counters
from tests.clips.decoded import LIMITS
from tests.conftest import SHARED_VIDEOS
from tests.unit.media.test_boxes import Memory

RECORDED = sorted(path.name for path in SHARED_VIDEOS.glob("*.m[po][4v]"))


@dataclasses.dataclass
class Holes:
    """A file of which only the table was read."""

    data: bytes

    def __post_init__(self):
        self.file = RemoteFile(len(self.data), Memory(self.data))
        self.has_table = asyncio.run(read_table(self.file))
        self.asks = []

    def fetch(self, parts):
        self.asks.append(total_bytes(parts))
        for part in parts:
            self.file.write(part.start, self.data[part.start : part.end])

    def opened(self):
        return VideoSource(SparseFile(self.file.fd), LIMITS, fetch=self.fetch)


def outcome(video, frame_share):
    """Returns the facts and some frames, or the fault."""
    try:
        with video() as source:
            facts = source.probe()
            step = max(round(facts.num_frames * frame_share), 1)
            plan = FramePlan(tuple(range(0, facts.num_frames, step)), 160, 96)
            frames = np.zeros((plan.num_frames, 96, 160, 3), np.uint8)
            return facts, source.decode(plan, frames), frames
    except InvalidVideo as error:
        return error.code, 0, np.zeros(())


def assert_equal(data, *, frame_share=0.19):
    """Returns the file, once both ways to read it have shown the same."""
    holes = Holes(data)
    if holes.has_table:
        found = outcome(holes.opened, frame_share)
        expected = outcome(lambda: VideoSource(SourceFile(data), LIMITS), frame_share)
        assert found[:2] == expected[:2]
        np.testing.assert_array_equal(found[2], expected[2])
    return holes


@pytest.mark.parametrize(
    "name", RECORDED or [pytest.param("", marks=pytest.mark.skip("no videos"))]
)
def test_recorded_videos(name):
    assert_equal((SHARED_VIDEOS / name).read_bytes(), frame_share=0.45)


@pytest.mark.parametrize(
    "recipe",
    [
        ClipRecipe(num_frames=300, options={"g": "30", "bf": "3"}),
        ClipRecipe(num_frames=300, options={"g": "30", "bf": "3"}, container="mov"),
        ClipRecipe(num_frames=300, options={"g": "30", "bf": "3", "x264-params": "open-gop=1"}),
        ClipRecipe(num_frames=300, options={"g": "30"}, rotation=90),
        ClipRecipe(num_frames=300, options={"g": "9", "refs": "4", "b-pyramid": "normal"}),
        ClipRecipe(num_frames=100, options={"g": "30"}, times_ms=[n * n for n in range(100)]),
        ClipRecipe(
            num_frames=300,
            codec="libx265",
            options={"x265-params": "keyint=30:bframes=4:temporal-layers=3:log-level=none"},
        ),
        ClipRecipe(num_frames=300, codec="libsvtav1", options={"g": "30"}),
    ],
    ids=["b", "mov", "open-gop", "rotated", "pyramid", "vfr", "hevc", "av1"],
)
def test_made_videos_are_read_in_part(recipe):
    data = recipe.encode()
    holes = assert_equal(data)
    assert len(holes.asks) == 2
    if recipe.times_ms is None:
        assert sum(holes.asks) < 0.8 * len(data)


@pytest.mark.parametrize(
    "recipe",
    [
        ClipRecipe(num_frames=100, options={"flags": "+ilme+ildct", "x264-params": "tff=1"}),
        ClipRecipe(num_frames=100, codec="mpeg4"),
        ClipRecipe(num_frames=100, codec="libvpx-vp9", options={"deadline": "realtime"}),
    ],
    ids=["interlaced", "mpeg4", "vp9"],
)
def test_videos_whose_table_does_not_tell_all_are_read_whole(recipe):
    holes = assert_equal(recipe.encode())
    assert holes.asks[0] == len(holes.data)


def cut_start(data):
    """Returns the clip without the data of its first keyframe, as if cut from a longer one."""
    data = bytearray(data)
    with av.open(SourceFile(bytes(data))) as container:
        first = next(packet for packet in container.demux(video=0) if packet.size)
        data[first.pos : first.pos + first.size] = bytes(first.size)
    return bytes(data)


def test_a_start_that_does_not_decode_is_left_out_in_both():
    data = cut_start(ClipRecipe(num_frames=200, options={"g": "20"}).encode())
    assert_equal(data)


def test_keyframes_that_are_none_cost_the_whole_file_and_no_frame():
    # All packets are said to be keyframes: the table of those that are is renamed.
    data = ClipRecipe(num_frames=200, options={"g": "50"}).encode().replace(b"stss", b"free")
    holes = Holes(data)
    facts, num_replaced, frames = outcome(holes.opened, 0.19)
    assert facts.keyframe_indices == tuple(range(200))
    assert counters(frames) == list(range(0, 200, 38))
    assert num_replaced == 0
    assert holes.asks[-1] == len(data)
