"""Damaged files through real decoder processes: ``python -m tests.fuzz.mutations --count 5000``.

Whatever a file is made into, a clip or one of the documented faults must come out. Afterwards the
same pool decodes a good file, and no process, memory file or temporary file is left. Each mutation
depends on its number and the seed alone, so that it can be had again: ``--first 1234 --count 1``.
"""

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from server.conversation import PixelLimits, SamplingWish, UrlSource, VideoRequest
from server.errors import InvalidVideo
from server.media.clip import VideoClip
from server.media.faults import VIDEO_FAULTS
from server.media.forking import ForkHost
from server.media.loader import VideoLoader
from server.media.memoryfile import MemoryFile
from server.media.workers import DecoderPool
from server.settings import VideoSettings
from tests.fuzz.damage import damaged
from tests.fuzz.originals import originals
from tests.unit.processes import children_of
from tests.unit.scripted import memory_files

_WISHES = (
    SamplingWish(num_frames=4),
    SamplingWish(fps=8.0),
    SamplingWish(num_frames=3, alignment="keyframe"),
)
_CRASH_WORDS = ("Fatal Python error", "Traceback (most recent call last)")
_PATIENCE_SECONDS = 10.0
_MAX_SIDE = 224
_PROGRESS_STEP = 20


class _Geometry:
    """A model that takes small frames as they are, and large ones smaller."""

    temporal_patch_size = 2

    def frame_size(
        self, *, width: int, height: int, num_frames: int, limits: PixelLimits
    ) -> tuple[int, int]:
        return min(width, _MAX_SIDE), min(height, _MAX_SIDE)

    def video_tokens(self, **_):
        raise AssertionError("no request has a token budget")


@dataclass
class Report:
    """What came of the mutations."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """How often each outcome was seen: ``clip``, ``clip with gaps``, or the code of a fault."""
    by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    """The same for each kind of file."""
    wrong: list[str] = field(default_factory=list)
    """What must not be."""
    crashes: list[str] = field(default_factory=list)
    """First lines of what decoders wrote when they crashed or met an error of ours."""

    def note(self, kind: str, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self.by_kind.setdefault(kind, Counter())[outcome] += 1


async def run(count: int, seed: int, *, first: int = 0, shows_progress: bool = False) -> Report:
    """Returns what came of ``count`` mutations, from number ``first`` on."""
    report = Report()
    gc.collect()
    num_files_before = len(memory_files())  # of others in this process
    files = originals()
    num_at_once = len(os.sched_getaffinity(0))
    settings = VideoSettings(
        decode_timeout_seconds=30,
        decode_memory_bytes=500_000_000,
        queue_timeout_seconds=600,
        clip_cache_bytes=0,
    )
    with _hearing(report) as host_errors:
        host = ForkHost("tests.fuzz.decoder:decode_aloud")
        with host_errors():
            await host.start()
        loader = VideoLoader(settings, _Geometry(), pool=DecoderPool(settings, host=host))
        numbers = iter(range(first, first + count))

        async def work() -> None:
            for number in numbers:
                await _try(loader, files, f"{seed}-{number}", number, report)
                if shows_progress:
                    _show_progress(sum(report.outcomes.values()), count, report)

        await asyncio.gather(*(work() for _ in range(num_at_once)))
        await _check_afterwards(loader, host, files, report, num_files_before)
        await host.stop()
    return report


async def _try(
    loader: VideoLoader, files: dict[str, bytes], seed: str, number: int, report: Report
) -> None:
    kind = sorted(files)[number % len(files)]
    mutated, damages = damaged(files[kind], seed)
    what = f"{seed} ({kind}, {damages})"
    try:
        async with asyncio.timeout(120):
            clip = await loader.decode(MemoryFile.of(mutated), _request(number))
    except InvalidVideo as error:
        report.note(kind, error.code)
        if error.code not in VIDEO_FAULTS:
            report.wrong.append(f"{what}: code {error.code}")
    except (Exception, asyncio.CancelledError) as error:
        report.note(kind, type(error).__name__)
        report.wrong.append(f"{what}: {type(error).__name__}: {error}")
    else:
        report.note(kind, "clip with gaps" if clip.num_frames_replaced else "clip")
        if not _is_sound(clip):
            report.wrong.append(f"{what}: {clip} at {clip.timestamps_seconds}")


def _request(number: int) -> VideoRequest:
    wish = _WISHES[number % len(_WISHES)]
    return VideoRequest(UrlSource("data:,"), "video", wish, 0.0, "evs")


def _is_sound(clip: VideoClip) -> bool:
    times = np.array(clip.timestamps_seconds)
    return bool(
        clip.num_frames
        and np.isfinite([*times, clip.duration_seconds]).all()
        and (np.diff(times) >= 0).all()
        and times[0] >= 0
        and max(clip.frames.shape[1:3]) <= _MAX_SIDE
    )


async def _check_afterwards(
    loader: VideoLoader,
    host: ForkHost,
    files: dict[str, bytes],
    report: Report,
    num_files_before: int,
) -> None:
    for kind, source in files.items():
        clip = await loader.decode(MemoryFile.of(source), _request(0))
        if clip.num_frames != 4 or clip.num_frames_replaced:
            report.wrong.append(f"afterwards a good file of kind {kind} became {clip}")
    del clip
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while children_of(host) or len(memory_files()) > num_files_before:  # noqa: ASYNC110  # they have no event
                await asyncio.sleep(0.05)
    except TimeoutError:
        report.wrong.append(f"left behind: {children_of(host)} {memory_files()}")


@contextmanager
def _hearing(report: Report) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Note what the host's processes say; what is left in a temporary folder is wrong."""
    reading, writing = os.pipe()

    def listen() -> None:
        with open(reading, errors="replace") as lines:
            report.crashes += [line.strip() for line in lines if line.startswith(_CRASH_WORDS)]

    @contextmanager
    def as_standard_error() -> Iterator[None]:
        ours = os.dup(2)
        os.dup2(writing, 2)
        os.close(writing)
        try:
            yield
        finally:
            os.dup2(ours, 2)
            os.close(ours)

    listener = threading.Thread(target=listen)
    listener.start()
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield as_standard_error
        finally:
            tempfile.tempdir = before
            listener.join(_PATIENCE_SECONDS)
        report.wrong += [f"left behind: {path}" for path in Path(folder).iterdir()]


def _show_progress(done: int, count: int, report: Report) -> None:
    if done % _PROGRESS_STEP == 0 or done == count:
        line = f"{done}/{count}, {report.outcomes['clip']} clips, {len(report.wrong)} wrong"
        end = "\n" if done == count else ""
        print(f"\r{line}", end=end, file=sys.stderr, flush=True)


def _show(report: Report) -> None:
    for kind, outcomes in sorted(report.by_kind.items()):
        cells = ", ".join(f"{outcome} {times}" for outcome, times in outcomes.most_common())
        print(f"{kind}: {cells}")
    print("all: " + ", ".join(f"{name} {times}" for name, times in report.outcomes.most_common()))
    for line, times in Counter(report.crashes).most_common():
        print(f"decoders said {times} times: {line}")
    for line in report.wrong:
        print(f"WRONG {line}")


def main() -> int:
    """Print the outcomes; returns 0 when all were as they should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000, help="how many mutations")
    parser.add_argument("--seed", type=int, default=1, help="another one makes other mutations")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation")
    options = parser.parse_args()
    report = asyncio.run(run(options.count, options.seed, first=options.first, shows_progress=True))
    _show(report)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
