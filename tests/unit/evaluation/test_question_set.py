"""Sets of questions: what is a line, and what the fault in one is."""

import json

import pytest

from server.errors import ConfigurationError
from server.evaluation.questions import load_questions, with_wrong_clips
from tests.unit.evaluation.conftest import item


def test_a_set_has_its_items_in_order_and_their_videos_beside_it(write_set, tmp_path):
    remote = item(2, video="https://example.com/a.mp4", match={"type": "contains"})
    path = write_set(item(1, video="clips/a.mp4"), "", remote)

    questions = load_questions(path)

    first, second = questions.items
    assert (first.id, first.answers, first.kind, first.match.type) == ("i1", ["A1"], "odd", "exact")
    assert questions.video_path(first) == tmp_path / "clips/a.mp4"
    assert questions.video_path(second) is None
    assert second.match.type == "contains"


def test_separators_inside_of_texts_are_no_ends_of_lines(write_set):
    path = write_set(json.dumps(item(1), ensure_ascii=False).replace("Q1", "Q\u2028\x85"), item(1))
    with pytest.raises(ConfigurationError, match=r"line 2: id 'i1' is that of line 1 too"):
        load_questions(path)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "Invalid JSON"),
        ("[]", "Input should be an object"),
        (item(2, answers=[]), "answers: List should have at least 1 item"),
        (item(2, answers="A"), "answers: Input should be a valid"),
        (item(2, id=2), "id: Input should be a valid string"),
        (item(2, kind=""), "kind: String should have at least 1 character"),
        (item(2, wrong=1), "wrong: Extra inputs are not permitted"),
        (item(2, kind="", wrong=1), r"\(and 1 more faults\)"),
        (item(2, match={"type": "regex"}), "match.type: Input should be 'exact', 'contains'"),
        (item(2, match={"tolerance": 1.0}), "match: tolerance and pattern are for type number"),
        (item(2, match={"type": "number"}), "answers must be numbers where match.type is number"),
        (
            item(2, answers=["1"], match={"type": "number", "pattern": "("}),
            "match: pattern is no regular expression",
        ),
        (
            item(2, answers=["1"], match={"type": "number", "pattern": r"\d"}),
            "match: pattern must have one group",
        ),
        (
            item(2, answers=["1"], match={"type": "number", "tolerance": -1.0}),
            "match.tolerance: Input should be greater than or equal to 0",
        ),
        ('{"id": "x", "video": "file:///etc/passwd", "question": "q"', "Invalid JSON"),
    ],
)
def test_a_wrong_line_is_named_with_its_fault(write_set, line, fault):
    path = write_set(item(1), line)
    with pytest.raises(ConfigurationError, match=rf"set\.jsonl line 2: .*{fault}") as caught:
        load_questions(path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("video", "fault"),
    [
        ("absent.mp4", "there is no video absent.mp4"),
        ("file:///etc/passwd", "must be a relative path or an http"),
        ("data:video/mp4;base64,AAAA", "must be a relative path or an http"),
        ("/etc/passwd", "must be relative to the file"),
        (".", "there is no video"),
    ],
)
def test_a_video_that_can_not_be_sent_names_its_line(write_set, video, fault):
    path = write_set(item(1), json.dumps(item(2, video=video)))
    with pytest.raises(ConfigurationError, match=rf"line 2: .*{fault}"):
        load_questions(path)


def test_a_file_without_questions_or_no_file_is_a_fault(write_set, tmp_path):
    with pytest.raises(ConfigurationError, match="there is no question in"):
        load_questions(write_set(""))
    with pytest.raises(ConfigurationError, match=r"can not read .*absent"):
        load_questions(tmp_path / "absent.jsonl")


def test_the_digest_is_that_of_lines_and_videos(write_set, tmp_path):
    path = write_set(item(1), item(2))
    before = load_questions(path).digest
    assert load_questions(path).digest == before

    (tmp_path / "v2.mp4").write_bytes(b"\0\0\0\x14ftypanother")
    changed_video = load_questions(path).digest
    changed_line = load_questions(write_set(item(1), item(2, answers=["B"]))).digest
    assert len({before, changed_video, changed_line}) == 3


def test_wrong_clips_are_those_of_other_items_and_always_the_same(write_set):
    lines = [item(n, video=f"v{n // 2}.mp4") for n in range(40)]
    questions = load_questions(write_set(*lines))

    wrong = with_wrong_clips(questions)

    pairs = list(zip(questions.items, wrong.items, strict=True))
    assert all(right.video != other.video for right, other in pairs)
    assert all(right.question == other.question for right, other in pairs)
    assert wrong == with_wrong_clips(questions)
    assert wrong != with_wrong_clips(questions, seed=1)
    with pytest.raises(ConfigurationError, match="no wrong clip"):
        with_wrong_clips(load_questions(write_set(item(1), item(2, video="v1.mp4"))))
