"""``video-chat-server eval`` against a server over HTTP, from the command line to the report."""

import json
import os
import signal

import pytest

from server.cli import main
from server.errors import ConfigurationError
from server.evaluation.command import EvaluationOptions
from tests.unit.evaluation.conftest import item
from tests.unit.evaluation.fakeserver import FakeServer, Reply, running

RATES = ("0", ".5", ".75")


@pytest.fixture
def evaluate(fake, write_set, tmp_path):
    """Returns a function that runs the command on four items, and returns its exit code."""
    lines = [item(n) for n in range(4)]

    def run(*flags, rates=RATES, name="set.jsonl"):
        path = write_set(*lines, name=name)
        common = ["--set", str(path), "--out", str(tmp_path / "out"), "--base-url", fake.base_url]
        return main(["eval", *common, "--rates", *rates, *flags])

    return run


@pytest.fixture
def report(tmp_path):
    """Returns the JSON report of a run."""
    return lambda name="evaluation": json.loads((tmp_path / "out" / f"{name}.json").read_text())


def right_below(limit):
    """Returns a reply that knows items 0 to 3 at rate 0, and one less for each .25 of a rate."""

    def reply(asked):
        number = int(asked.question[1])
        return Reply(f"A{number}" if number < limit - 4 * (asked.rate or 0) else "?")

    return reply


def shares(report):
    return [[r["accuracy"]["all"][key] for key in ("right", "asked")] for r in report["rates"]]


def test_the_tables_have_the_numbers(fake, evaluate, report, capsys, tmp_path):
    fake.reply = right_below(4)

    assert evaluate() == 0

    told = report()
    assert shares(told) == [[4, 4], [2, 4], [1, 4]]
    assert [r["accuracy"]["odd"]["right"] for r in told["rates"]] == [2, 1, 0]
    assert told["rates"][1]["accuracy"]["all"]["interval"] == pytest.approx([0.15, 0.85], abs=1e-3)
    assert (told["chance"]["all"]["right"], told["chance"]["all"]["asked"]) == (2, 4)
    assert [r["prompt_tokens"]["mean"] for r in told["rates"]] == [100, 60, 40]
    assert [r["video_tokens"]["median"] for r in told["rates"]] == [80, 40, 20]
    assert [r["time_to_first_token_ms"]["median"] for r in told["rates"]] == [110, 60, 35]
    assert [r["stages_ms"]["prefill"]["p90"] for r in told["rates"]] == [100, 50, 25]
    assert [r["num_with_cached_tokens"] for r in told["rates"]] == [4, 0, 0]
    assert [r["num_cold"] for r in told["rates"]] == [4, 4, 4]
    output = capsys.readouterr().out
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in output.splitlines()
        if line.startswith("|")
    }
    assert cells["all"] == [
        *("4", "50.0", "100.0 (51.0 to 100.0)", "50.0 (15.0 to 85.0)", "25.0 (4.6 to 69.9)")
    ]
    assert cells["odd"][:2] == ["2", "50.0"]
    assert cells["points against rate 0"] == ["", "", "+0.0", "-50.0", "-75.0"]
    assert "errors" not in cells
    markdown = (tmp_path / "out" / "evaluation.md").read_text()
    for line in output.splitlines():
        assert not line.startswith("|") or line in markdown
    assert "| rate 0.5 | 60.0 / 60.0 | -45.5 % |" in " ".join(markdown.split())
    assert "| 10.0 / 10.0 | 50.0 / 50.0 |" in " ".join(markdown.split())
    assert "(evaluation.svg)" in markdown
    assert (tmp_path / "out" / "evaluation.svg").exists()


def test_rates_take_turns_at_being_first(fake, evaluate):
    evaluate()
    asked = [(a.question, a.rate) for a in fake.asked_in_run()]
    assert asked[:6] == [
        *(("Q0?", 0), ("Q0?", 0.5), ("Q0?", 0.75)),
        *(("Q1?", 0.5), ("Q1?", 0.75), ("Q1?", 0)),
    ]
    assert len(asked) == 12


def test_a_rerun_asks_only_what_is_missing(fake, evaluate, report, capsys):
    fake.reply = right_below(4)
    evaluate("--limit", "2", rates=("0",))
    assert shares(report()) == [[2, 2]]
    fake.asked.clear()

    assert evaluate("--limit", "3", rates=("0", ".5")) == 0

    asked = {(a.question, a.rate) for a in fake.asked_in_run()}
    assert asked == {("Q2?", 0), ("Q0?", 0.5), ("Q1?", 0.5), ("Q2?", 0.5)}
    assert "2 of 6 answers are in" in capsys.readouterr().err
    assert shares(report()) == [[3, 3], [2, 3]]


