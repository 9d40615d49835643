"""What a server can be asked: its model, and the pruning rates that it heeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import openai

from server.errors import ConfigurationError
from server.evaluation.answers import Answer
from server.evaluation.asking import Asker, ServerGone
from server.evaluation.questions import Item

Rate = float | None

_MAX_PROBED_ITEMS = 5


@dataclass(frozen=True, slots=True)
class Heeded:
    """The rates that a server can be measured at."""

    rates: tuple[Rate, ...]
    note: str | None = None
    """What the reader must know of rates that were asked for and are not among them."""


async def served_model(client: openai.AsyncOpenAI) -> str:
    """Returns the first model that the server lists.

    Raises:
        ConfigurationError: the server can not be reached, wants a key, or lists none.
    """
    try:
        models = [model.id async for model in client.models.list()]
    except openai.APIConnectionError as error:
        reason = error.__cause__ or error
        raise ConfigurationError(f"no server answers at {client.base_url}: {reason}") from error
    except openai.APIStatusError as error:
        cure = {401: "; give --api-key", 404: "; does the URL end in /v1?"}
        told = f"{error.status_code} {error.message}{cure.get(error.status_code, '')}"
        raise ConfigurationError(f"{client.base_url}models says {told}") from error
    except (openai.APIError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{client.base_url} speaks no OpenAI API: {error}") from error
    if not models:
        raise ConfigurationError(f"{client.base_url} serves no model; give --model")
    return models[0]


async def heeded_rates(asker: Asker, rates: Sequence[float]) -> Heeded:
    """Returns which of ``rates`` the server heeds, asking one question at each: a warm-up, too.

    Raises:
        ConfigurationError: the server answers none of the first questions, whatever the rate.
    """
    item, own = await _first_answered(asker)
    answers = {rate: await _probe(asker, item, rate) for rate in rates}
    refused = [answer for answer in answers.values() if answer.is_final and answer.error]
    taken = tuple(rate for rate in answers if answers[rate] not in refused)
    if not taken:
        reason = refused[0].error
        return Heeded((None,), f"the server refuses video_pruning_rate ({reason}): {_OWN}")
    if max(taken) > 0 and not _tells_apart(own, [answers[rate] for rate in taken]):
        reason = "the server takes video_pruning_rate, but the prompt is as long at every rate"
        return Heeded((None,), f"{reason}: {_OWN}")
    if refused:
        named = ", ".join(f"{answer.rate:g}" for answer in refused)
        return Heeded(taken, f"the server refuses the rates {named} ({refused[0].error})")
    return Heeded(taken)


_OWN = "it is measured at its own rate only"


async def _first_answered(asker: Asker) -> tuple[Item, Answer]:
    for item in asker.questions.items[:_MAX_PROBED_ITEMS]:
        answer = await _probe(asker, item, None)
        if answer.error is None:
            return item, answer
        if answer.status in (401, 403, 404):
            break
    status = "" if answer.status is None else f"{answer.status} "
    raise ConfigurationError(f"the server does not answer item {item.id!r}: {status}{answer.error}")


async def _probe(asker: Asker, item: Item, rate: Rate) -> Answer:
    try:
        return await asker.ask(item, rate)
    except ServerGone as error:
        raise ConfigurationError(
            f"no server answers at {asker.client.base_url}: {error}"
        ) from error


def _tells_apart(own: Answer, answers: list[Answer]) -> bool:
    """Returns whether the rate has an effect: this server's word, or prompts of other lengths."""
    answers = [answer for answer in answers if answer.error is None]
    if all(answer.video_tokens_before is not None for answer in answers):
        return True
    lengths = {answer.prompt_tokens for answer in [own, *answers]}
    return len(lengths) > 1
