"""How many tokens pruning keeps. Pure: the processor half and the model half both rest on it.

EVS (arXiv 2510.14624) keeps the whole first temporal grid of a video, and of the rest the tokens
that differ most from the same place in the grid before. VidCom2 (arXiv 2505.14454) keeps tokens of
every grid, more of those grids that stand out from the video.
"""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

METHODS = ("evs", "vidcom2")
"""Names of the pruning methods, as vLLM has them."""

ENABLED_AT_RATE_ZERO = sys.float_info.epsilon / 4
"""Engine-wide rate that switches pruning on and removes nothing, since 1 - rate == 1.

vLLM reads a rate of 0 as "pruning is off", and then gives no request a rate of its own.
"""


def checked_rate(value: object) -> float:
    """Returns ``value`` as a pruning rate in [0, 1).

    Raises:
        ValueError: it is not a finite number in that range; the message names the field.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"video_pruning_rate must be a number in [0, 1), got {value!r}")
    # NaN compares as false; an int may be too large for a float.
    if not 0 <= value < 1:
        raise ValueError(f"video_pruning_rate must be in [0, 1), got {value!r}")
    return float(value)


def checked_method(value: object, *, supported: Sequence[str] = METHODS) -> str:
    """Returns ``value`` as the name of a pruning method that the model has.

    Raises:
        ValueError: it is not one of ``supported``; the message names the field.
    """
    if not isinstance(value, str) or value not in supported:
        names = ", ".join(map(repr, supported))
        raise ValueError(f"video_pruning_method must be one of {names} here, got {value!r}")
    return value


def per_video(
    value: object, *, field: str, num_videos: int, default: T, check: Callable[[object], T]
) -> list[T]:
    """Returns one checked value for each video from a single value, a list of them, or None.

    A list gives each video its own, in order; None, alone or in a list, means ``default``.

    Raises:
        ValueError: ``check`` raised it, or the list has another length than there are videos.
    """
    if value is None:
        return [default] * num_videos
    if not isinstance(value, list | tuple):
        return [check(value)] * num_videos
    if len(value) != num_videos:
        raise ValueError(
            f"{field} lists {len(value)} values for {num_videos} videos; "
            "give a single one, or one for each video"
        )
    return [default if item is None else check(item) for item in value]


def retained_tokens(
    *, tokens_per_grid: int, num_grids: int, rate: float, method: str = "evs"
) -> int:
    """Returns how many of a video's tokens survive pruning at ``rate``.

    EVS never keeps fewer than one whole temporal grid, so a clip of T grids can lose at most
    1 - 1/T; VidCom2 never fewer than one token of each grid. The rounding is that of vLLM's
    ``compute_retained_tokens_count``, so that counts agree with an engine that prunes every video
    at the same rate.
    """
    if tokens_per_grid < 1 or num_grids < 1:
        raise ValueError(f"{num_grids} grids of {tokens_per_grid} tokens is not a video")
    fewest = {"evs": tokens_per_grid, "vidcom2": num_grids}[method]
    return max(fewest, int(tokens_per_grid * num_grids * (1 - rate)))
