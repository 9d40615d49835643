"""How many tokens EVS keeps. Pure: the processor half and the model half both rest on it.

EVS (arXiv 2510.14624) keeps the whole first temporal grid of a video, and of the rest the tokens
that differ most from the same place in the grid before.
"""

import math
import sys

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
    if not math.isfinite(value) or not 0 <= value < 1:
        raise ValueError(f"video_pruning_rate must be in [0, 1), got {value!r}")
    return float(value)


def rates_per_video(value: object, *, num_videos: int, default: float) -> list[float]:
    """Returns one rate for each video from a single rate, a list of rates, or None.

    A list gives each video its own rate, in order; None, alone or in a list, means ``default``.

    Raises:
        ValueError: a rate is out of range, or the list has another length than there are videos.
    """
    if value is None:
        return [default] * num_videos
    if not isinstance(value, list | tuple):
        return [checked_rate(value)] * num_videos
    if len(value) != num_videos:
        raise ValueError(
            f"video_pruning_rate lists {len(value)} rates for {num_videos} videos; "
            "give one number, or one for each video"
        )
    return [default if rate is None else checked_rate(rate) for rate in value]


def retained_tokens(*, tokens_per_grid: int, num_grids: int, rate: float) -> int:
    """Returns how many of a video's tokens survive pruning at ``rate``.

    Never fewer than one whole temporal grid, so a clip of T grids can lose at most 1 - 1/T. The
    rounding is that of vLLM's ``compute_retained_tokens_count``, so that counts agree with an
    engine that prunes every video at the same rate.
    """
    if tokens_per_grid < 1 or num_grids < 1:
        raise ValueError(f"{num_grids} grids of {tokens_per_grid} tokens is not a video")
    return max(tokens_per_grid, int(tokens_per_grid * num_grids * (1 - rate)))
