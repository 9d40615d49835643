"""Which answers are right, what guessing achieves, and Wilson's interval."""

import pytest

from server.evaluation.proportion import Proportion
from server.evaluation.questions import Item
from server.evaluation.scoring import chance, is_right
from tests.unit.evaluation.conftest import item

SECOND = {"type": "number", "tolerance": 1.5, "pattern": r"At second (\d+)\."}


def parsed(number=1, **changes):
    return Item.model_validate(item(number, **changes))


@pytest.mark.parametrize(
    ("changes", "answer", "right"),
    [
        ({"answers": ["Red."]}, " Red.\n", True),
        ({"answers": ["Red."]}, "red.", False),
        ({"answers": ["Red.", "Crimson."]}, "Crimson.", True),
        ({"answers": ["Red."]}, "Red. Red.", False),
        ({"answers": ["red"], "match": {"type": "contains"}}, "It is RED, I think.", True),
        ({"answers": ["red"], "match": {"type": "contains"}}, "It is bored.", False),
        ({"answers": ["(b)"], "match": {"type": "contains"}}, "The answer: (B)", True),
        ({"answers": ["a.c"], "match": {"type": "contains"}}, "abc", False),
        ({"answers": ["4"], "match": {"type": "number"}}, "I see 4 of them", True),
        ({"answers": ["-2.5"], "match": {"type": "number"}}, "It is\n-2.5 degrees", True),
        ({"answers": ["4"], "match": {"type": "number"}}, "none", False),
        ({"answers": ["4"], "match": {"type": "number", "tolerance": 1.0}}, "5", True),
        ({"answers": ["4"], "match": {"type": "number", "tolerance": 1.0}}, "5.01", False),
        ({"answers": ["4.6"], "match": SECOND}, "At second 6.", True),
        ({"answers": ["4.6"], "match": SECOND}, "At second 7.", False),
        ({"answers": ["4.6"], "match": SECOND}, "6", False),
        ({"answers": ["4.6"], "match": SECOND}, "At second 6. Or 7.", False),
    ],
)
def test_an_answer_is_right_by_the_rule_of_its_item(changes, answer, right):
    assert is_right(parsed(**changes), answer) is right


def test_chance_is_the_answer_that_is_right_most_often():
    yes, no = {"answers": ["Yes."]}, {"answers": ["No."]}
    assert chance([parsed(**yes), parsed(**no), parsed(**yes)]) == Proportion(2, 3)
    both = {"answers": ["a", "B"], "match": {"type": "contains"}}
    assert chance([parsed(**both), parsed(answers=["b"], match={"type": "contains"})]).right == 2
    seconds = [parsed(answers=[s], match=SECOND) for s in ("1", "2.4", "3.8", "9")]
    assert chance(seconds) == Proportion(3, 4)
    assert chance([]) == Proportion(0, 0)


@pytest.mark.parametrize(
    ("right", "asked", "low", "high"),
    [
        # Newcombe 1998, table I: method 3 for these four.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1.0),
    ],
)
def test_the_interval_is_wilsons(right, asked, low, high):
    assert Proportion(right, asked).interval == pytest.approx((low, high), abs=5e-5)


def test_nothing_asked_says_nothing():
    assert Proportion(0, 0).share is None
    assert Proportion(0, 0).interval == (0.0, 1.0)
    assert Proportion(1, 2) + Proportion(0, 3) == Proportion(1, 5)
    with pytest.raises(ValueError, match="3 can not be right of 2"):
        Proportion(3, 2)
