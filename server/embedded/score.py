"""``python -m server.embedded.score``: right answers on held-out clips, by kind and rate."""

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from server.embedded.heldout import HeldOut

CONTROLS = ("none", "shuffled", "wrong-clip")
Cell = tuple[str, float]
"""Kind and rate."""


def main() -> None:
    """Score as the command line says, and print the table."""
    options = _parser().parse_args()
    import torch

    torch.set_num_threads(options.threads)
    right, asked = scores(
        options.model,
        range(options.first, options.first + options.clips),
        options.rates,
        control=options.control,
        show_wrong=options.show_wrong,
    )
    print(table(right, asked, options.rates))


def scores(
    model: Path,
    indices: range,
    rates: Iterable[float],
    *,
    control: str = "none",
    show_wrong: bool = False,
) -> tuple[Counter[Cell], Counter[Cell]]:
    """Returns how many answers are right, and how many were asked for, by kind and rate.

    Args:
        model: directory of a checkpoint.
        indices: of held-out clips.
        rates: pruning rates.
        control: ``shuffled`` shows each clip's frames in a random order, ``wrong-clip`` those of
            the clip before; either must ruin the scores.
        show_wrong: whether wrong answers are printed.
    """
    from tqdm import tqdm

    from server.embedded.answering import Answerer
    from server.embedded.heldout import held_out
    from server.embedded.questions import is_right

    answerer = Answerer(model)
    right: Counter[Cell] = Counter()
    asked: Counter[Cell] = Counter()
    for index in tqdm(indices):
        clip = held_out(index)
        frames = _frames(clip, control)
        for rate in rates:
            watched = answerer.watch(clip.view, frames, rate=rate)
            for question in clip.questions:
                answer = answerer.answer(watched, question.text)
                is_good = is_right(question, answer, clip.scene)
                asked[question.kind, rate] += 1
                right[question.kind, rate] += is_good
                if show_wrong and not is_good:
                    told = f"{question.text} {question.answer!r}, not {answer!r}"
                    tqdm.write(f"{index} at {rate}: {told}")
    return right, asked


def table(right: Counter[Cell], asked: Counter[Cell], rates: Iterable[float]) -> str:
    """Returns the scores in Markdown."""
    from server.embedded.questions import KINDS

    rates = list(rates)
    lines = [
        "| kind | asked | " + " | ".join(f"rate {rate:g}" for rate in rates) + " |",
        "|---|---|" + "---|" * len(rates),
    ]
    for kind in KINDS:
        if number := asked[kind, rates[0]]:
            parts = [f"{100 * right[kind, rate] / number:.1f} %" for rate in rates]
            lines.append(f"| {kind} | {number} | {' | '.join(parts)} |")
    total = sum(asked[kind, rates[0]] for kind in KINDS)
    parts = [f"{100 * sum(right[kind, rate] for kind in KINDS) / total:.1f} %" for rate in rates]
    lines.append(f"| all | {total} | {' | '.join(parts)} |")
    return "\n".join(lines)


def _frames(clip: "HeldOut", control: str) -> "NDArray[np.uint8]":
    import numpy as np

    from server.embedded.heldout import held_out

    view = clip.view
    if control == "wrong-clip":
        other = held_out(clip.index - 1 if clip.index else 1).scene
        count = len(view.frame_indices)
        return other.frames(np.linspace(0, other.num_frames - 1, count).astype(int).tolist())
    if control == "shuffled":
        order = np.random.default_rng(clip.index).permutation(view.frame_indices)
        return view.scene.frames(order.tolist())
    return view.scene.frames(view.frame_indices)


def _parser() -> argparse.ArgumentParser:
    from server.embedded.architecture import WEIGHTS

    parser = argparse.ArgumentParser(prog="python -m server.embedded.score", description=__doc__)
    parser.add_argument("--model", type=Path, default=WEIGHTS, help="directory of a checkpoint")
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="index of the first held-out clip")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0, 0.25, 0.5, 0.75, 0.9])
    parser.add_argument("--control", choices=CONTROLS, default="none")
    parser.add_argument("--show-wrong", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    main()
