"""The one line that says what is wrong with the settings."""

import difflib

from pydantic import ValidationError

from server.settings.assignments import Assignment, shown
from server.settings.tree import KeyPath, Settings, field_at, fields_of


def one_line(error: ValidationError, assignments: list[Assignment]) -> str:
    """Returns the first fault: key, value, where it came from, and the rule or the likely key."""
    first, *others = error.errors(include_url=False)
    path = tuple(str(key) for key in first["loc"])
    origin = _origin(path, assignments)
    if first["type"] == "extra_forbidden":
        message = (
            f"unknown key {'.'.join(path)} = {shown(first['input'], path)} ({origin}); "
            f"{_hint(path)}"
        )
    elif first["type"] == "value_error":
        message = f"{'.'.join(path)}: {first['ctx']['error']} ({origin})"
    else:
        is_section = first["type"] in ("model_type", "dict_type")
        rule = "must be a mapping" if is_section else _rule(first["msg"])
        message = f"{'.'.join(path)}: {shown(first['input'], path)} ({origin}) {rule}"
    message += f"; {len(others)} more" if others else ""
    return " ".join(message.splitlines())


def _rule(message: str) -> str:
    """Returns pydantic's ``Input should be ...`` as the end of a sentence about the value."""
    return message.replace("Input should", "must", 1).replace("String should", "must", 1)


def _origin(path: KeyPath, assignments: list[Assignment]) -> str:
    """Returns who gave the value at ``path``, or the values below it, without repetition."""
    last_word = {given.path: given.origin for given in assignments}
    # A fault may also lie within a value, such as one of a list.
    origins = [
        origin
        for given, origin in last_word.items()
        if given[: len(path)] == path or path[: len(given)] == given
    ]
    return ", ".join(dict.fromkeys(origins)) or "default"


def _hint(path: KeyPath) -> str:
    *groups, wrong = path
    parent = field_at(tuple(groups)) if groups else None
    valid = list(fields_of(parent) if parent else Settings.model_fields)
    near = difflib.get_close_matches(wrong, valid, n=1)
    if near:
        return f"did you mean {'.'.join((*groups, near[0]))}?"
    return f"valid keys are {', '.join(valid)}"
