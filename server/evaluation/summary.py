"""The numbers of an evaluation: by rate, and by kind of question."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from server.evaluation.answers import Answer
from server.evaluation.proportion import Proportion
from server.evaluation.questions import Item
from server.evaluation.scoring import chance
from server.evaluation.target import Rate

ALL = "all"
"""In place of a kind: every question."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a quantity that was measured ``count`` times."""

    count: int
    median: float
    p90: float
    mean: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """Returns the spread of the values that are known, None if none is."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        median, p90 = np.percentile(known, [50, 90])
        return cls(len(known), float(median), float(p90), float(np.mean(known)))


@dataclass(frozen=True, slots=True)
class RateSummary:
    """What came of all questions at one rate."""

    rate: Rate
    accuracy: dict[str, Proportion]
    """By kind, and of ALL; what ended with an error is not in it."""
    num_errors: int
    num_missing: int
    """Not asked yet."""
    time_to_first_token_ms: Spread | None
    """The server's own if it tells, otherwise the client's."""
    client_time_to_first_token_ms: Spread | None
    stages_ms: dict[str, Spread]
    prompt_tokens: Spread | None
    video_tokens: Spread | None
    video_tokens_before: Spread | None
    cached_tokens: Spread | None
    num_with_cached_tokens: int
    num_cold: int
    num_retries: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole evaluation."""

    circumstances: dict[str, Any]
    notes: tuple[str, ...]
    num_items: int
    num_videos: int
    chance: dict[str, Proportion]
    """By kind: how often the one answer would be right that is right most often."""
    is_measured_by_server: bool
    """Whether the times to first token are the server's own."""
    rates: tuple[RateSummary, ...]

    @property
    def stages(self) -> list[str]:
        """The stages that the server tells of, in order."""
        return list(dict.fromkeys(stage for rate in self.rates for stage in rate.stages_ms))


def summarise(
    items: Sequence[Item],
    answers: Iterable[Answer],
    rates: Sequence[Rate],
    *,
    circumstances: dict[str, Any],
    notes: Sequence[str] = (),
) -> Summary:
    """Returns the numbers of the answers to these items at these rates; others are left out."""
    asked = {item.id for item in items}
    by_rate: dict[Rate, list[Answer]] = {rate: [] for rate in rates}
    for answer in answers:
        if answer.id in asked and answer.rate in by_rate:
            by_rate[answer.rate].append(answer)
    good = [a for given in by_rate.values() for a in given if a.error is None]
    by_server = bool(good) and all(a.time_to_first_token_ms is not None for a in good)
    kinds = list(dict.fromkeys(item.kind for item in items))
    guessed = {kind: chance([i for i in items if i.kind == kind]) for kind in kinds}
    guessed[ALL] = sum(guessed.values(), Proportion(0, 0))
    return Summary(
        circumstances=circumstances,
        notes=tuple(notes),
        num_items=len(items),
        num_videos=len({item.video for item in items}),
        chance=guessed,
        is_measured_by_server=by_server,
        rates=tuple(
            _of_rate(rate, given, kinds, len(items), by_server) for rate, given in by_rate.items()
        ),
    )


def _of_rate(
    rate: Rate, answers: list[Answer], kinds: list[str], num_items: int, by_server: bool
) -> RateSummary:
    good = [answer for answer in answers if answer.error is None]
    accuracy = {kind: _accuracy(a for a in good if a.kind == kind) for kind in kinds}
    client = Spread.of(a.client_time_to_first_token_ms for a in good)
    own = Spread.of(a.time_to_first_token_ms for a in good)
    stages = dict.fromkeys(stage for answer in good for stage in answer.stages_ms)
    spreads = {stage: Spread.of(a.stages_ms.get(stage) for a in good) for stage in stages}
    return RateSummary(
        rate=rate,
        accuracy={**accuracy, ALL: _accuracy(good)},
        num_errors=len(answers) - len(good),
        num_missing=num_items - len(answers),
        time_to_first_token_ms=own if by_server else client,
        client_time_to_first_token_ms=client,
        stages_ms={stage: spread for stage, spread in spreads.items() if spread},
        prompt_tokens=Spread.of(a.prompt_tokens for a in good),
        video_tokens=Spread.of(a.video_tokens for a in good),
        video_tokens_before=Spread.of(a.video_tokens_before for a in good),
        cached_tokens=Spread.of(a.cached_tokens for a in good),
        num_with_cached_tokens=sum(bool(a.cached_tokens) for a in good),
        num_cold=sum(a.is_cold for a in good),
        num_retries=sum(a.num_retries for a in answers),
    )


def _accuracy(answers: Iterable[Answer]) -> Proportion:
    told = [bool(answer.is_right) for answer in answers]
    return Proportion(sum(told), len(told))