def test_an_interrupted_run_keeps_and_reports_what_has_come(fake, evaluate, report, capsys):
    def interrupt(asked):
        if len(fake.asked_in_run()) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return Reply("A" + asked.question[1])

    fake.reply = interrupt
    assert evaluate("--concurrency", "1") == 130

    assert "interrupted; what has come is kept" in capsys.readouterr().err
    told = report()
    done = sum(rate["accuracy"]["all"]["asked"] for rate in told["rates"])
    assert done in (4, 5)
    assert sum(rate["num_missing"] for rate in told["rates"]) == 12 - done
    fake.asked.clear()
    fake.reply = right_below(4)
    assert evaluate() == 0
    assert len(fake.asked_in_run()) == 12 - done
    assert [asked for _, asked in shares(report())] == [4, 4, 4]


def test_an_interrupt_before_the_first_question_is_quiet(fake, evaluate, capsys):
    def interrupt(asked):
        os.kill(os.getpid(), signal.SIGINT)
        return Reply()

    fake.reply = interrupt
    assert evaluate() == 130
    assert capsys.readouterr().err == ""


def test_a_server_that_goes_away_ends_the_run_and_keeps_what_has_come(
    write_set, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("server.evaluation.asking.MAX_CONNECTION_RETRIES", 0)
    path = write_set(*[item(n) for n in range(4)])
    with running(FakeServer()) as server:
        server.reply = lambda asked: Reply(status=200)
        flags = ["--set", str(path), "--out", str(tmp_path / "out"), "--rates", "0"]
        common = ["eval", *flags, "--base-url", server.base_url, "--model", "tiny"]
        assert main([*common, "--limit", "2"]) == 0
    assert main(common) == 2
    assert "no server answers at http://127.0.0.1" in capsys.readouterr().err
    assert len((tmp_path / "out" / "evaluation-answers.jsonl").read_text().splitlines()) == 3


def test_errors_are_no_wrong_answers_and_only_those_that_may_pass_are_asked_again(
    fake, evaluate, report, capsys
):
    def reply(asked):
        faults = {"Q1?": Reply(status=413, message="big"), "Q2?": Reply(status=500)}
        return faults.get(asked.question, Reply("A" + asked.question[1]))

    fake.reply = reply
    assert evaluate(rates=("0",)) == 0

    assert shares(report()) == [[2, 2]]
    assert report()["rates"][0]["num_errors"] == 2
    assert "| errors" in capsys.readouterr().out
    fake.asked.clear()
    fake.reply = lambda asked: Reply("A" + asked.question[1])
    evaluate(rates=("0",))
    assert [a.question for a in fake.asked_in_run()] == ["Q2?"]
    assert shares(report()) == [[3, 3]]


def test_a_server_that_refuses_rates_is_measured_at_its_own(fake, evaluate, report, capsys):
    fake.has_metrics = False
    refusal = Reply(status=400, message="Unknown parameter: video_pruning_rate")
    fake.reply = lambda asked: Reply("A1") if asked.rate is None else refusal

    assert evaluate() == 0

    told = report()
    (rate,) = told["rates"]
    assert (rate["rate"], rate["accuracy"]["all"]["right"]) == (None, 1)
    assert told["is_measured_by_server"] is False
    assert rate["time_to_first_token_ms"] == rate["client_time_to_first_token_ms"]
    (note,) = told["notes"]
    assert note.startswith("the server refuses video_pruning_rate (")
    assert note.endswith("it is measured at its own rate only")
    assert note in capsys.readouterr().err


def test_a_server_that_ignores_rates_is_not_measured_at_them(fake, evaluate, report):
    fake.has_metrics = fake.heeds_rates = False
    assert evaluate() == 0
    told = report()
    assert [rate["rate"] for rate in told["rates"]] == [None]
    assert "the prompt is as long at every rate" in told["notes"][0]


def test_rates_above_the_servers_limit_are_left_out(fake, evaluate, report):
    fake.reply = lambda asked: Reply(status=400 if (asked.rate or 0) > 0.6 else 200, message="max")
    assert evaluate() == 0
    told = report()
    assert [rate["rate"] for rate in told["rates"]] == [0, 0.5]
    assert told["notes"][0].startswith("the server refuses the rates 0.75 (")


def test_a_wrong_clip_is_that_of_another_item(fake, evaluate, report, tmp_path):
    # Knows the video, not the question.
    fake.reply = lambda asked: Reply(
        "A" + chr(asked.video_bytes[asked.video_bytes.find(b".mp4") - 1])
    )
    evaluate(rates=("0",))
    evaluate("--control", "wrong-clip", rates=("0",))
    assert shares(report()) == [[4, 4]]
    assert shares(report("evaluation-wrong-clip")) == [[0, 4]]
    markdown = (tmp_path / "out" / "evaluation-wrong-clip.md").read_text()
    assert "every question is asked about another clip" in markdown


def test_shuffled_clips_are_those_of_the_set_beside(evaluate, fake, report, capsys):
    assert evaluate("--control", "shuffled") == 2
    assert "set-shuffled.jsonl, which is not there" in capsys.readouterr().err
    evaluate(name="set-shuffled.jsonl")
    fake.asked.clear()
    assert evaluate("--control", "shuffled") == 0
    assert report("evaluation-shuffled")["circumstances"]["questions"].endswith("-shuffled.jsonl")


def test_other_circumstances_are_refused_until_told_to_begin_anew(evaluate, fake, capsys):
    evaluate()
    assert evaluate("--no-cold") == 2
    assert "cold: True, now False" in capsys.readouterr().err
    fake.asked.clear()
    assert evaluate("--no-cold", "--restart") == 0
    assert len(fake.asked_in_run()) == 12


def test_several_at_once_ask_everything_once(fake, evaluate, report):
    fake.reply = right_below(4)
    assert evaluate("--concurrency", "5") == 0
    assert len(fake.asked_in_run()) == 12
    assert shares(report()) == [[4, 4], [2, 4], [1, 4]]


@pytest.mark.parametrize(
    ("status", "fault"), [(401, "401 .*no"), (404, "404 .*no"), (400, "400 .*no")]
)
def test_a_server_that_answers_nothing_is_told_at_once(fake, evaluate, capsys, status, fault):
    fake.reply = lambda asked: Reply(status=status)
    assert evaluate() == 2
    error = capsys.readouterr().err
    assert error.startswith("video-chat-server: error: the server does not answer item")
    assert len(fake.asked) == (4 if status == 400 else 1)


def test_what_is_no_api_is_told(evaluate, fake, capsys, write_set):
    fake.base_url = fake.base_url.removesuffix("/v1")
    assert evaluate() == 2
    assert "does the URL end in /v1?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--rates", "1"], "--rates must be numbers from 0 to below 1"),
        (["--rates", "nan"], "--rates must be numbers from 0 to below 1"),
        (["--limit", "0"], "--limit must be above 0"),
        (["--concurrency", "0"], "--concurrency must be above 0"),
        (["--timeout", "-1"], "--timeout must be above 0"),
        (["--max-tokens", "0"], "--max-tokens must be above 0"),
        (["--serve", "--base-url", "http://x"], "it takes no --base-url"),
        (["--set", "/absent"], "can not read /absent"),
    ],
)
def test_wrong_flags_are_one_line(write_set, capsys, flags, fault):
    assert main(["eval", "--set", str(write_set(item(1))), *flags]) == 2
    error = capsys.readouterr().err
    assert fault in error
    assert len(error.splitlines()) == 1


def test_the_key_comes_from_the_flag_or_the_settings(fake, evaluate, monkeypatch, tmp_path):
    evaluate("--api-key", "from-flag", "--limit", "1")
    monkeypatch.setenv("VIDEO_CHAT_HTTP__API_KEYS", '["from-environment-0123456789"]')
    evaluate("--limit", "2")
    assert fake.keys == {"Bearer from-flag", "Bearer from-environment-0123456789"}


def test_a_server_of_our_own_that_does_not_start_ends_the_run(write_set, tmp_path, capfd):
    config = tmp_path / "server.yaml"
    config.write_text("http: {prot: 1}")
    flags = ["--set", str(write_set(item(1))), "--out", str(tmp_path / "out")]
    assert main(["eval", "--serve", "--config", str(config), *flags]) == 1
    output = capfd.readouterr()
    assert "the server ended with exit code 2" in output.out
    assert "did you mean http.port?" in output.err
    assert not (tmp_path / "out").exists()


def test_options_can_not_be_wrong_inside(tmp_path):
    with pytest.raises(ConfigurationError, match="--rates"):
        EvaluationOptions(questions=tmp_path, rates=())
