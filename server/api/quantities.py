"""The numbers, times and words that hints are made of: checked one by one."""

import math
import re
from collections.abc import Sequence
from typing import Any

from server.api.validation import shown, wrong_type
from server.errors import InvalidRequest

MAX_COUNT = 2**31 - 1
_MAX_FPS = 1e6
"""A typing error rather than a wish; wishes above the operator's limit are clamped later."""
_MAX_SECONDS = 1e7
_MAX_PIXELS = 2**40
_SECONDS_TEXT = re.compile(r"([0-9]{1,8}(?:\.[0-9]{1,9})?)s")


def is_number(value: object) -> bool:
    """Returns whether a JSON value is a number; booleans and NaN are none."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and not (isinstance(value, float) and math.isnan(value))
    )


def frames_per_second(value: Any, param: str) -> float:
    """Returns a rate above 0. Raises InvalidRequest otherwise."""
    if not is_number(value):
        raise wrong_type(value, "a number above 0", param)
    if not 0 < value <= _MAX_FPS:
        raise InvalidRequest(
            f"{param} must be frames per second, above 0 and at most {_MAX_FPS:.0f}.", param=param
        )
    return float(value)


def count(value: Any, param: str) -> int:
    """Returns an integer from 1 to ``MAX_COUNT``. Raises InvalidRequest otherwise."""
    return _integer(value, param, most=MAX_COUNT)


def pixels(value: Any, param: str) -> int:
    """Returns an integer from 1 to ``_MAX_PIXELS``. Raises InvalidRequest otherwise."""
    return _integer(value, param, most=_MAX_PIXELS)


def _integer(value: Any, param: str, *, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(value, "an integer, at least 1", param)
    if not 1 <= value <= most:
        raise InvalidRequest(
            f"{param} must be an integer, at least 1 and at most {most}.", param=param
        )
    return value


def seconds(value: Any, param: str) -> float:
    """Returns a time from 0 on, given as a number or as ``"12.5s"``.

    Raises:
        InvalidRequest: it is neither, or out of range.
    """
    wanted = 'seconds from 0 on, such as 12.5 or "12.5s"'
    if isinstance(value, str):
        text = _SECONDS_TEXT.fullmatch(value)
        if text is None:
            raise InvalidRequest(f"{param} is {shown(value)}; it must be {wanted}.", param=param)
        value = float(text[1])
    if not is_number(value):
        raise wrong_type(value, wanted, param)
    if not 0 <= value <= _MAX_SECONDS:
        raise InvalidRequest(
            f"{param} must be {wanted}, and at most {_MAX_SECONDS:.0f}.", param=param
        )
    return abs(float(value))  # of -0.0 too


def word(value: Any, param: str, words: Sequence[str]) -> str:
    """Returns one of ``words``. Raises InvalidRequest otherwise."""
    accepted = " or ".join(words)
    if not isinstance(value, str):
        raise wrong_type(value, accepted, param)
    if value not in words:
        raise InvalidRequest(f"{param} is {shown(value)}; it must be {accepted}.", param=param)
    return value
