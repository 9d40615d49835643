"""How long a video takes until its frames are there: ``python -m tests.benchmarks.video_decode``.

This server's decoder stands beside vLLM's own loaders, each in a process of its own, and they take
turns, so that whatever else the machine does strikes them all alike. All get the same bytes in
memory, each in the form that it takes, and return the same frames, which is checked. Ours returns
them at the size that Qwen2.5-VL's processor would make of them, theirs at full size.

- ``ours``: a decoder process from the pool, with its limits, started for each video.
- ``opencv``: vLLM's default loader.
- ``torchcodec``: vLLM's other loader for CPUs, in its exact mode.
- ``null``: FFmpeg alone on the packets that ours needs, in the same threads; frames are dropped.

The results are the medians of the ratios within each round; memory is the peak of the whole process
tree above what it held before, of a run of its own.
"""

import argparse
import asyncio
import ctypes
import gc
import math
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import av
import numpy as np
import psutil

from server.media.memoryfile import MemoryFile
from tests.benchmarks.footage import Footage

ARMS = ("ours", "opencv", "torchcodec", "null")
FOOTAGE = {
    "360p": Footage("h264", 360, 30),
    "720p": Footage("h264", 720, 60),
    "1080p": Footage("h264", 1080, 60, repeated=2),
    "10min": Footage("h264", 1080, 60, repeated=10),
    "hevc": Footage("hevc", 720, 60),
    "vp9": Footage("vp9", 720, 60),
    "av1": Footage("av1", 720, 60),
}
COUNTS = ("16", "32", "64", "2fps")
LIMITS = {"opencv": 2.5, "torchcodec": 1.8, "null": 0.9}
"""Least geometric mean over H.264 of how many times faster ours is."""
MEMORY_LIMIT = 0.4
"""Most of OpenCV's peak that ours may take."""


def main() -> int:
    """Print a table; returns 0 when the limits hold for the H.264 cases that were run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clip", action="append", choices=FOOTAGE, help="default: all")
    parser.add_argument("--frames", action="append", choices=COUNTS, help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as libraries:
        arms = _started(Path(libraries))
        return _compared(arms, options)


def _compared(arms: "dict[str, _Arm]", options: argparse.Namespace) -> int:
    cases = []
    print(_HEADER, flush=True)
    for clip in options.clip or FOOTAGE:
        for count in options.frames or COUNTS:
            cases.append(_Case(FOOTAGE[clip], count).run(arms, options.rounds))
            print(cases[-1].row(), flush=True)
    for arm in arms.values():
        arm.stop()
    return _report(cases)


def _started(libraries: Path) -> "dict[str, _Arm]":
    """Returns the arms that work on this machine."""
    _link_libraries(libraries)
    context = multiprocessing.get_context("spawn")
    arms: dict[str, _Arm] = {}
    for name in ARMS:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(name, theirs), daemon=True)
        path = {"LD_LIBRARY_PATH": str(libraries)} if name == "torchcodec" else {}
        with patch.dict(os.environ, path):
            process.start()
        fault = ours.recv()
        if fault:
            print(f"{name}: left out, {fault}", flush=True)
        else:
            arms[name] = _Arm(ours, process.pid or 0)
    return arms


def _link_libraries(directory: Path) -> None:
    """Give PyAV's FFmpeg the names under which TorchCodec looks for one.

    So both use the same FFmpeg, also where the system has none.
    """
    for library in (Path(av.__file__).parents[1] / "av.libs").iterdir():
        (directory / library.name).symlink_to(library)
        if found := re.fullmatch(r"(lib(?:av|sw)[a-z]+)-[0-9a-f]+\.so\.(\d+)\..*", library.name):
            (directory / f"{found[1]}.so.{found[2]}").symlink_to(library)


class _Arm:
    """The benchmark's end of one process."""

    def __init__(self, pipe: Connection, pid: int) -> None:
        self._pipe = pipe
        self._pid = pid

    def decode(self, path: Path, num_frames: int) -> "_Run":
        """Returns what came of one run."""
        self._pipe.send((str(path), num_frames))
        run: _Run = self._pipe.recv()
        return run

    def peak_bytes(self, path: Path, num_frames: int) -> int:
        """Returns what a run takes at most, beyond what its processes held before."""
        with _Watch(self._pid) as children:
            run = self.decode(path, num_frames)
        return run.rise_bytes + run.shared_bytes + children.rise_bytes

    def stop(self) -> None:
        self._pipe.send(None)


