"""What can be asked about a scene, and the one right answer to it.

An answer is right if it equals the canonical one, with one exception: a second may be wrong by
``time_tolerance_seconds``, because the model sees only some of the frames.
"""

import re
from dataclasses import dataclass

import numpy as np

from server.embedded import phrasing
from server.embedded.scenes import Scene, Thing

KINDS = (
    *("colour", "shape", "direction", "count", "order"),
    *("time", "moving", "describe", "unknown"),
)

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")
_SECOND = re.compile(r"At second (\d+)\.")


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a clip and its answer."""

    kind: str
    """One of KINDS."""
    text: str
    answer: str
    event: Thing | None = None
    """What a question of kind time is about."""


def is_right(question: Question, answer: str, scene: Scene) -> bool:
    """Returns whether ``answer`` is right."""
    answer = answer.strip()
    if question.event is None:
        return answer == question.answer
    found = _SECOND.fullmatch(answer)
    if found is None:
        return False
    error = abs(int(found[1]) - question.event.event_seconds)
    return error <= time_tolerance_seconds(scene.duration_seconds)


def time_tolerance_seconds(duration_seconds: float) -> float:
    """Returns how far a named second may be from the truth: 1.5 s, or an eighth of the clip."""
    return max(1.5, duration_seconds / 8)


def at_second(seconds: float) -> str:
    """Returns the answer that names the second."""
    return f"At second {int(seconds)}."


def questions(scene: Scene, rng: np.random.Generator) -> list[Question]:
    """Returns everything that ``rng`` thinks of asking, at least one of each kind that applies."""
    asked = [
        *_about_looks(scene, rng),
        *_about_motion(scene, rng),
        *_about_events(scene, rng),
        Question("count", _pick(rng, phrasing.COUNT), f"{_number(len(scene.things))}."),
        Question("describe", _pick(rng, phrasing.DESCRIBE), description(scene)),
        *_about_the_unknown(scene, rng),
    ]
    return [_as_typed(question, rng) for question in asked]


def description(scene: Scene) -> str:
    """Returns the sentence that describes the scene: its things in the order of COLOURS."""
    clauses = [f"a {thing.colour} {thing.shape} {_verb(thing)}" for thing in scene.things]
    listed = ", ".join(clauses[:-1]) + " and " + clauses[-1] if len(clauses) > 1 else clauses[0]
    return f"{listed[0].upper()}{listed[1:]}."


def _about_looks(scene: Scene, rng: np.random.Generator) -> list[Question]:
    asked = []
    for thing in scene.things:
        shape = f"A {thing.shape}."
        colour = f"{thing.colour.capitalize()}."
        asked.append(Question("shape", _fill(rng, phrasing.SHAPE, thing), shape))
        if _is_only(scene, "shape", thing):
            asked.append(Question("colour", _fill(rng, phrasing.COLOUR, thing), colour))
        if thing.direction and sum(other.direction is not None for other in scene.things) == 1:
            asked.append(Question("shape", _pick(rng, phrasing.SHAPE_OF_MOVER), shape))
            asked.append(Question("colour", _pick(rng, phrasing.COLOUR_OF_MOVER), colour))
    return asked


def _about_motion(scene: Scene, rng: np.random.Generator) -> list[Question]:
    any_moves = any(thing.direction for thing in scene.things)
    asked = [Question("moving", _pick(rng, phrasing.ANYTHING_MOVES), _yes_or_no(any_moves))]
    for thing in scene.things:
        if thing.direction:
            towards = f"{thing.direction.capitalize()}."
            asked.append(Question("direction", _fill(rng, phrasing.DIRECTION, thing), towards))
        elif rng.random() < 0.25:
            asked.append(Question("direction", _fill(rng, phrasing.DIRECTION, thing), "Nowhere."))
        if rng.random() < 0.4:
            moves = _yes_or_no(thing.direction is not None)
            asked.append(Question("moving", _fill(rng, phrasing.THING_MOVES, thing), moves))
    return asked


def _about_events(scene: Scene, rng: np.random.Generator) -> list[Question]:
    asked = []
    for thing in scene.events:
        patterns = phrasing.WHEN[str(thing.event)]
        second = at_second(thing.event_seconds)
        asked.append(Question("time", _fill(rng, patterns, thing), second, thing))
    if len(scene.events) == 2:
        first, then = scene.events
        told = f"The {_name(first)} {first.event}, then the {_name(then)} {then.event}."
        asked.append(Question("order", _pick(rng, phrasing.ORDER), told))
        if first.event == then.event:
            which = _pick(rng, phrasing.FIRST_OF[str(first.event)])
            asked.append(Question("order", which, f"The {_name(first)}."))
    return asked


def _about_the_unknown(scene: Scene, rng: np.random.Generator) -> list[Question]:
    asked = [Question("unknown", phrasing.unknowable(rng), phrasing.CAN_NOT_KNOW)]
    absent = phrasing.about_an_absent(
        rng,
        colours={thing.colour for thing in scene.things},
        shapes={thing.shape for thing in scene.things},
    )
    return [*asked, Question("unknown", absent, phrasing.NOT_THERE)]


def _as_typed(question: Question, rng: np.random.Generator) -> Question:
    """Returns the question with the small and large letters and the end that someone gave it."""
    text = question.text
    if rng.random() < 0.15:
        text = text.lower()
    if rng.random() < 0.15:
        text = text.rstrip("?.")
    return Question(question.kind, text, question.answer, question.event)


def _is_only(scene: Scene, field: str, thing: Thing) -> bool:
    return [getattr(t, field) for t in scene.things].count(getattr(thing, field)) == 1


def _name(thing: Thing) -> str:
    return f"{thing.colour} {thing.shape}"


def _verb(thing: Thing) -> str:
    return thing.event or (f"moves {thing.direction}" if thing.direction else "stays still")


def _number(count: int) -> str:
    return _NUMBERS[count].capitalize()


def _yes_or_no(holds: bool) -> str:
    return "Yes." if holds else "No."


def _pick(rng: np.random.Generator, patterns: tuple[str, ...]) -> str:
    return patterns[int(rng.integers(len(patterns)))]


def _fill(rng: np.random.Generator, patterns: tuple[str, ...], thing: Thing) -> str:
    return _pick(rng, patterns).format(colour=thing.colour, shape=thing.shape)
