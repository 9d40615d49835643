"""How a client wants its videos sampled and pruned, on the request or on a video itself."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.api.validation import shown, wrong_type
from server.conversation import SamplingWish
from server.engine.base import ModelFacts
from server.errors import InvalidRequest
from server.evs.arithmetic import METHODS
from server.settings import Settings

HINT_FIELDS = ("fps", "num_frames", "video_pruning_rate", "video_pruning_method")
_MAX_FPS = 1e6
"""A typing error rather than a wish; wishes above the operator's limit are clamped later."""

Place = tuple[Mapping[str, Any], str]
"""An object that may hold hints, and its JSON path; empty for the request itself."""


@dataclass(frozen=True, slots=True)
class VideoHints:
    """What was asked for on one level; None where nothing was said."""

    sampling: SamplingWish | None
    pruning_rate: float | None
    pruning_method: str | None

    def over(self, other: "VideoHints") -> "VideoHints":
        """Returns these hints, with what they leave open taken from ``other``."""
        return VideoHints(
            sampling=other.sampling if self.sampling is None else self.sampling,
            pruning_rate=other.pruning_rate if self.pruning_rate is None else self.pruning_rate,
            pruning_method=self.pruning_method or other.pruning_method,
        )


class HintReader:
    """Reads hints within what the operator and the served model allow."""

    def __init__(self, settings: Settings, facts: ModelFacts) -> None:
        self._max_rate = settings.pruning.max_rate
        self._default_rate = settings.pruning.default_rate if facts.supports_pruning else 0.0
        self._default_method = settings.pruning.default_method
        self._methods = facts.pruning_methods

    @property
    def defaults(self) -> VideoHints:
        """The hints of a client that gives none."""
        return VideoHints(SamplingWish(), self._default_rate, self._default_method)

    def read(self, places: Sequence[Place]) -> VideoHints:
        """Returns the hints of one level, which may lie in several places; the first one wins.

        Raises:
            InvalidRequest: a hint is wrong, or two of them contradict each other.
        """
        fps, num_frames = _fps(places), _num_frames(places)
        if fps is not None and num_frames is not None:
            raise InvalidRequest(
                "fps and num_frames exclude each other; give one of them.",
                param=_found("num_frames", places)[1],
            )
        asked = fps is not None or num_frames is not None
        return VideoHints(
            sampling=SamplingWish(fps, num_frames) if asked else None,
            pruning_rate=self._rate(places),
            pruning_method=self._method(places),
        )

    def _rate(self, places: Sequence[Place]) -> float | None:
        rate, param = _found("video_pruning_rate", places)
        if param is None:
            return None
        if not _is_number(rate):
            # Null too: a client that computes the rate should not get an unpruned video by mistake.
            raise InvalidRequest(
                f"{param} must be a number, at least 0 and below 1.",
                param=param,
                code="invalid_type",
            )
        if not 0 <= rate < 1:
            raise InvalidRequest(
                f"{param} must be at least 0 and below 1: the fraction of the video's tokens to "
                "remove, 0 for none.",
                param=param,
            )
        if rate > self._max_rate:
            raise InvalidRequest(
                f"{param} is {rate}; this server takes at most {self._max_rate}.", param=param
            )
        if rate > 0 and not self._methods:
            raise InvalidRequest(
                f"{param} is {rate}, but the served model can not prune videos. Leave it out, or "
                "send 0.",
                param=param,
                code="pruning_unsupported",
            )
        return abs(float(rate))  # of -0.0 too

    def _method(self, places: Sequence[Place]) -> str | None:
        method, param = _found("video_pruning_method", places)
        if method is None or param is None:
            return None
        accepted = " or ".join(self._methods or METHODS)
        if not isinstance(method, str):
            raise wrong_type(method, accepted, param)
        if not self._methods:
            raise InvalidRequest(
                f"{param} is {shown(method)}, but the served model can not prune videos. Leave it "
                "out.",
                param=param,
                code="pruning_unsupported",
            )
        if method not in METHODS:
            raise InvalidRequest(f"{param} is {shown(method)}; it must be {accepted}.", param=param)
        if method not in self._methods:
            raise InvalidRequest(
                f"{param} is {shown(method)}, which the served model does not have. Send "
                f"{accepted}, or leave it out.",
                param=param,
                code="pruning_unsupported",
            )
        return method


def _found(name: str, places: Sequence[Place]) -> tuple[Any, str | None]:
    """Returns the value of a hint and its path, or (None, None)."""
    for holder, path in places:
        if name in holder:
            return holder[name], f"{path}.{name}" if path else name
    return None, None


def _fps(places: Sequence[Place]) -> float | None:
    fps, param = _found("fps", places)
    if fps is None or param is None:
        return None
    if not _is_number(fps):
        raise wrong_type(fps, "a number above 0", param)
    if not 0 < fps <= _MAX_FPS:
        raise InvalidRequest(
            f"{param} must be frames per second, above 0 and at most {_MAX_FPS:.0f}.", param=param
        )
    return float(fps)


def _num_frames(places: Sequence[Place]) -> int | None:
    num_frames, param = _found("num_frames", places)
    if num_frames is None or param is None:
        return None
    if not isinstance(num_frames, int) or isinstance(num_frames, bool):
        raise wrong_type(num_frames, "an integer, at least 1", param)
    if not 1 <= num_frames < 2**31:
        raise InvalidRequest(f"{param} must be an integer, at least 1.", param=param)
    return num_frames


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and not (isinstance(value, float) and math.isnan(value))
    )
