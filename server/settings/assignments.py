"""Who gave which value: the file, the environment and flags, before anything is checked."""

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

import yaml
from pydantic import TypeAdapter, ValidationError

from server.errors import ConfigurationError
from server.settings.tree import KeyPath, field_at, is_section

ENV_PREFIX = "VIDEO_CHAT_"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One value that somebody gave, and who."""

    path: KeyPath
    value: Any
    origin: str


def file_assignments(path: Path) -> Iterator[Assignment]:
    """Yields what a YAML file says.

    Raises:
        ConfigurationError: it can not be read, or holds no mapping.
    """
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except OSError as error:
        raise ConfigurationError(f"can not read {path}: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigurationError(f"{path} line {line}: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"{path} is not valid YAML in UTF-8") from error
    if not isinstance(tree, dict | None):
        raise ConfigurationError(f"{path} holds {shown(tree)}; expected a mapping of settings")
    for key, value in (tree or {}).items():
        # A section whose lines are all commented out reads as null.
        if value is not None or not is_section(str(key)):
            yield from _leaves((str(key),), value, str(path))


def environment_assignments(environ: Mapping[str, str]) -> Iterator[Assignment]:
    """Yields what the variables with our prefix say.

    Raises:
        ConfigurationError: the variable of a section holds no mapping.
    """
    # Sorted: a whole section (VIDEO_CHAT_HTTP) comes before one key of it (VIDEO_CHAT_HTTP__PORT).
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX):
            path = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
            origin = f"environment variable {name}"
            yield from _leaves(path, _parse_variable(path, environ[name], origin), origin)


def flag_assignments(flags: Mapping[str, Any]) -> Iterator[Assignment]:
    """Yields what the command line says."""
    for assignment in _leaves((), flags, "command line"):
        if assignment.value is not None:
            yield assignment


def _leaves(path: KeyPath, value: Any, origin: str) -> Iterator[Assignment]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves((*path, str(key)), inner, origin)
    elif path:
        yield Assignment(path, value, origin)


def merge(assignments: Iterable[Assignment]) -> dict[str, Any]:
    """Returns the tree of values; later assignments win."""
    tree: dict[str, Any] = {}
    for assignment in assignments:
        *groups, last = assignment.path
        node = tree
        for key in groups:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        if assignment.value != {} or last not in node:  # an empty mapping adds nothing
            node[last] = assignment.value
    return tree


def _parse_variable(path: KeyPath, text: str, origin: str) -> Any:
    """Returns the value that a variable's text stands for; the text itself if it makes no sense."""
    field = field_at(path)
    if field is not None and get_origin(field.annotation) is tuple:
        value = _parse_scalar(text)
        return value if isinstance(value, list) else text.split(",")
    if (
        field is not None
        and field.annotation is not None
        and not (len(path) == 1 and is_section(path[0]))
    ):
        try:
            return TypeAdapter[Any](field.annotation).validate_strings(text)
        except ValidationError:
            return text  # the tree's own check names the rule
    value = _parse_scalar(text)
    if len(path) == 1 and is_section(path[0]) and not isinstance(value, dict):
        raise ConfigurationError(f"{path[0]}: {shown(text)} ({origin}) must be a mapping")
    return value


def _parse_scalar(text: str) -> Any:
    try:
        return json.loads(text)  # first, because YAML takes 1e-3 for a string
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a repeated key is an error; plain YAML drops the first of two sections."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                problem = f"key {key.value} appears twice or is no text"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def shown(value: Any, path: KeyPath = ()) -> str:
    """Returns a value for a message, unless it may be or hold an API key."""
    text = repr(value)
    if "key" in f"{text} {' '.join(path)}".lower():
        return "a value that is not shown"
    return text if len(text) <= 80 else f"{text[:77]}..."
