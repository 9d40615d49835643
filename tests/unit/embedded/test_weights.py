"""The checkpoint that comes with the package."""

from dataclasses import replace

import numpy as np
import pytest

from server.embedded import views
from server.embedded.answering import Answerer
from server.embedded.architecture import WEIGHTS
from server.embedded.backgrounds import Background
from server.embedded.figures import COLOURS
from server.embedded.phrasing import CAN_NOT_KNOW
from server.embedded.scenes import Scene, Thing

pytestmark = pytest.mark.skipif(
    not (WEIGHTS / "config.json").exists(), reason="the weights are still being trained"
)

LIMIT_BYTES = 16_000_000
MOVER = Thing(
    "red", "circle", COLOURS["red"], 0.17, start=(0.3, 0.7), stop=(1.4, 0.7), direction="right"
)
NEWCOMER = Thing(
    "blue",
    "square",
    COLOURS["blue"],
    0.17,
    start=(1.3, 0.25),
    stop=(1.3, 0.25),
    event="appears",
    event_seconds=4.0,
)
SCENE = Scene(
    width=320,
    height=180,
    fps=24,
    num_frames=192,
    background=Background("texture", (150.0, 160.0, 140.0), contrast=15.0, noise=0.0, seed=1),
    things=(MOVER, NEWCOMER),
)


@pytest.fixture(scope="module")
def answerer():
    return Answerer(WEIGHTS)


def asked(answerer, text, *, scene=SCENE, rate=0.0):
    view = views.sampled(scene)
    return answerer.answer(answerer.watch(view, scene.frames(view.frame_indices), rate=rate), text)


def test_it_is_small():
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) <= LIMIT_BYTES


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("What colour is the circle?", "Red."),
        ("What shape is the blue object?", "A square."),
        ("Which way does the red circle move?", "Right."),
        ("How many objects are there?", "Two."),
        ("Is anything moving?", "Yes."),
        ("Describe the video.", "A red circle moves right and a blue square appears."),
        ("What is the name of the person?", CAN_NOT_KNOW),
    ],
)
def test_it_answers_rightly(answerer, text, answer, rate):
    assert asked(answerer, text, rate=rate) == answer


def test_it_tells_when_something_appears(answerer):
    said = asked(answerer, "At what second does the blue square appear?")

    assert abs(int(said.removeprefix("At second ").removesuffix(".")) - 4) <= 1


def test_another_clip_has_another_answer(answerer):
    other = replace(SCENE, things=(replace(MOVER, colour="green", rgb=COLOURS["green"]),))

    assert asked(answerer, "What colour is the circle?", scene=other) == "Green."
    assert asked(answerer, "How many objects are there?", scene=other) == "One."


def test_frames_in_another_order_mislead_it(answerer):
    view = views.sampled(SCENE)
    backwards = SCENE.frames(view.frame_indices[::-1])
    watched = answerer.watch(view, np.ascontiguousarray(backwards))

    assert answerer.answer(watched, "Which way does the red circle move?") == "Left."
