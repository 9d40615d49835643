"""A set of questions about videos: a JSONL file, one question a line."""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from server.errors import ConfigurationError

Text = Annotated[str, Field(min_length=1)]

MATCHES = ("exact", "contains", "number")

_FIRST_NUMBER = re.compile(r".*?(-?\d+(?:\.\d+)?).*", re.DOTALL)


class Match(BaseModel):
    """When an answer counts as one of the accepted answers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    type: Literal["exact", "contains", "number"] = "exact"
    """``exact``: equal but for white space around it. ``contains``: has one as whole words, in
    small or large letters. ``number``: names a number within ``tolerance`` of one."""
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """How far a number may be off."""
    pattern: str | None = None
    """Regular expression that the whole answer must match, with a group around the number; without
    it the first number in the answer counts."""

    @model_validator(mode="after")
    def _is_of_one_piece(self) -> Self:
        if self.type != "number" and (self.tolerance or self.pattern is not None):
            raise ValueError("tolerance and pattern are for type number")
        if self.pattern is not None:
            try:
                groups = re.compile(self.pattern).groups
            except re.error as error:
                raise ValueError(f"pattern is no regular expression: {error}") from error
            if groups != 1:
                raise ValueError(f"pattern must have one group, around the number, not {groups}")
        return self

    def number_in(self, answer: str) -> float | None:
        """Returns the number that an answer names, None if it names none."""
        pattern = _FIRST_NUMBER if self.pattern is None else re.compile(self.pattern)
        found = pattern.fullmatch(answer)
        return None if found is None else _number(found[1])


class Item(BaseModel):
    """One question."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: Text
    """Unlike that of any other line."""
    video: Text
    """A path relative to the file, or an http(s) URL."""
    question: Text
    answers: Annotated[list[Text], Field(min_length=1)]
    """Each of them is right."""
    kind: Text
    """What the report counts apart."""
    match: Match = Match()

    @model_validator(mode="after")
    def _is_of_one_piece(self) -> Self:
        scheme, found, _ = self.video.partition(":")
        if found and not self.is_url and "/" not in scheme:
            raise ValueError("video must be a relative path or an http(s) URL")
        if Path(self.video).is_absolute():
            raise ValueError("video must be relative to the file that names it")
        if self.match.type == "number" and None in map(_number, self.answers):
            raise ValueError("answers must be numbers where match.type is number")
        return self

    @property
    def is_url(self) -> bool:
        """Whether the server fetches the video itself."""
        return self.video.startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """The questions of one file, at least one, and where their videos are."""

    path: Path
    items: tuple[Item, ...]
    digest: str
    """Of the file and of every local video that it names."""

    def video_path(self, item: Item) -> Path | None:
        """Returns the file of an item's video, None if it is a URL."""
        return None if item.is_url else self.path.parent / item.video


def load_questions(path: Path) -> QuestionSet:
    """Returns the set in a JSONL file. Empty lines are skipped.

    Raises:
        ConfigurationError: a line is wrong or a video missing; names the line. Or nothing can be
            read, or there is no question.
    """
    try:
        lines = path.read_bytes().decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"can not read {path}: {error}") from error
    line_of: dict[str, int] = {}
    items = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            item = _item(line, f"{path} line {number}")
            if item.id in line_of:
                told = f"id {item.id!r} is that of line {line_of[item.id]} too"
                raise ConfigurationError(f"{path} line {number}: {told}")
            if not item.is_url and not (path.parent / item.video).is_file():
                raise ConfigurationError(f"{path} line {number}: there is no video {item.video}")
            line_of[item.id] = number
            items.append(item)
    if not items:
        raise ConfigurationError(f"there is no question in {path}")
    return QuestionSet(path, tuple(items), _digest(path, items))


def with_wrong_clips(questions: QuestionSet, *, seed: int = 0) -> QuestionSet:
    """Returns the same questions, each about the video of another item.

    Raises:
        ConfigurationError: all items have one and the same video.
    """
    videos = sorted({item.video for item in questions.items})
    if len(videos) == 1:
        raise ConfigurationError("a set with one video has no wrong clip to ask about")
    items = []
    for item in questions.items:
        others = [video for video in videos if video != item.video]
        video = random.Random(f"{seed} {item.id}").choice(others)
        items.append(item.model_copy(update={"video": video}))
    return QuestionSet(questions.path, tuple(items), questions.digest)


def _item(line: str, place: str) -> Item:
    try:
        return Item.model_validate_json(line)
    except ValidationError as error:
        faults = list(_faults(error))
        more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
        raise ConfigurationError(f"{place}: {faults[0]}{more}") from error


def _faults(error: ValidationError) -> Iterator[str]:
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        field = ".".join(map(str, fault["loc"]))
        message = fault["msg"].removeprefix("Value error, ")
        yield f"{field}: {message}" if field else message


def _digest(path: Path, items: list[Item]) -> str:
    whole = hashlib.sha256(path.read_bytes())
    for video in sorted({item.video for item in items if not item.is_url}):
        with (path.parent / video).open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
