"""The file of answers: it outlives its writer, and is not gone on with by another run."""

import pytest

from server.errors import ConfigurationError
from server.evaluation.answers import Answer, opened_log

TOLD = {"model": "tiny", "cold": True}


def answer(number, rate=0.5, **changes):
    return Answer(id=f"i{number}", rate=rate, kind="k", **{"text": "A", **changes})


def test_answers_are_there_again_and_the_last_one_counts(tmp_path):
    path = tmp_path / "new" / "answers.jsonl"
    with opened_log(path, TOLD) as log:
        log.add(answer(1, text="\u2028 first\n"))
        log.add(answer(2, rate=None, stages_ms={"decode": 1.5}, is_right=True))
        log.add(answer(1, text="second"))
    with opened_log(path, TOLD) as log:
        kept = log.answers

    assert kept == {
        ("i1", 0.5): answer(1, text="second"),
        ("i2", None): answer(2, rate=None, stages_ms={"decode": 1.5}, is_right=True),
    }


def test_what_a_killed_process_wrote_of_a_line_is_dropped(tmp_path):
    path = tmp_path / "answers.jsonl"
    with opened_log(path, TOLD) as log:
        log.add(answer(1))
        log.add(answer(2))
    path.write_bytes(path.read_bytes()[:-5])
    with opened_log(path, TOLD) as log:
        assert [log.has(("i1", 0.5)), log.has(("i2", 0.5))] == [True, False]
        log.add(answer(2))
    with opened_log(path, TOLD) as log:
        assert len(log.answers) == 2


@pytest.mark.parametrize(
    ("changes", "final"),
    [
        ({}, True),
        ({"error": "no", "status": 400}, True),
        ({"error": "busy", "status": 503}, False),
        ({"error": "late"}, False),
    ],
)
def test_only_what_would_come_again_is_not_asked_again(tmp_path, changes, final):
    with opened_log(tmp_path / "answers.jsonl", TOLD) as log:
        log.add(answer(1, **changes))
        assert log.has(("i1", 0.5)) is final


def test_answers_under_other_circumstances_are_not_mixed(tmp_path):
    path = tmp_path / "answers.jsonl"
    with opened_log(path, TOLD) as log:
        log.add(answer(1))
    with (
        pytest.raises(ConfigurationError, match=r"model: 'tiny', now 'big'.*--restart"),
        opened_log(path, {**TOLD, "model": "big"}),
    ):
        pass
    with opened_log(path, {**TOLD, "model": "big"}, restart=True) as log:
        assert log.answers == {}


def test_a_run_that_got_no_answer_stands_in_no_ones_way(tmp_path):
    path = tmp_path / "answers.jsonl"
    with opened_log(path, TOLD):
        pass
    with opened_log(path, {**TOLD, "model": "big"}) as log:
        log.add(answer(1))
    with opened_log(path, {**TOLD, "model": "big"}) as log:
        assert len(log.answers) == 1


@pytest.mark.parametrize("content", ["no json\n", "[]\n", '{"model": "tiny", "cold": true}\n{}\n'])
def test_a_file_that_holds_no_answers_is_left_alone(tmp_path, content):
    path = tmp_path / "answers.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="holds no answers"), opened_log(path, TOLD):
        pass
    assert path.read_text() == content


def test_a_directory_that_can_not_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigurationError, match="can not keep answers in"),
        opened_log(tmp_path / "file" / "answers.jsonl", TOLD),
    ):
        pass
