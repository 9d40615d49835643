"""Whether an answer is right, and what guessing would achieve."""

import re
from collections import Counter
from collections.abc import Sequence

from server.evaluation.proportion import Proportion
from server.evaluation.questions import Item, Match


def is_right(item: Item, answer: str) -> bool:
    """Returns whether ``answer`` is one of the accepted ones, by the rule of ``item.match``."""
    answer = answer.strip()
    if item.match.type == "exact":
        return answer in {accepted.strip() for accepted in item.answers}
    if item.match.type == "contains":
        return any(_has_words(answer, accepted) for accepted in item.answers)
    number = item.match.number_in(answer)
    return number is not None and _is_near(number, item.answers, item.match)


def chance(items: Sequence[Item]) -> Proportion:
    """Returns how often the one answer would be right that is right most often among ``items``."""
    right: Counter[str] = Counter()
    for candidate in {accepted for item in items for accepted in item.answers}:
        right[candidate] = sum(_accepts(item, candidate) for item in items)
    return Proportion(max(right.values(), default=0), len(items))


def _accepts(item: Item, candidate: str) -> bool:
    """Returns whether ``candidate``, an accepted answer of some item, is accepted here too."""
    if item.match.type == "contains":
        return candidate.casefold() in {accepted.casefold() for accepted in item.answers}
    if item.match.type == "exact":
        return candidate in item.answers
    try:
        return _is_near(float(candidate), item.answers, item.match)
    except ValueError:
        return False


def _is_near(number: float, accepted: Sequence[str], match: Match) -> bool:
    return any(abs(number - float(answer)) <= match.tolerance for answer in accepted)


def _has_words(answer: str, words: str) -> bool:
    # Not \b, for which an accepted answer that begins or ends with a sign has no boundary.
    pattern = rf"(?<!\w){re.escape(words.strip().casefold())}(?!\w)"
    return re.search(pattern, answer.casefold()) is not None
