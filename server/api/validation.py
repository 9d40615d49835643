"""Words for wrong values: what was found, where, and what should be there."""

import difflib
import json
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from server.errors import InvalidRequest

_MAX_SHOWN_CHARACTERS = 60


def shown(value: object) -> str:
    """Returns a JSON value for a message: short, ASCII, and without what is inside of it."""
    match value:
        case str():
            ellipsis = "..." if len(value) > _MAX_SHOWN_CHARACTERS else ""
            return json.dumps(value[:_MAX_SHOWN_CHARACTERS]) + ellipsis
        case dict():
            return "an object"
        case list():
            return "a list"
        case int() if not isinstance(value, bool) and abs(value) >= 10**20:
            return "a huge integer"
        case _:
            return json.dumps(value)


def wrong_type(value: object, wanted: str, param: str) -> InvalidRequest:
    """Returns the error for a value that is not ``wanted``, such as ``a string``."""
    if value is None:
        return InvalidRequest(
            f"{param} is missing or null; it must be {wanted}.", param=param, code="missing_field"
        )
    return InvalidRequest(
        f"{param} is {shown(value)}; it must be {wanted}.", param=param, code="invalid_type"
    )


def unknown_field(name: str, known: Collection[str], param: str) -> InvalidRequest:
    """Returns the error for a field that nobody knows, with the nearest one that is known."""
    near = difflib.get_close_matches(name[:_MAX_SHOWN_CHARACTERS], known, n=1)
    cure = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(sorted(known))}."
    return InvalidRequest(
        f"The field {shown(name)} is not known. {cure}",
        param=param[:200],
        code="unknown_field",
    )


def check_keys(
    value: Mapping[str, Any],
    known: Collection[str],
    path: str,
    *,
    of_videos: Collection[str] = (),
) -> None:
    """Returns if ``value`` has no key but the ``known`` ones.

    Args:
        value: what a client sent.
        known: keys that it may have.
        path: its JSON path.
        of_videos: keys that belong elsewhere: on the request, or on one of its videos.

    Raises:
        InvalidRequest: naming the key.
    """
    for key in value:
        if key in known:
            continue
        if key in of_videos:
            raise InvalidRequest(
                f"The field {shown(key)} does not belong here. Put it on the request, for all of "
                "its videos, or on a video.",
                param=f"{path}.{key}",
                code="unknown_field",
            )
        raise unknown_field(key, known, f"{path}.{key}")


def as_object(value: object, param: str) -> dict[str, Any]:
    """Returns ``value`` if it is an object. Raises InvalidRequest otherwise."""
    if not isinstance(value, dict):
        raise wrong_type(value, "an object", param)
    return value


def as_list(value: object, param: str) -> list[Any]:
    """Returns ``value`` if it is a list. Raises InvalidRequest otherwise."""
    if not isinstance(value, list):
        raise wrong_type(value, "a list", param)
    return value


def as_string(value: object, param: str) -> str:
    """Returns ``value`` if it is a string. Raises InvalidRequest otherwise."""
    if not isinstance(value, str):
        raise wrong_type(value, "a string", param)
    return value


def first_fault(error: ValidationError, path: str = "") -> InvalidRequest:
    """Returns the first fault that pydantic found, in this server's words and with its path."""
    detail = error.errors(include_url=False)[0]
    param = json_path(detail["loc"], path)
    kind, message = (
        detail["type"],
        detail["msg"].replace("Input", "It").removeprefix("Value error, "),
    )
    if kind == "missing":
        return InvalidRequest(f"{param} is missing.", param=param, code="missing_field")
    if kind == "extra_forbidden":
        return InvalidRequest(f"The field {param} is not known.", param=param, code="unknown_field")
    code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    return InvalidRequest(
        f"{param} is {shown(detail['input'])}. {message}.", param=param, code=code
    )


def json_path(location: tuple[int | str, ...], path: str = "") -> str:
    """Returns a path such as ``messages[0].content``."""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step != "[key]":  # pydantic's word for a key that is wrong itself
            path += f".{step[:_MAX_SHOWN_CHARACTERS]}" if path else step[:_MAX_SHOWN_CHARACTERS]
    return path
