import numpy as np
import pytest

from server.embedded.figures import SHAPES, paint
from server.embedded.questions import is_right, questions, time_tolerance_seconds
from server.embedded.scenes import DIRECTIONS, random_scene
from server.embedded.views import sampled


def scenes(count):
    return [random_scene(np.random.default_rng((5, index))) for index in range(count)]


def centre_in(frame, thing):
    """The mean (x, y) of the pixels that have a thing's colour; None where there are too few."""
    is_thing = np.abs(frame.astype(int) - thing.rgb).sum(axis=-1) < 45
    rows, columns = is_thing.nonzero()
    return (columns.mean(), rows.mean()) if len(rows) > 20 else None


def test_the_same_seed_gives_the_same_clip_and_another_seed_another_one():
    first, again, other = (random_scene(np.random.default_rng(seed)) for seed in (3, 3, 4))

    assert first == again != other
    assert np.array_equal(first.frames([2, 5]), again.frames([2, 5]))


def test_a_frame_is_the_same_alone_and_among_others():
    for scene in scenes(8):
        assert np.array_equal(scene.frames()[3], scene.frames([3])[0])


def test_a_clip_has_the_size_and_the_number_of_frames_that_it_claims():
    for scene in scenes(8):
        assert scene.frames().shape == (scene.num_frames, scene.height, scene.width, 3)
        assert scene.frames([0]).dtype == np.uint8


def test_what_is_said_to_move_moves_that_way_and_nothing_else_moves():
    directions = set()
    for scene in scenes(60):
        first, last = scene.frames([0, scene.num_frames - 1])
        for thing in scene.things:
            start, stop = centre_in(first, thing), centre_in(last, thing)
            if start is None or stop is None:
                continue
            moved = np.subtract(stop, start) / min(scene.width, scene.height)
            step = DIRECTIONS.get(thing.direction, (0, 0))
            assert moved @ step > 0.2 or thing.direction is None
            assert np.abs(moved - step * np.abs(moved)).max() < 0.05
            directions.add(thing.direction)
    assert directions == {*DIRECTIONS, None}


def test_what_appears_or_disappears_does_so_at_its_second():
    events = set()
    for scene in scenes(60):
        for thing in scene.events:
            frame = int(np.ceil(thing.event_seconds * scene.fps))
            before, after = scene.frames([frame - 1, frame])
            seen = [centre_in(picture, thing) is not None for picture in (before, after)]
            assert seen == ([False, True] if thing.event == "appears" else [True, False])
            events.add(thing.event)
    assert events == {"appears", "disappears"}


def test_two_events_happen_in_the_order_that_is_told():
    told = 0
    for scene in scenes(60):
        for question in questions(scene, np.random.default_rng(1)):
            if question.kind == "order" and ", then " in question.answer:
                first, then = scene.events
                assert first.event_seconds < then.event_seconds
                assert question.answer == (
                    f"The {first.colour} {first.shape} {first.event}, "
                    f"then the {then.colour} {then.shape} {then.event}."
                )
                told += 1
    assert told > 5


def test_colours_of_a_clip_differ_and_all_things_are_counted():
    counts = set()
    for scene in scenes(200):
        colours = [thing.colour for thing in scene.things]
        assert len(set(colours)) == len(colours)
        (count,) = [
            q.answer for q in questions(scene, np.random.default_rng(1)) if q.kind == "count"
        ]
        assert count == {1: "One.", 2: "Two.", 3: "Three.", 4: "Four."}[len(colours)]
        counts.add(count)
    assert len(counts) == 4


def test_a_second_may_be_wrong_by_the_tolerance_and_no_more():
    scene = next(s for s in scenes(60) if s.events)
    (question, *_) = [
        q for q in questions(scene, np.random.default_rng(1)) if q.event is scene.events[0]
    ]
    truth = scene.events[0].event_seconds
    beyond = int(truth + time_tolerance_seconds(scene.duration_seconds)) + 1

    assert is_right(question, question.answer, scene)
    assert not is_right(question, f"At second {beyond}.", scene)
    assert not is_right(question, "At second two.", scene)


def test_the_seconds_that_the_frames_tell_are_within_the_tolerance():
    told = 0
    for scene in scenes(300):
        view = sampled(scene)
        for question in questions(scene, np.random.default_rng(1)):
            answer = view.answer(question)
            assert answer is None or is_right(question, answer, scene)
            told += question.kind == "time"
    assert told > 100


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_at_the_border_is_cut_off(shape):
    picture = np.zeros((20, 30, 3), np.uint8)
    paint(picture, shape, (200, 0, 0), centre=(29, 0), radius=8)
    paint(picture, shape, (0, 200, 0), centre=(-50, 90), radius=8)

    assert picture[2, 28, 0] == 200
    assert not picture[..., 1].any()
