"""Every question at every rate, some at once, each answer written down as it comes."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from server.evaluation.answers import AnswerLog, Key
from server.evaluation.asking import Asker
from server.evaluation.questions import Item
from server.evaluation.target import Rate
from server.together import all_of


class Progress(Protocol):
    """What is told while it goes on, such as a ``tqdm``."""

    def update(self, n: float | None = 1) -> object:
        """One more answer is there."""


def schedule(items: Sequence[Item], rates: Sequence[Rate]) -> Iterator[tuple[Item, Rate]]:
    """Yields everything to ask: all rates of an item before the next one.

    So what drifts, drifts for all rates alike; and each rate comes first for as many items, since
    what an item leaves behind in caches helps the rates that follow.
    """
    for index, item in enumerate(items):
        first = index % len(rates)
        for rate in [*rates[first:], *rates[:first]]:
            yield item, rate


def keys(items: Sequence[Item], rates: Sequence[Rate]) -> set[Key]:
    """Returns what ``schedule`` yields, as answers are found by."""
    return {(item.id, rate) for item in items for rate in rates}


async def ask_all(
    asker: Asker,
    log: AnswerLog,
    *,
    items: Sequence[Item],
    rates: Sequence[Rate],
    concurrency: int,
    progress: Progress,
) -> None:
    """Ask what the log has no answer to yet.

    Raises:
        ServerGone: nobody answers at the server's address any more.
        ConfigurationError: there is no room for more answers.
    """
    missing = (
        (item, rate) for item, rate in schedule(items, rates) if not log.has((item.id, rate))
    )

    async def worker() -> None:
        for item, rate in missing:
            log.add(await asker.ask(item, rate))
            progress.update(1)

    await all_of(worker() for _ in range(concurrency))
