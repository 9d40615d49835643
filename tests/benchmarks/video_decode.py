"""How long a video takes until its frames are there: ``python -m tests.benchmarks.video_decode``.

This server stands beside vLLM's own loaders, each in a process of its own, and they take turns, so
that whatever else the machine does strikes them all alike. All get the same bytes in memory, each
in the form that it takes. ``tests.benchmarks.arms`` lists them. There are three studies:

- ``frames``: until the frames are decoded. All return the same ones, which is checked; ours at the
  size that Qwen2-VL's processor would make of them, theirs at full size.
- ``pixels``: from base64 until there is what the model takes, which must be the same to the bit.
- ``keyframes``: what ``frame_alignment: "keyframe"`` saves. The frames differ by intent.

Results are the medians of the ratios within each round; memory is the peak of the whole process
tree above what it held before, of a run of its own.
"""

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.arms import Arm, Run, started
from tests.benchmarks.footage import Footage

FOOTAGE = {
    "360p": Footage("h264", 360, 30),
    "720p": Footage("h264", 720, 60),
    "1080p": Footage("h264", 1080, 60, repeated=2),
    "1080p-minute": Footage("h264", 1080, 60),
    "10min": Footage("h264", 1080, 60, repeated=10),
    "hevc": Footage("hevc", 720, 60),
    "vp9": Footage("vp9", 720, 60),
    "av1": Footage("av1", 720, 60),
}
COUNTS = ("16", "32", "64", "2fps")
MEMORY_LIMIT = 0.4
"""Most of OpenCV's peak that ours may take."""


@dataclass(frozen=True)
class Study:
    """What is compared with what, and on what unless told otherwise."""

    ours: str
    """The arm that the others are compared with."""
    limits: Mapping[str, float]
    """For each of the others how many times faster ours is at least, over H.264 on average."""
    clips: tuple[str, ...]
    counts: tuple[str, ...] = ("32",)
    is_same: bool = True
    """Whether all must return the same."""

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.ours, *self.limits)


STUDIES = {
    "frames": Study(
        "ours",
        {"opencv": 2.5, "torchcodec": 1.8, "null": 0.9},
        ("360p", "720p", "1080p", "10min", "hevc", "vp9", "av1"),
        COUNTS,
    ),
    "pixels": Study("our-pixels", {"vllm-pixels": 1.8}, ("1080p-minute", "10min")),
    "keyframes": Study("keyframe", {"ours": 10, "opencv": 10}, ("10min",), is_same=False),
}


def main() -> int:
    """Print a table; returns 0 when the limits hold for the H.264 cases that were run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", choices=STUDIES, default="frames")
    parser.add_argument("--clip", action="append", choices=FOOTAGE, help="default: the study's")
    parser.add_argument("--frames", action="append", choices=COUNTS, help="default: the study's")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    study = STUDIES[options.study]
    for clip in options.clip or study.clips:
        FOOTAGE[clip].path()
    with tempfile.TemporaryDirectory() as libraries:
        arms = started(study.arms, Path(libraries))
        cases = []
        print(_header(study), flush=True)
        for clip in options.clip or study.clips:
            for count in options.frames or study.counts:
                case = Case(study, FOOTAGE[clip], count)
                case.run(arms, options.rounds)
                cases.append(case)
                print(case.row(), flush=True)
        for arm in arms.values():
            arm.stop()
        return _report(study, cases)


class Case:
    """One clip at one number of frames."""

    def __init__(self, study: Study, footage: Footage, count: str) -> None:
        self.study = study
        self.footage = footage
        self.count = count
        self.runs: dict[str, list[Run]] = {}
        self.peaks: dict[str, int] = {}

    @property
    def num_frames(self) -> int:
        """Number of frames asked for."""
        seconds = self.footage.seconds * self.footage.repeated
        return 2 * seconds if self.count == "2fps" else int(self.count)

    def run(self, arms: Mapping[str, Arm], rounds: int) -> None:
        """Have the arms decode in turns, and once more each to watch its memory."""
        path = self.footage.path()
        for number in range(rounds):
            names = list(arms)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                run = arms[name].decode(path, self.num_frames)
                self.runs.setdefault(name, []).append(run)
                if name == self.study.ours and run.fault:
                    raise SystemExit(f"{self.footage}: {run.fault}")
        for name, arm in arms.items():
            if not self.fault(name):
                self.peaks[name] = arm.peak_bytes(path, self.num_frames)

    def fault(self, name: str) -> str:
        """Returns why an arm's runs do not count, if they do not."""
        if name not in self.runs:
            return "-"
        run, ours = self.runs[name][0], self.runs[self.study.ours][0]
        is_other = self.study.is_same and not run.shows_the_same(ours)
        return run.fault or ours.fault or ("other frames" if is_other else "")

    def ratio(self, name: str) -> float | None:
        """Returns how many times as long as ours the arm took: the median over the rounds."""
        if self.fault(name):
            return None
        pairs = zip(self.runs[name], self.runs[self.study.ours], strict=True)
        return statistics.median(theirs.seconds / ours.seconds for theirs, ours in pairs)

    def row(self) -> str:
        """Returns a row of the table."""
        seconds = statistics.median(run.seconds for run in self.runs[self.study.ours])
        cells = [f"{self.footage}, {self.count}", f"{seconds:.2f}"]
        for name in self.study.limits:
            ratio = self.ratio(name)
            cells.append(self.fault(name) if ratio is None else f"{ratio:.2f}")
        for name in self.study.arms:
            cells.append(f"{self.peaks[name] / 1e6:.0f}" if name in self.peaks else "-")
        return "| " + " | ".join(cells) + " |"


def _header(study: Study) -> str:
    cells = ["clip, frames", f"{study.ours} s"]
    cells += [f"{name} / {study.ours}" for name in study.limits]
    cells += [f"{name} MB" for name in study.arms]
    return f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}"


def _report(study: Study, cases: Sequence[Case]) -> int:
    h264 = [case for case in cases if case.footage.codec == "h264"]
    holds = True
    for name, limit in study.limits.items():
        ratios = [ratio for case in h264 if (ratio := case.ratio(name)) is not None]
        if ratios:
            mean, slowest, least = _mean(ratios), min(ratios), min(1.0, limit)
            print(
                f"{name} / {study.ours} over H.264: {mean:.2f}, limit {limit}; "
                f"at least {slowest:.2f}, limit {least}"
            )
            holds &= mean >= limit and slowest >= least
    shares = [
        case.peaks[study.ours] / case.peaks["opencv"] for case in h264 if "opencv" in case.peaks
    ]
    if shares:
        print(
            f"peak memory, {study.ours} / opencv over H.264: {_mean(shares):.2f}, "
            f"limit {MEMORY_LIMIT}; at most {max(shares):.2f}"
        )
        holds &= _mean(shares) <= MEMORY_LIMIT
    return 0 if holds else 1


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


if __name__ == "__main__":
    sys.exit(main())
