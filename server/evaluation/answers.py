"""What a server answered: a JSONL file that grows by a line an answer, and is gone on with.

Its first line says what was asked, of whom and how; answers under other circumstances are not
mixed with them.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from server.errors import ConfigurationError

Key = tuple[str, float | None]
"""Id of the item, and rate; a rate of None is the server's own."""


class Answer(BaseModel):
    """What came of one question at one rate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    rate: float | None
    kind: str
    text: str | None = None
    """None if there is none because of ``error``."""
    is_right: bool | None = None
    error: str | None = None
    status: int | None = None
    """HTTP status of ``error``, if it had one."""
    time_to_first_token_ms: float | None = None
    """As the server measured it, from the first byte of the request."""
    stages_ms: dict[str, float] = {}
    """Its parts, in order."""
    client_time_to_first_token_ms: float | None = None
    """From sending the request to the first chunk with text."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt, found in the prefix cache."""
    video_tokens: int | None = None
    """After pruning."""
    video_tokens_before: int | None = None
    is_cold: bool = False
    """Whether the video's bytes were unlike any that the server had seen."""
    num_retries: int = 0

    @property
    def key(self) -> Key:
        """What was asked."""
        return self.id, self.rate

    @property
    def is_final(self) -> bool:
        """Whether asking again would bring the same: an answer, or the server's refusal."""
        return self.error is None or (self.status is not None and 400 <= self.status < 500)


class AnswerLog:
    """The answers in a file, the last one to each question at each rate."""

    def __init__(self, path: Path, file: IO[str], answers: dict[Key, Answer]) -> None:
        self.path = path
        self._file = file
        self.answers = answers
        """By item and rate."""

    def add(self, answer: Answer) -> None:
        """Write an answer down, so that it outlives this process at once.

        Raises:
            ConfigurationError: there is no room for it.
        """
        self.write(answer.model_dump_json(exclude_defaults=True))
        self.answers[answer.key] = answer

    def write(self, line: str) -> None:
        """Append a line."""
        with _told_of(self.path):
            self._file.write(line + "\n")
            self._file.flush()

    def has(self, key: Key) -> bool:
        """Returns whether that need not be asked again."""
        return key in self.answers and self.answers[key].is_final


@contextmanager
def opened_log(
    path: Path, circumstances: dict[str, Any], *, restart: bool = False
) -> Iterator[AnswerLog]:
    """Yields the log at ``path``, with the answers that are there already.

    Args:
        path: of the file; it and its directory are made if they are not there.
        circumstances: what answers depend on, as JSON has it.
        restart: whether to forget the answers that are there.

    Raises:
        ConfigurationError: the answers there are of other circumstances, or can not be read.
    """
    with _told_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        has_any = not restart and path.exists() and path.stat().st_size > 0
        answers = _read(path, circumstances) if has_any else {}
        file = path.open("a" if answers else "w", encoding="utf-8")
    with file:
        log = AnswerLog(path, file, answers)
        if not answers:
            log.write(json.dumps(circumstances))
        yield log


@contextmanager
def _told_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"can not keep answers in {path}: {error}") from error


def _read(path: Path, circumstances: dict[str, Any]) -> dict[Key, Answer]:
    _cut_half_a_line(path)
    # Not splitlines(), which also splits at separators that JSON has inside of texts.
    first, *lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    try:
        before = json.loads(first)
        answers = [Answer.model_validate_json(line) for line in lines]
        others = [key for key, value in circumstances.items() if before.get(key) != value]
    except (ValueError, AttributeError, ValidationError) as error:
        raise ConfigurationError(
            f"{path} holds no answers that can be read; remove it, or give --restart"
        ) from error
    if others and answers:
        told = ", ".join(
            f"{key}: {before.get(key)!r}, now {circumstances[key]!r}" for key in others
        )
        raise ConfigurationError(
            f"{path} holds answers under other circumstances ({told});"
            " give --restart to forget them, or another --out"
        )
    return {answer.key: answer for answer in answers}


def _cut_half_a_line(path: Path) -> None:
    """Remove what a process wrote of a line when it was killed."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