@dataclass(frozen=True)
class _Run:
    """What an arm reports of one video."""

    seconds: float
    rise_bytes: int
    """Peak of the arm's own process above what it held before."""
    shared_bytes: int = 0
    """Frames in memory that belongs to no process."""
    num_frames: int = 0
    fields: Any = None
    """Brightness of 4 x 4 fields of each frame, of shape (num_frames, 4, 4, 3)."""
    fault: str = ""

    def shows_the_same(self, other: "_Run") -> bool:
        """Whether the frames are the same but for size and rounding."""
        if self.fields is None:
            return True
        return self.num_frames == other.num_frames and bool(
            np.abs(self.fields - other.fields).max() < 4
        )


class _Watch:
    """Measures the children of a process in the background. Memory that is shared counts once.

    Memory files count elsewhere: the source was there before, the frames are known.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._stop = threading.Event()
        self._before = self._peak = self._now()
        self._thread = threading.Thread(target=self._measure)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def rise_bytes(self) -> int:
        return self._peak - self._before

    def _measure(self) -> None:
        while not self._stop.wait(0.003):
            self._peak = max(self._peak, self._now())

    def _now(self) -> int:
        total = 0
        for process in self._root.children(recursive=True):
            try:
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                sizes = {key: int(kib) for key, kib in re.findall(r"(\w+): +(\d+) kB", rollup)}
                total += 1024 * (sizes["Pss"] - sizes["Pss_Shmem"])
            except (OSError, KeyError):
                continue  # it has just ended
        return total


class _Case:
    """One clip at one number of frames."""

    def __init__(self, footage: Footage, count: str) -> None:
        self.footage = footage
        self.count = count
        self.runs: dict[str, list[_Run]] = {}
        self.peaks: dict[str, int] = {}

    @property
    def num_frames(self) -> int:
        seconds = self.footage.seconds * self.footage.repeated
        return 2 * seconds if self.count == "2fps" else int(self.count)

    def run(self, arms: dict[str, _Arm], rounds: int) -> "_Case":
        path = self.footage.path()
        for number in range(rounds):
            names = list(arms)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                run = arms[name].decode(path, self.num_frames)
                self.runs.setdefault(name, []).append(run)
                if name == "ours" and run.fault:
                    raise SystemExit(f"{self.footage}: {run.fault}")
        for name, arm in arms.items():
            if not self.fault(name):
                self.peaks[name] = arm.peak_bytes(path, self.num_frames)
        return self

    def fault(self, name: str) -> str:
        """Returns why an arm's runs do not count, if they do not."""
        if name not in self.runs:
            return "-"
        run, ours = self.runs[name][0], self.runs["ours"][0]
        return run.fault or ours.fault or ("" if run.shows_the_same(ours) else "other frames")

    def ratio(self, name: str) -> float | None:
        """Returns how many times as long as ours the arm took: the median over the rounds."""
        if self.fault(name):
            return None
        pairs = zip(self.runs[name], self.runs["ours"], strict=True)
        return statistics.median(theirs.seconds / ours.seconds for theirs, ours in pairs)

    def row(self) -> str:
        seconds = statistics.median(run.seconds for run in self.runs["ours"])
        cells = [f"{self.footage} {self.count}", self.fault("ours") or f"{seconds:.2f}"]
        for name in ARMS[1:]:
            ratio = self.ratio(name)
            cells.append(self.fault(name) if ratio is None else f"{ratio:.2f}")
        for name in ARMS[:3]:
            cells.append(f"{self.peaks[name] / 1e6:.0f}" if name in self.peaks else "-")
        return "| " + " | ".join(cells) + " |"


_HEADER = (
    "| clip, frames | ours s | opencv / ours | torchcodec / ours | null / ours | ours MB | "
    "opencv MB | torchcodec MB |\n|---|---|---|---|---|---|---|---|"
)


def _report(cases: Sequence[_Case]) -> int:
    h264 = [case for case in cases if case.footage.codec == "h264"]
    holds = True
    for name, limit in LIMITS.items():
        ratios = [ratio for case in h264 if (ratio := case.ratio(name)) is not None]
        if ratios:
            mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
            slowest, least = min(ratios), min(1.0, limit)
            print(
                f"{name} / ours over H.264: {mean:.2f}, limit {limit}; "
                f"at least {slowest:.2f}, limit {least}"
            )
            holds &= mean >= limit and slowest >= least
    shares = [case.peaks["ours"] / case.peaks["opencv"] for case in h264 if "opencv" in case.peaks]
    if shares:
        print(f"peak memory, ours / opencv over H.264: at most {max(shares):.2f}")
        holds &= max(shares) <= MEMORY_LIMIT
    return 0 if holds else 1


