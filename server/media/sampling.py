"""Which frames of a video the model gets to see: even in time, whatever the frame rate does."""

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from server.conversation import SamplingWish
from server.media.clip import VideoFacts
from server.settings import VideoSettings

_TIMESTAMP_ROUNDING_SECONDS = 0.0006
"""Matroska rounds times to whole milliseconds, so a frame may be dated half of one late."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The frames chosen, and the stretch of time that they stand for."""

    frame_indices: tuple[int, ...]
    """Indices into ``VideoFacts.frame_times_seconds``, ascending; a held frame may repeat."""
    span_seconds: float
    """The frames are evenly spaced over [0, span_seconds), unless every frame was taken."""


def plan_frames(
    facts: VideoFacts, wish: SamplingWish, settings: VideoSettings, *, temporal_patch_size: int
) -> Sampling:
    """Returns the frames that are on screen at evenly spaced times, starting with the first frame.

    Args:
        facts: the video.
        wish: what the client asked for; without a wish ``settings.default_fps`` is used.
        settings: the caps that a wish is clamped to.
        temporal_patch_size: frames that become one step in time; the count is made a multiple.
    """
    rate = _frames_per_second(wish, settings)
    asked = wish.num_frames or math.floor(facts.duration_seconds * rate + 0.5)
    count = frame_count(
        asked=asked,
        available=facts.num_frames,
        # Whoever names a number wants that number; the floor is for short clips at a rate.
        min_frames=settings.min_frames if wish.num_frames is None else 1,
        max_frames=settings.max_frames,
        temporal_patch_size=temporal_patch_size,
    )
    if count == facts.num_frames:
        indices = tuple(range(count))
        return Sampling(_whole_step(indices, temporal_patch_size), facts.duration_seconds)
    rate_holds = wish.num_frames is None and count == asked
    spacing = 1 / rate if rate_holds else facts.duration_seconds / count
    targets = (index * spacing for index in range(count))
    indices = _frames_on_screen(facts, targets)
    return Sampling(_whole_step(indices, temporal_patch_size), count * spacing)


def frame_count(
    *, asked: int, available: int, min_frames: int, max_frames: int, temporal_patch_size: int
) -> int:
    """Returns how many frames to take when ``asked`` would be liked and ``available`` exist.

    The caps win over the wish, and the number that exist over everything. The count is rounded up
    to a multiple of ``temporal_patch_size``, or down where a cap forbids it; only when all frames
    are taken, or the cap is below one step, may it stay uneven.
    """
    most = min(max_frames, available)
    count = min(max(asked, min_frames), most)
    if count == available:
        return count
    rounded_up = -(-count // temporal_patch_size) * temporal_patch_size
    if rounded_up <= most:
        return rounded_up
    rounded_down = count // temporal_patch_size * temporal_patch_size
    return rounded_down or count


def _whole_step(indices: tuple[int, ...], temporal_patch_size: int) -> tuple[int, ...]:
    """Returns the indices, the last one held where they are too few for one step in time.

    Models do the same with an uneven end, but some processors refuse less than one step.
    """
    return indices + indices[-1:] * (temporal_patch_size - len(indices))


def _frames_per_second(wish: SamplingWish, settings: VideoSettings) -> float:
    return min(settings.default_fps if wish.fps is None else wish.fps, settings.max_fps)


def _frames_on_screen(facts: VideoFacts, targets: Iterable[float]) -> tuple[int, ...]:
    """Returns the last frame at or before each target time."""
    times = facts.frame_times_seconds
    mean_gap = facts.duration_seconds / facts.num_frames
    tolerance = min(_TIMESTAMP_ROUNDING_SECONDS, mean_gap / 4)
    return tuple(bisect_right(times, target + tolerance) - 1 for target in targets)
