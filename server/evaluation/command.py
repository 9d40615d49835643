"""``video-chat-server eval``: run a set through a server, print the tables, write the report."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import openai
from tqdm import tqdm

from server.childserver import child_server
from server.errors import ConfigurationError
from server.evaluation.answers import AnswerLog, opened_log
from server.evaluation.asking import Asker, Asking, ServerGone
from server.evaluation.plot import as_svg
from server.evaluation.questions import Item, QuestionSet, load_questions, with_wrong_clips
from server.evaluation.report import accuracy_table, as_json, as_markdown, times_table, tokens_table
from server.evaluation.run import ask_all, keys
from server.evaluation.summary import ALL, Summary, summarise
from server.evaluation.target import Heeded, heeded_rates, served_model
from server.settings import load_settings

DEFAULT_RATES = (0.0, 0.25, 0.5, 0.75, 0.9)
DEFAULT_BASE_URL = "http://127.0.0.1:8000/v1"
Control = Literal["none", "shuffled", "wrong-clip"]
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """What the command line says."""

    questions: Path
    out: Path = Path("docs/results")
    base_url: str | None = None
    """None with ``serve``, otherwise by default DEFAULT_BASE_URL."""
    serve: bool = False
    """Whether to start a server of our own, with ``config``."""
    config: Path | None = None
    model: str | None = None
    api_key: str | None = None
    rates: tuple[float, ...] = DEFAULT_RATES
    limit: int | None = None
    concurrency: int = 1
    max_tokens: int = 64
    timeout_seconds: float = 300.0
    cold: bool = True
    control: Control = "none"
    restart: bool = False

    def __post_init__(self) -> None:
        if not self.rates or not all(0 <= rate < 1 for rate in self.rates):
            raise ConfigurationError("--rates must be numbers from 0 to below 1")
        for name in ("limit", "concurrency", "max_tokens", "timeout_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                flag = name.removesuffix("_seconds").replace("_", "-")
                raise ConfigurationError(f"--{flag} must be above 0")
        if self.serve and (self.base_url or self.model):
            raise ConfigurationError(
                "--serve starts a server with --config; it takes no --base-url and no --model"
            )

    @property
    def name(self) -> str:
        """What the files of this run begin with."""
        return "evaluation" if self.control == "none" else f"evaluation-{self.control}"


def evaluate(options: EvaluationOptions) -> int:
    """Returns the exit code: 0 when all was asked, and some of it answered at each rate.

    Raises:
        ConfigurationError: the set, the options or the server are such that nothing can be asked.
    """
    questions = _questions(options)
    try:
        with _served(options) as base_url:
            if base_url is None:
                return EXIT_FAILED
            return asyncio.run(_Evaluation(options, questions, base_url).run())
    except KeyboardInterrupt:  # before the first question
        return EXIT_INTERRUPTED


def _questions(options: EvaluationOptions) -> QuestionSet:
    path = options.questions
    if options.control == "shuffled":
        path = path.with_name(f"{path.stem}-shuffled{path.suffix}")
        if not path.is_file():
            raise ConfigurationError(
                f"--control shuffled asks the questions of {path}, which is not there;"
                " it is the same set with shuffled clips"
            )
    questions = load_questions(path)
    return with_wrong_clips(questions) if options.control == "wrong-clip" else questions


@contextmanager
def _served(options: EvaluationOptions) -> Iterator[str | None]:
    """Yields the URL of the API; None if the server that was started did not become ready."""
    if not options.serve:
        yield options.base_url or DEFAULT_BASE_URL
        return
    with child_server(options.config) as server:
        yield f"{server.base_url}/v1" if server.wait_until_ready() else None


class _Evaluation:
    """One run of the command against a server that is there."""

    def __init__(self, options: EvaluationOptions, questions: QuestionSet, base_url: str) -> None:
        self._options = options
        self._questions = questions
        self._items = questions.items[: options.limit]
        self._base_url = base_url
        self._log_path = options.out / f"{options.name}-answers.jsonl"

    async def run(self) -> int:
        client = openai.AsyncOpenAI(
            base_url=self._base_url,
            api_key=self._api_key(),
            timeout=self._options.timeout_seconds,
            max_retries=0,
        )
        async with client:
            model = self._options.model or await served_model(client)
            asking = Asking(model, self._options.max_tokens, self._options.cold)
            asker = Asker(client, self._questions, asking)
            circumstances = self._circumstances(model)
            restart = self._options.restart
            with opened_log(self._log_path, circumstances, restart=restart) as log:
                heeded = await heeded_rates(asker, sorted(set(self._options.rates)))
                return await self._ask(asker, log, heeded, circumstances)

    async def _ask(
        self, asker: Asker, log: AnswerLog, heeded: Heeded, circumstances: dict[str, Any]
    ) -> int:
        wanted = keys(self._items, heeded.rates)
        done = sum(log.has(key) for key in wanted)
        if heeded.note:
            print(heeded.note, file=sys.stderr)
        if done:
            print(f"{done} of {len(wanted)} answers are in {log.path} already", file=sys.stderr)
        failure: str | None = None
        try:
            with tqdm(total=len(wanted), initial=done, unit="answer") as progress:
                await ask_all(
                    asker,
                    log,
                    items=self._items,
                    rates=heeded.rates,
                    concurrency=self._options.concurrency,
                    progress=progress,
                )
        except ServerGone as error:
            failure = f"the server does not answer any more: {error}"
        except asyncio.CancelledError:
            # Ctrl-C: what is there is reported, and then the run ends as one that was interrupted.
            failure = "interrupted"
        summary = self._summary(log, heeded, circumstances)
        self._publish(summary)
        if failure:
            told = f"{failure}; what has come is kept, the same command goes on from there"
            print(told, file=sys.stderr)
            return EXIT_INTERRUPTED if failure == "interrupted" else EXIT_FAILED
        return 0 if all(rate.accuracy[ALL].asked for rate in summary.rates) else EXIT_FAILED

    def _summary(self, log: AnswerLog, heeded: Heeded, circumstances: dict[str, Any]) -> Summary:
        items: tuple[Item, ...] = self._items
        return summarise(
            items,
            log.answers.values(),
            heeded.rates,
            circumstances={"questions": str(self._questions.path), **circumstances},
            notes=[heeded.note] if heeded.note else [],
        )

    def _publish(self, summary: Summary) -> None:
        """Print the tables and write the report in all its forms."""
        for table in (accuracy_table, times_table, tokens_table):
            print(f"\n{table(summary)}")
        path = self._options.out / self._options.name
        forms = {
            ".json": json.dumps(as_json(summary), indent=1, allow_nan=False) + "\n",
            ".svg": as_svg(summary),
            ".md": as_markdown(summary, plot_name=f"{self._options.name}.svg"),
        }
        for suffix, text in forms.items():
            path.with_suffix(suffix).write_text(text, encoding="utf-8")
        print(f"\n{', '.join(str(path.with_suffix(suffix)) for suffix in forms)}", flush=True)

    def _api_key(self) -> str:
        if self._options.api_key:
            return self._options.api_key
        own = load_settings(self._options.config).http.api_keys
        return own[0].get_secret_value() if own else "unused"

    def _circumstances(self, model: str) -> dict[str, Any]:
        """Returns what answers depend on, so that those under other ones are not mixed in."""
        config = self._options.config
        server = f"serve --config {config}" if self._options.serve else self._base_url
        return {
            "digest": self._questions.digest,
            "control": self._options.control,
            "model": model,
            "server": server,
            "max_tokens": self._options.max_tokens,
            "cold": self._options.cold,
            "concurrency": self._options.concurrency,
        }
