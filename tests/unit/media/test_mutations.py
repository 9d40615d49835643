"""Damaged files through real decoder processes: few of those that ``make fuzz`` makes."""

import pytest

from server.media.faults import VIDEO_FAULTS
from tests.fuzz.damage import DAMAGES, damaged
from tests.fuzz.mutations import run
from tests.fuzz.originals import originals

COUNT = 200

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def files():
    return originals()


def test_a_seed_stands_for_its_damage(files):
    for kind, source in files.items():
        assert damaged(source, "7-1") == damaged(source, "7-1"), kind
        assert len({damaged(source, f"7-{number}")[0] for number in range(20)}) > 10, kind


def test_every_damage_is_done_to_some_file(files):
    done = set()
    for number in range(200):
        mutated, names = damaged(files["mp4-h264"], f"7-{number}")
        if mutated != files["mp4-h264"]:
            done.update(names.split("+"))
    assert done == set(DAMAGES)


async def test_a_damaged_file_is_a_clip_or_a_documented_fault():
    report = await run(COUNT, seed=20261130)
    assert report.wrong == []
    assert report.outcomes.total() == COUNT
    assert set(report.outcomes) <= {"clip", "clip with gaps", *VIDEO_FAULTS}
    # Neither so much damage that nothing is decoded, nor so little that nothing is refused.
    assert report.outcomes["clip"] > COUNT // 10
    assert report.outcomes["invalid_video"] > COUNT // 20
