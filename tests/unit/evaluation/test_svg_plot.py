"""The plot: well-formed, nothing from elsewhere, and it shows the numbers where they belong."""

from xml.etree import ElementTree

import pytest

from server.evaluation.answers import Answer
from server.evaluation.plot import HEIGHT, WIDTH, as_svg
from server.evaluation.questions import Item
from server.evaluation.summary import summarise
from tests.unit.evaluation.conftest import item

NAME = "{http://www.w3.org/2000/svg}"
STAGES = ("receive", "fetch", "decode", "preprocess", "queue", "prefill")


def summary(rates=(0.0, 0.5, 0.9), num_items=40, kinds=9, *, stages=STAGES, **circumstances):
    items = [Item.model_validate(item(n, kind=f"kind {n % kinds} <&>")) for n in range(num_items)]
    answers = [
        Answer(
            id=each.id,
            rate=rate,
            kind=each.kind,
            text="",
            is_right=number >= 10 * (rate or 0),
            time_to_first_token_ms=100.0 - 50 * (rate or 0) if stages else None,
            stages_ms={s: (100.0 - 50 * (rate or 0)) / len(stages) for s in stages},
            client_time_to_first_token_ms=120.0,
        )
        for rate in rates
        for number, each in enumerate(items)
    ]
    told = {"model": "tiny <b>", **circumstances}
    return summarise(items, answers, list(rates), circumstances=told)


def drawn(svg):
    root = ElementTree.fromstring(svg)
    return root, [text.text for text in root.iter(f"{NAME}text")]


def test_it_shows_accuracy_and_times_by_rate():
    root, texts = drawn(as_svg(summary()))

    assert root.tag == f"{NAME}svg"
    assert texts.count("rate 0.5") == 2
    assert {"100.0", "87.5", "77.5"} <= set(texts)  # percent; the first is also milliseconds
    assert {"75.0", "55.0"} <= set(texts)
    assert {*STAGES, "kind 0 <&>", "kind 8 <&>"} <= set(texts)
    lines = root.findall(f"{NAME}polyline")
    assert len(lines) == 10
    assert all(len(line.get("points").split()) == 3 for line in lines)


def test_bars_stack_up_to_their_number():
    root, _ = drawn(as_svg(summary()))
    bars = [bar for bar in root.iter(f"{NAME}rect") if bar.find(f"{NAME}title") is not None]

    assert len(bars) == 3 * len(STAGES)
    heights = [sum(float(b.get("height")) for b in bars[i * 6 : i * 6 + 6]) for i in range(3)]
    assert heights[1] / heights[0] == pytest.approx(0.75, abs=0.01)
    tops = [float(bar.get("y")) for bar in bars[:6]]
    assert tops == sorted(tops, reverse=True)
    assert bars[0].find(f"{NAME}title").text == "receive 16.7 ms"


def test_it_reads_in_light_and_dark_and_loads_nothing():
    svg = as_svg(summary())
    assert "prefers-color-scheme: dark" in svg
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    root, _ = drawn(svg)
    assert all(
        text.get("class") in ("ink", "ink over", "faint") for text in root.iter(f"{NAME}text")
    )


@pytest.mark.parametrize(
    "made",
    [
        summary(rates=(None,), stages=()),
        summary(kinds=23),
        summary(num_items=1, kinds=1),
        summarise([Item.model_validate(item(1))], [], [0.0, 0.5], circumstances={}),
    ],
    ids=["own rate without stages", "many kinds", "one answer", "no answer"],
)
def test_everything_stays_within_the_picture(made):
    root, texts = drawn(as_svg(made))

    for shape in root.iter():
        for key, limit in (("x", WIDTH), ("x2", WIDTH), ("y", HEIGHT), ("y2", HEIGHT)):
            assert 0 <= float(shape.get(key, 0)) <= limit
    left = [t for t in root.iter(f"{NAME}text") if float(t.get("x")) < 480]
    assert all(float(t.get("x")) + 6.5 * len(t.text) < 540 for t in left)
    assert ("and 13 more" in texts) is (len(made.chance) == 24)
    if made.rates[0].rate is None:
        assert texts.count("own rate") == 2
        assert "120.0" in texts
