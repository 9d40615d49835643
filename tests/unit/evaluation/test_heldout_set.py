"""The set of held-out clips: videos that decode to what was drawn, and the generator's own rule."""

import json

import numpy as np
import pytest

from server.embedded.heldout import held_out
from server.embedded.questions import is_right
from server.evaluation.questions import Item, load_questions
from server.evaluation.scoring import is_right as is_right_in_set
from tests.clips.decoded import probed, reference_frames
from tests.evaluation.make_set import QUESTIONS, SHUFFLED, items_of, make_set, shuffled_order


@pytest.fixture(scope="module")
def index():
    """A short and small clip, so that encoding it takes no time."""
    scenes = {index: held_out(index).scene for index in range(60)}
    return min(scenes, key=lambda i: scenes[i].num_frames * scenes[i].width * scenes[i].height)


@pytest.fixture(scope="module")
def directory(index, tmp_path_factory):
    directory = tmp_path_factory.mktemp("set")
    make_set(directory, range(index, index + 1))
    return directory


def test_clips_are_h264_in_mp4_and_show_the_scene(directory, index):
    scene = held_out(index).scene
    source = (directory / f"clips/{index:05}.mp4").read_bytes()

    facts = probed(source)

    assert (facts.codec, facts.width, facts.height) == ("h264", scene.width, scene.height)
    assert len(facts.frame_times_seconds) == scene.num_frames
    assert facts.frame_times_seconds[-1] == pytest.approx((scene.num_frames - 1) / scene.fps)
    errors = np.abs(np.subtract(reference_frames(source), scene.frames(), dtype=np.int16))
    assert errors.mean() < 6


def test_shuffled_clips_have_the_same_pictures_in_another_order(directory, index):
    scene, order = held_out(index).scene, shuffled_order(held_out(index))
    frames = reference_frames((directory / f"shuffled/{index:05}.mp4").read_bytes())

    errors = np.abs(np.subtract(frames, scene.frames(order), dtype=np.int16))
    assert errors.mean() < 6
    assert sorted(order) == list(range(scene.num_frames))
    assert order != sorted(order)


def test_both_files_are_sets_of_the_same_questions(directory, index):
    straight, shuffled = (load_questions(directory / name) for name in (QUESTIONS, SHUFFLED))
    asked = [(item.id, item.question, item.answers) for item in straight.items]
    assert [(item.id, item.question, item.answers) for item in shuffled.items] == asked
    assert len(asked) == len(held_out(index).questions)
    assert {item.video for item in shuffled.items} == {f"shuffled/{index:05}.mp4"}


def test_a_set_is_the_same_every_time_and_gone_on_with(directory, index, tmp_path):
    make_set(tmp_path, range(index, index + 1))
    videos = [f"{folder}/{index:05}.mp4" for folder in ("clips", "shuffled")]
    for name in [QUESTIONS, SHUFFLED, *videos]:
        assert (tmp_path / name).read_bytes() == (directory / name).read_bytes()

    (tmp_path / videos[0]).write_bytes(b"mine")
    make_set(tmp_path, range(index, index + 1))
    assert (tmp_path / videos[0]).read_bytes() == b"mine"
    assert not list(tmp_path.rglob("*.unfinished"))

    (tmp_path / "made-by").write_text("other code")
    make_set(tmp_path, range(index, index + 1))
    assert (tmp_path / videos[0]).read_bytes() == (directory / videos[0]).read_bytes()


def test_an_answer_is_right_when_the_generator_says_so():
    others = [f"At second {second}." for second in range(31)]
    others += ["Yes.", "No.", "Two.", " two.", "At second 3", "At second 3. ", ""]
    told = {True: 0, False: 0}
    for clip in map(held_out, range(40)):
        lines = [Item.model_validate_json(json.dumps(line)) for line in items_of(clip, "v.mp4")]
        for question, line in zip(clip.questions, lines, strict=True):
            for answer in [question.answer, *others]:
                expected = is_right(question, answer, clip.scene)
                assert is_right_in_set(line, answer) is expected
                told[expected] += 1
    assert min(told.values()) > 200


def test_the_default_set_is_large_enough():
    assert sum(len(held_out(index).questions) for index in range(40)) >= 40 * 1000 / 250
