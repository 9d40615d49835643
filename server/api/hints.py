"""How a client wants its videos sampled and pruned, on the request or on a video itself."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from server.api.dialects import (
    SIZE_PATH,
    SPELLINGS,
    Tier,
    request_lists,
    request_tiers,
)
from server.api.quantities import (
    MAX_COUNT,
    count,
    frames_per_second,
    is_number,
    pixels,
    seconds,
    word,
)
from server.api.validation import shown, wrong_type
from server.conversation import FrameAlignment, PixelLimits, SamplingWish, TokenBudget
from server.engine.base import ModelFacts
from server.errors import InvalidRequest
from server.evs.arithmetic import METHODS
from server.settings import Settings

Check = Callable[[Any, str], Any]
"""Takes a value and its JSON path; returns the checked value or raises InvalidRequest."""

_RATE = "video_pruning_rate"
_NOT_ABOVE = (
    ("min_frames", "max_frames"),
    ("min_frames", "num_frames"),
    ("num_frames", "max_frames"),
    ("min_pixels", "max_pixels"),
    ("min_pixels", "total_pixels"),
)
"""Hints of which the first must not be above the second."""
_DETAIL_PIXELS: Mapping[str, int | None] = {"low": 128 * 28 * 28, "high": None, "auto": None}
"""What ``detail`` comes to: most pixels of a frame; ``low`` makes about 128 tokens of it."""


@dataclass(frozen=True, slots=True)
class Hint:
    """One thing that was asked for."""

    value: Any
    param: str
    """JSON path at which it was found."""


@dataclass(frozen=True, slots=True)
class VideoHints:
    """What was asked for on one level, by the names of the hints."""

    found: Mapping[str, Hint]

    def over(self, other: "VideoHints") -> "VideoHints":
        """Returns these hints, with what they leave open taken from ``other``.

        How many frames is one question: a rate here replaces a number there, and a number replaces
        a rate and the floor that goes with it.
        """
        answered: set[str] = set()
        if self.found.keys() & {"fps", "num_frames"}:
            answered = {"fps", "num_frames"}
        if "num_frames" in self.found:
            answered.add("min_frames")
        inherited = {name: hint for name, hint in other.found.items() if name not in answered}
        return VideoHints({**inherited, **self.found})

    def value(self, name: str, default: Any = None) -> Any:
        """Returns what was asked for by that name, or ``default``."""
        hint = self.found.get(name)
        return default if hint is None else hint.value


@dataclass(frozen=True, slots=True)
class HintList:
    """A hint for each video of a request."""

    name: str
    hints: tuple[Hint | None, ...]
    """In the order of the videos; None leaves it open."""
    param: str
    """JSON path of the list."""


@dataclass(frozen=True, slots=True)
class RequestHints:
    """What was asked for on a request: for all of its videos, or for each."""

    common: VideoHints
    lists: tuple[HintList, ...]

    def of(self, index: int) -> VideoHints:
        """Returns the hints for video ``index``, counted from 0; those for all go first."""
        found = {
            entries.name: hint
            for entries in self.lists
            for hint in entries.hints[index : index + 1]
            if hint is not None
        }
        return VideoHints({**found, **self.common.found})

    def require_count(self, num_videos: int) -> None:
        """Refuse lists that have not one entry for each video."""
        for entries in self.lists:
            if len(entries.hints) != num_videos:
                raise InvalidRequest(
                    f"{entries.param} has {len(entries.hints)} entries, and the request has "
                    f"{num_videos} videos. Give one for each, null where the default is wanted.",
                    param=entries.param,
                )


@dataclass(frozen=True, slots=True)
class VideoWishes:
    """What all levels together, and the defaults, come to for one video."""

    sampling: SamplingWish
    pixels: PixelLimits
    token_budget: TokenBudget | None
    pruning_rate: float
    pruning_method: str
    hint_params: Mapping[str, str]
    """JSON path of each hint that was given."""


class HintReader:
    """Reads hints within what the operator and the served model allow."""

    def __init__(self, settings: Settings, facts: ModelFacts) -> None:
        self._max_rate = settings.pruning.max_rate
        self._default_rate = settings.pruning.default_rate if facts.supports_pruning else 0.0
        self._default_method = settings.pruning.default_method
        self._methods = facts.pruning_methods
        self._geometry = facts.geometry
        self._checks: Mapping[str, Check] = {
            "fps": frames_per_second,
            "num_frames": count,
            "min_frames": count,
            "max_frames": count,
            "min_pixels": pixels,
            "max_pixels": pixels,
            "total_pixels": pixels,
            "spatial_limit": pixels,
            "detail": partial(word, words=tuple(_DETAIL_PIXELS)),
            "start_offset": seconds,
            "end_offset": seconds,
            "frame_alignment": partial(word, words=get_args(FrameAlignment)),
            "video_token_budget": count,
            _RATE: self._rate,
            "video_pruning_method": self._method,
        }

    def read_request(self, payload: Mapping[str, Any]) -> RequestHints:
        """Returns the hints on a request for its videos.

        Raises:
            InvalidRequest: as for ``read``.
        """
        tiers = list(request_tiers(payload))
        given_paths = {path for tier in tiers for _, path in tier}
        if SIZE_PATH in given_paths and not self._geometry.limits_each_frame:
            raise InvalidRequest(
                f"{SIZE_PATH} does not mean the size of a frame to the served model. Use "
                "max_pixels (of a frame) or total_pixels (of a video).",
                param=SIZE_PATH,
                code="unsupported_field",
            )
        lists = tuple(self._list(*entries) for entries in request_lists(payload))
        return RequestHints(self.read(tiers), lists)

    def _list(self, name: str, values: Sequence[Any], param: str) -> HintList:
        """Returns the hint of that name for each video; ``values`` has null where it is open."""
        check = self._checks[name]
        paths = [f"{param}[{index}]" for index in range(len(values))]
        return HintList(
            name,
            tuple(
                None if value is None else Hint(check(value, path), path)
                for value, path in zip(values, paths, strict=True)
            ),
            param,
        )

    def read(self, tiers: Iterable[Tier]) -> VideoHints:
        """Returns the hints of one level, which may lie in several tiers; the first one wins.

        Raises:
            InvalidRequest: a hint is wrong, two of them contradict each other, or one is given
                twice in a tier and differs.
        """
        found: dict[str, Hint] = {}
        for tier in tiers:
            told: dict[str, Hint] = {}
            for name, hint in self._hints_in(tier):
                _check_same(told.setdefault(name, hint), hint)
            found = {**told, **found}
        _check_together(found)
        return VideoHints(found)

    def _hints_in(self, tier: Tier) -> Iterator[tuple[str, Hint]]:
        for holder, path in tier:
            for name, check in self._checks.items():
                for spelling in SPELLINGS[name]:
                    # A null rate too: who computes it should not get an unpruned video by mistake.
                    if holder.get(spelling) is not None or (name == _RATE and name in holder):
                        param = f"{path}.{spelling}" if path else spelling
                        yield name, Hint(check(holder[spelling], param), param)

    def settle(self, hints: VideoHints) -> VideoWishes:
        """Returns what the hints of all levels come to, defaults filled in.

        Raises:
            InvalidRequest: hints of different levels contradict each other.
        """
        _check_together(hints.found)
        tokens = hints.value("video_token_budget")
        max_rate = self._max_rate if self._methods else 0.0
        return VideoWishes(
            sampling=SamplingWish(
                fps=hints.value("fps"),
                num_frames=hints.value("num_frames"),
                min_frames=hints.value("min_frames"),
                max_frames=hints.value("max_frames"),
                start_seconds=hints.value("start_offset", 0.0),
                end_seconds=hints.value("end_offset"),
                alignment=hints.value("frame_alignment", "exact"),
            ),
            pixels=PixelLimits(
                min_pixels=hints.value("min_pixels"),
                max_pixels=hints.value("max_pixels"),
                total_pixels=hints.value("total_pixels"),
                max_side=hints.value("spatial_limit"),
                preferred_pixels=_DETAIL_PIXELS[hints.value("detail", "auto")],
            ),
            token_budget=None if tokens is None else TokenBudget(tokens, max_rate),
            pruning_rate=hints.value(_RATE, self._default_rate),
            pruning_method=hints.value("video_pruning_method", self._default_method),
            hint_params={name: hint.param for name, hint in hints.found.items()},
        )

    def _rate(self, rate: Any, param: str) -> float:
        if not is_number(rate):
            raise InvalidRequest(
                f"{param} must be a number, at least 0 and below 1. A rate for one of several "
                "videos goes into its own part.",
                param=param,
                code="invalid_type",
            )
        if not 0 <= rate < 1:
            raise InvalidRequest(
                f"{param} must be at least 0 and below 1: the fraction of the video's tokens to "
                f"remove, 0 for none; this server takes at most {self._max_rate}.",
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

    def _method(self, method: Any, param: str) -> str:
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


def _check_same(first: Hint, second: Hint) -> None:
    """Refuse two spellings of one hint, or two objects side by side, that differ."""
    if first.value != second.value:
        raise InvalidRequest(
            f"{first.param} and {second.param} mean the same and differ; give one of them.",
            param=second.param,
        )


def _check_together(found: Mapping[str, Hint]) -> None:
    """Refuse hints that contradict each other."""
    if {"fps", "num_frames"} <= found.keys():
        raise InvalidRequest(
            "fps and num_frames exclude each other; give one of them.",
            param=found["num_frames"].param,
        )
    for low_name, high_name in _NOT_ABOVE:
        low, high = found.get(low_name), found.get(high_name)
        # The highest number means as many as may be, whatever the cap.
        if low and high and low.value > high.value and low.value < MAX_COUNT:
            raise InvalidRequest(
                f"{low.param} is {low.value}, above {high.param}, which is {high.value}.",
                param=low.param,
            )
    start, end = found.get("start_offset"), found.get("end_offset")
    if end and end.value <= (start.value if start else 0):
        begin = f"{start.param}, which is {start.value:g}" if start else "0"
        raise InvalidRequest(
            f"{end.param} is {end.value:g} s; it must be after {begin} s.", param=end.param
        )
