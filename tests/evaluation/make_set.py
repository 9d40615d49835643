"""``python -m tests.evaluation.make_set``: held-out clips as real videos, and questions about them.

Writes ``questions.jsonl`` with ``clips/*.mp4``, and ``questions-shuffled.jsonl``: the same
questions about ``shuffled/*.mp4``, which have the same pictures in a random order. The same set
every time. Clips that are there already are left as they are, unless other code made them.
"""

import argparse
import hashlib
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import tests.clips.encoded
from server.embedded import backgrounds, figures, heldout, scenes
from server.embedded.heldout import HELD_OUT_SEED, HeldOut, held_out
from server.embedded.questions import Question, time_tolerance_seconds
from server.embedded.scenes import Scene
from tests.clips.counter import Picture
from tests.clips.encoded import write_h264

NUM_CLIPS = 250
QUESTIONS, SHUFFLED = "questions.jsonl", "questions-shuffled.jsonl"

_PICTURES_AT_ONCE = 32
_SECOND = r"At second (\d+)\."


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    num_items = make_set(options.out, range(options.first, options.first + options.clips))
    print(f"{num_items} questions about {options.clips} clips in {options.out / QUESTIONS}")


def make_set(directory: Path, indices: range) -> int:
    """Write both sets about the held-out clips of these indices. Returns how many questions."""
    lines: dict[str, list[str]] = {QUESTIONS: [], SHUFFLED: []}
    _prepare(directory)
    for index in tqdm(indices, unit="clip"):
        clip = held_out(index)
        clips = {QUESTIONS: f"clips/{index:05}.mp4", SHUFFLED: f"shuffled/{index:05}.mp4"}
        orders = {QUESTIONS: list(range(clip.scene.num_frames)), SHUFFLED: shuffled_order(clip)}
        for name, video in clips.items():
            if not (directory / video).exists():
                scene = clip.scene
                write_h264(
                    directory / video,
                    pictures_of(scene, orders[name]),
                    size=(scene.width, scene.height),
                    fps=scene.fps,
                )
            lines[name] += [json.dumps(line) for line in items_of(clip, video)]
    for name, content in lines.items():
        (directory / name).write_text("\n".join(content) + "\n")
    return len(lines[QUESTIONS])


def _prepare(directory: Path) -> None:
    """Make the folders, and remove the clips in them that other code has made."""
    modules = (backgrounds, figures, heldout, scenes, tests.clips.encoded, sys.modules[__name__])
    sources = "".join(inspect.getsource(module) for module in modules)
    maker, stamp = hashlib.sha256(sources.encode()).hexdigest(), directory / "made-by"
    is_other = not stamp.exists() or stamp.read_text() != maker
    for folder in ("clips", "shuffled"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
        for clip in (directory / folder).glob("*.mp4") if is_other else ():
            clip.unlink()
    stamp.write_text(maker)


def items_of(clip: HeldOut, video: str) -> Iterator[dict[str, Any]]:
    """Yields the lines of a set about one clip."""
    for question in clip.questions:
        yield {
            "id": f"{clip.index:05}-{question.kind}",
            "video": video,
            "question": question.text,
            "kind": question.kind,
            **_accepted(question, clip.scene),
        }


def shuffled_order(clip: HeldOut) -> list[int]:
    """Returns the indices of the clip's frames in an order that is always the same."""
    rng = np.random.default_rng((HELD_OUT_SEED, clip.index, 1))
    return [int(index) for index in rng.permutation(clip.scene.num_frames)]


def pictures_of(scene: Scene, order: Sequence[int]) -> Iterable[Picture]:
    """Yields the frames of these indices, only some of which are in memory at once."""
    for start in range(0, len(order), _PICTURES_AT_ONCE):
        yield from scene.frames(order[start : start + _PICTURES_AT_ONCE])


def _accepted(question: Question, scene: Scene) -> dict[str, Any]:
    """Returns the rule of ``server.embedded.questions.is_right`` in the set's words."""
    if question.event is None:
        return {"answers": [question.answer]}
    tolerance = time_tolerance_seconds(scene.duration_seconds)
    match = {"type": "number", "tolerance": tolerance, "pattern": _SECOND}
    return {"answers": [repr(question.event.event_seconds)], "match": match}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.evaluation.make_set")
    parser.add_argument("--out", type=Path, default=Path(".cache/evaluation"), metavar="DIR")
    parser.add_argument("--clips", type=int, default=NUM_CLIPS)
    parser.add_argument("--first", type=int, default=0, help="index of the first held-out clip")
    return parser


if __name__ == "__main__":
    main()
