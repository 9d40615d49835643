"""Clips that training never sees, and one question of each kind about each of them."""

from dataclasses import dataclass

import numpy as np

from server.embedded.questions import KINDS, Question, questions
from server.embedded.scenes import Scene, random_scene
from server.embedded.views import View, sampled

HELD_OUT_SEED = 1_000_000_000
"""Training takes seeds below it."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A clip and what is asked about it."""

    index: int
    view: View
    """The scene, and the frames that the server takes of it by default."""
    questions: tuple[Question, ...]
    """At most one of each kind, all of which those frames can answer."""

    @property
    def scene(self) -> Scene:
        """The clip."""
        return self.view.scene


def held_out(index: int) -> HeldOut:
    """Returns the held-out clip of that index, always the same."""
    rng = np.random.default_rng((HELD_OUT_SEED, index))
    view = sampled(random_scene(rng))
    asked = [q for q in questions(view.scene, rng) if view.answer(q) is not None]
    chosen = []
    for kind in KINDS:
        alike = [question for question in asked if question.kind == kind]
        if alike:
            chosen.append(alike[int(rng.integers(len(alike)))])
    return HeldOut(index, view, tuple(chosen))