def _serve(arm: str, pipe: Connection) -> None:
    """Decode what the benchmark asks for, in a process of its own."""
    try:
        decode = {"ours": _ours, "null": _null}.get(arm, lambda: _theirs(arm))()
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send("")
    while (asked := pipe.recv()) is not None:
        path, num_frames = asked
        pipe.send(_measured(decode, _source(arm, Path(path).read_bytes()), num_frames))


def _source(arm: str, data: bytes) -> Any:
    """Returns an encoded video in the form in which an arm holds those that have arrived."""
    return MemoryFile.of(data) if arm == "ours" else data


def _measured(decode: Callable[[Any, int], Any], data: Any, num_frames: int) -> _Run:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier runs left behind is not to be used for nothing
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _status_bytes("VmRSS")
    started = time.perf_counter()
    try:
        frames = decode(data, num_frames)
    except Exception as error:
        return _Run(time.perf_counter() - started, 0, fault=f"{type(error).__name__}: {error}"[:80])
    seconds = time.perf_counter() - started
    rise_bytes = _status_bytes("VmHWM") - before
    if frames is None:
        return _Run(seconds, rise_bytes)
    shared_bytes = frames.nbytes if isinstance(data, MemoryFile) else 0
    return _Run(seconds, rise_bytes, shared_bytes, len(frames), _fields(frames))


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{key}:")]
    return int(line.split()[1]) * 1024


def _fields(frames: Any) -> Any:
    frames = np.asarray(frames)
    count, height, width, _ = frames.shape
    fields = frames[:, : height // 4 * 4, : width // 4 * 4].reshape(
        count, 4, height // 4, 4, width // 4, 3
    )
    return fields.mean(axis=(2, 4))


def _theirs(backend: str) -> Callable[[bytes, int], Any]:
    from vllm.multimodal.video import VideoBackend

    if backend == "torchcodec":
        import torchcodec.decoders  # noqa: F401 - to know at once whether it finds FFmpeg

    def decode(data: bytes, num_frames: int) -> Any:
        frames, _ = VideoBackend.load_bytes(data, num_frames=num_frames, backend=backend)
        if len(frames) == 0:
            raise LookupError("no frames")
        return frames

    return decode


def _ours() -> Callable[[MemoryFile, int], Any]:
    from transformers import Qwen2VLVideoProcessor

    from server.conversation import PixelLimits
    from server.engine.geometry import ProcessorGeometry
    from server.media.clip import FramePlan
    from server.media.workers import DecoderPool
    from server.settings import VideoSettings

    geometry = ProcessorGeometry(Qwen2VLVideoProcessor())
    pool = DecoderPool(VideoSettings())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(pool.start())

    async def decoded(data: MemoryFile, num_frames: int) -> Any:
        async with pool.open(data) as decoder:
            facts = await decoder.probe()
            indices = np.linspace(0, facts.num_frames - 1, num_frames, dtype=int).tolist()
            width, height = geometry.frame_size(
                width=facts.width,
                height=facts.height,
                num_frames=num_frames,
                limits=PixelLimits(),
            )
            decoded = await decoder.decode(FramePlan(tuple(indices), width, height))
            return decoded.view()

    return lambda data, num_frames: loop.run_until_complete(decoded(data, num_frames))


def _null() -> Callable[[bytes, int], None]:
    from server.media.clip import FramePlan
    from server.media.decode import VideoSource
    from server.media.faults import DecodeLimits
    from server.media.pictures import Orientation, PictureWriter
    from server.media.sourcefile import SourceFile

    class DroppedFrames(VideoSource):
        def _write_span(
            self, span: Any, packets: Any, writer: Any, decoder: Any, pictures: Any
        ) -> None:
            for _ in self._exact_frames(span, packets, decoder):
                pass

        def drop(self, plan: FramePlan, out: Any) -> None:
            self._write_spans(PictureWriter(plan, out, Orientation()))

    cores = len(os.sched_getaffinity(0))
    limits = DecodeLimits(2**24, 200_000, 2**31, 600, cores)

    def decode(data: bytes, num_frames: int) -> None:
        with DroppedFrames(SourceFile(data), limits) as video:
            facts = video.probe()
            indices = np.linspace(0, facts.num_frames - 1, num_frames, dtype=int).tolist()
            video.drop(FramePlan(tuple(indices), 28, 28), np.empty((num_frames, 28, 28, 3), "u1"))

    return decode


if __name__ == "__main__":
    sys.exit(main())
