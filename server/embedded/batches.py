"""Batches of training clips of one size and length, made from a seed and a number alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from server.conversation import SamplingWish
from server.embedded import views
from server.embedded.architecture import MAX_FRAMES, PATCH_PIXELS
from server.embedded.questions import KINDS, Question, questions
from server.embedded.scenes import LONGEST_SECONDS, SHORTEST_SECONDS, SIZES, random_scene
from server.embedded.turns import Opening, Prompts, Turns
from server.embedded.views import NO_LABEL, View

_KIND_WEIGHTS = {
    **{"colour": 2.5, "shape": 1.0, "direction": 1.0, "count": 0.5, "order": 3.0},
    **{"time": 2.5, "moving": 0.5, "describe": 1.5, "unknown": 0.8},
}
"""How often each kind is asked; most of all the late learners."""
_FINDING_WEIGHTS = _KIND_WEIGHTS | {"colour": 6.0, "unknown": 2.5}
"""The same when objects are to be found by their shapes, which no other kinds ask for."""
_SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You answer questions about the video.",
    "You are a helpful assistant that can see a video clip.",
)
_RATES = (0.0, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class Batch:
    """Clips with one grid, as tensors."""

    patches: torch.Tensor
    """Bytes, shape (clips, t * h * w, channels * pixels)."""
    grid: tuple[int, int, int]
    """t, h and w in patches."""
    rate: float
    """At which the video tokens are to be pruned."""
    token_labels: dict[str, torch.Tensor]
    """By head, shape (clips, tokens)."""
    change_labels: dict[str, torch.Tensor]
    """The same for the language model's heads."""
    opening_ids: torch.Tensor
    """Shape (clips, N)."""
    is_video: torch.Tensor
    """Shape (N,), for all clips."""
    opening_positions: torch.Tensor
    """Shape (N, 3), for all clips."""
    turn_ids: torch.Tensor
    """Shape (clips, M), as are the following; padded."""
    labels: torch.Tensor
    offsets: torch.Tensor
    question: torch.Tensor
    """0 is padding."""
    pointed: torch.Tensor
    """As in Turns."""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """How hard a batch is; training goes from easy to hard."""

    progress: float
    """Part of the training that is done, in [0, 1)."""

    @property
    def prunes(self) -> bool:
        """Whether video tokens are removed yet."""
        return self.progress > 0.06

    def num_frames(self, rng: np.random.Generator) -> int:
        """Returns how many frames clips have."""
        if self.progress < 0.08:
            return int(2 * rng.integers(2, 5))
        share = 0.2 if self.progress < 0.7 else 0.45
        return MAX_FRAMES if rng.random() < share else int(2 * rng.integers(2, MAX_FRAMES // 2))


class BatchMaker:
    """Makes any batch of a training, independent of the others."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        seed: int,
        clips: int,
        questions_per_clip: int,
        steps: int,
        finds_shapes: bool = False,
    ) -> None:
        self._prompts = Prompts(tokenizer)
        self._kind_weights = _FINDING_WEIGHTS if finds_shapes else _KIND_WEIGHTS
        self._seed = seed
        self._clips = clips
        self._questions = questions_per_clip
        self._steps = steps

    def batch(self, step: int, process: int = 0) -> Batch:
        """Returns the batch of a process at that step; all processes have clips of one length."""
        difficulty = Difficulty(step / self._steps)
        num_frames = difficulty.num_frames(np.random.default_rng((self._seed, step)))
        rng = np.random.default_rng((self._seed, step, process))
        size = SIZES[rng.integers(len(SIZES))]
        rate = _rate(rng) if difficulty.prunes else 0.0
        system = str(rng.choice(_SYSTEM_PROMPTS)) if rng.random() < 0.06 else None
        is_dialogue = bool(rng.random() < 0.15)
        seen = [_view(rng, size, num_frames) for _ in range(self._clips)]
        return self._assembled(rng, seen, rate, system, is_dialogue)

    def _assembled(
        self,
        rng: np.random.Generator,
        seen: list[View],
        rate: float,
        system: str | None,
        is_dialogue: bool,
    ) -> Batch:
        width, height = views.frame_size(seen[0].scene.width, seen[0].scene.height)
        rows, columns = height // views.TOKEN_PIXELS, width // views.TOKEN_PIXELS
        openings = [
            self._prompts.opening(view.timestamps, rows, columns, system=system) for view in seen
        ]
        turns = [
            self._prompts.turns(self._pairs(rng, view), is_dialogue=is_dialogue) for view in seen
        ]
        labels = [views.token_labels(view) for view in seen]
        return Batch(
            patches=torch.from_numpy(np.stack([_drawn(rng, view) for view in seen])),
            grid=(seen[0].num_grids, height // PATCH_PIXELS, width // PATCH_PIXELS),
            rate=rate,
            token_labels=_stacked([seen_labels for seen_labels, _ in labels]),
            change_labels=_stacked([change_labels for _, change_labels in labels]),
            **_opening_tensors(openings),
            **_turn_tensors(turns),
        )

    def _pairs(self, rng: np.random.Generator, view: View) -> list[tuple[str, str]]:
        """Returns as many questions as wanted, or all there are, and the frames' answers."""
        asked = [(question, view.answer(question)) for question in questions(view.scene, rng)]
        known = [(question, answer) for question, answer in asked if answer is not None]
        weights = _weights([question for question, _ in known], self._kind_weights)
        count = min(self._questions, len(known))
        chosen = rng.choice(len(known), size=count, replace=False, p=weights)
        return [(known[index][0].text, known[index][1]) for index in chosen]


def _rate(rng: np.random.Generator) -> float:
    if rng.random() < 0.6:
        return float(rng.choice(_RATES, p=(0.2, 0.15, 0.25, 0.25, 0.15)))
    return float(rng.uniform(0, 0.92))


def _view(rng: np.random.Generator, size: tuple[int, int], num_frames: int) -> View:
    """Returns a scene of that size of which the server takes that many frames."""
    if rng.random() < 0.25:
        scene = random_scene(rng, size=size)
        view = views.sampled(scene, SamplingWish(num_frames=num_frames))
        if len(view.frame_indices) == num_frames:
            return view
    # At two frames a second, within what the server's floor and cap make of it.
    shortest = SHORTEST_SECONDS if num_frames == 4 else num_frames / 2
    longest = LONGEST_SECONDS if num_frames == MAX_FRAMES else num_frames / 2
    while True:
        seconds = float(np.exp(rng.uniform(np.log(shortest), np.log(longest))))
        view = views.sampled(random_scene(rng, size=size, duration_seconds=seconds))
        if len(view.frame_indices) == num_frames:
            return view


def _drawn(rng: np.random.Generator, view: View) -> NDArray[np.uint8]:
    quality = int(rng.integers(35, 95)) if rng.random() < 0.4 else None
    return views.patches(views.pictures(view, jpeg_quality=quality))


def _weights(asked: list[Question], kinds: dict[str, float]) -> NDArray[np.float64]:
    """Returns the chance of each question: that of its kind, shared among those of the kind."""
    numbers = {kind: sum(q.kind == kind for q in asked) for kind in KINDS}
    weights = np.array([kinds[q.kind] / numbers[q.kind] ** 0.5 for q in asked])
    return np.asarray(weights / weights.sum())


def _stacked(labels: list[dict[str, NDArray[np.int64]]]) -> dict[str, torch.Tensor]:
    return {
        head: torch.from_numpy(np.stack([label[head] for label in labels])) for head in labels[0]
    }


def _opening_tensors(openings: list[Opening]) -> dict[str, torch.Tensor]:
    return {
        "opening_ids": torch.from_numpy(np.stack([opening.token_ids for opening in openings])),
        "is_video": torch.from_numpy(openings[0].is_video),
        "opening_positions": torch.from_numpy(openings[0].positions),
    }


def _turn_tensors(turns: list[Turns]) -> dict[str, torch.Tensor]:
    longest = max(len(turn.token_ids) for turn in turns)

    def padded(name: str, filling: int) -> torch.Tensor:
        rows = np.full((len(turns), longest), filling)
        for row, turn in zip(rows, turns, strict=True):
            values = getattr(turn, name)
            row[: len(values)] = values
        return torch.from_numpy(rows)

    return {
        "turn_ids": padded("token_ids", 0),
        "labels": padded("labels", NO_LABEL),
        "offsets": padded("offsets", 0),
        "question": padded("question", 0),
        "pointed": padded("pointed", 0),
    }
