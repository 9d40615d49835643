"""Which frames of a video the model gets to see: even in time, whatever the frame rate does.

Times are those of the whole video, also when only a stretch of it is sampled. A model that is told
the times of its frames can then name a moment that a player finds, as Qwen's own loader and Gemini
do; one that only knows distances between frames, such as Qwen2.5-VL, sees no difference.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from server.conversation import SamplingWish
from server.errors import InvalidRequest
from server.media.clip import VideoFacts
from server.settings import VideoSettings

_TIMESTAMP_ROUNDING_SECONDS = 0.0006
"""Matroska rounds times to whole milliseconds, so a frame may be dated half of one late."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The frames chosen, and the stretch of time that they stand for."""

    frame_indices: tuple[int, ...]
    """Indices into ``VideoFacts.frame_times_seconds``, ascending; a held frame may repeat."""
    start_seconds: float
    """Where the stretch begins, in the time of the video."""
    span_seconds: float
    """The frames are evenly spaced over [start, start + span), unless every frame of it was taken
    or they are keyframes."""
    granted: SamplingWish
    """The wish as it was followed: defaults filled in, caps applied, the end within the video, and
    frames counted in whole steps."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The part of a video that is sampled: what is on screen during [start, end) seconds."""

    start: float
    end: float
    first: int
    """The frame on screen at the start."""
    stop: int
    """One past the last frame that appears before the end."""

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def num_frames(self) -> int:
        return self.stop - self.first


def plan_frames(
    facts: VideoFacts, wish: SamplingWish, settings: VideoSettings, *, temporal_patch_size: int
) -> Sampling:
    """Returns the frames that are on screen at evenly spaced times, from the start of the stretch.

    Args:
        facts: the video.
        wish: what the client asked for; without a wish ``settings.default_fps`` is used.
        settings: the caps that a wish is clamped to.
        temporal_patch_size: frames that become one step in time; the count is made a multiple,
            unless all frames of the stretch are taken, or there are too few keyframes.

    Raises:
        InvalidRequest: the stretch lies beyond the video's end, or has no keyframe to align to;
            the param is the hint's name.
    """
    granted = granted_wish(wish, settings)
    stretch = _stretch(facts, granted)
    granted = replace(granted, end_seconds=stretch.end)
    asked = granted.num_frames or math.floor(stretch.seconds * (granted.fps or 0) + 0.5)
    count = frame_count(
        asked=asked,
        available=stretch.num_frames,
        min_frames=granted.min_frames or 1,
        max_frames=granted.max_frames or settings.max_frames,
        temporal_patch_size=temporal_patch_size,
    )
    takes_all = count == stretch.num_frames
    rate_holds = granted.fps is not None and count == asked and not takes_all
    spacing = 1 / granted.fps if granted.fps and rate_holds else stretch.seconds / count
    targets = [stretch.start + index * spacing for index in range(count)]
    if granted.alignment == "keyframe":
        indices = _nearest(_keyframes(facts, stretch), facts.frame_times_seconds, targets)
    elif takes_all:
        indices = tuple(range(stretch.first, stretch.stop))
    else:
        indices = _frames_on_screen(facts, targets, stretch)
    span_seconds = count * spacing if rate_holds else stretch.seconds
    indices = _whole_step(indices, temporal_patch_size)
    granted = _counted(granted, len(indices), temporal_patch_size)
    return Sampling(indices, stretch.start, span_seconds, granted)


def granted_wish(wish: SamplingWish, settings: VideoSettings) -> SamplingWish:
    """Returns ``wish`` with the server's defaults filled in and its caps applied."""
    max_frames = min(wish.max_frames or settings.max_frames, settings.max_frames)
    if wish.num_frames is not None:
        # Whoever names a number wants that number; the floor is for short clips at a rate.
        num_frames = min(wish.num_frames, max_frames)
        return replace(wish, num_frames=num_frames, min_frames=1, max_frames=max_frames)
    return replace(
        wish,
        fps=min(settings.default_fps if wish.fps is None else wish.fps, settings.max_fps),
        min_frames=min(wish.min_frames or settings.min_frames, max_frames),
        max_frames=max_frames,
    )


def _counted(granted: SamplingWish, num_frames: int, temporal_patch_size: int) -> SamplingWish:
    """Returns the wish with the numbers of frames that were really used.

    A cap is rounded down to a multiple of ``temporal_patch_size``, though not to none, and a floor
    up to one, as far as the cap allows. A number is that of the frames.
    """
    step, most = temporal_patch_size, granted.max_frames or num_frames
    max_frames = max(step, most // step * step, num_frames)
    floor = -(-(granted.min_frames or 1) // step) * step
    if granted.num_frames is not None:
        return replace(granted, num_frames=num_frames, min_frames=1, max_frames=max_frames)
    return replace(granted, min_frames=min(floor, max_frames), max_frames=max_frames)


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


def _stretch(facts: VideoFacts, granted: SamplingWish) -> _Stretch:
    """Returns the part of the video that the wish is about.

    The frame on screen at the start belongs to it, though it may have appeared before.
    """
    times, start = facts.frame_times_seconds, granted.start_seconds
    if start >= facts.duration_seconds:
        raise InvalidRequest(
            f"start_offset is {start:g} s, but the video ends at {facts.duration_seconds:.3f} s. "
            "Start earlier.",
            param="start_offset",
        )
    end = min(facts.duration_seconds, granted.end_seconds or facts.duration_seconds)
    tolerance = _tolerance(facts)
    first = bisect_right(times, start + tolerance) - 1 if start > 0 else 0
    stop = len(times) if end >= facts.duration_seconds else bisect_left(times, end - tolerance)
    return _Stretch(start, end, first, max(stop, first + 1))


def _whole_step(indices: tuple[int, ...], temporal_patch_size: int) -> tuple[int, ...]:
    """Returns the indices, the last one held where they are too few for one step in time.

    Models do the same with an uneven end, but some processors refuse less than one step.
    """
    return indices + indices[-1:] * (temporal_patch_size - len(indices))


def _frames_on_screen(
    facts: VideoFacts, targets: Iterable[float], stretch: _Stretch
) -> tuple[int, ...]:
    """Returns the last frame of the stretch at or before each target time."""
    times, tolerance = facts.frame_times_seconds, _tolerance(facts)
    # Within the tolerance of the end the next frame would be found.
    return tuple(
        min(bisect_right(times, target + tolerance), stretch.stop) - 1 for target in targets
    )


def _tolerance(facts: VideoFacts) -> float:
    return min(_TIMESTAMP_ROUNDING_SECONDS, facts.duration_seconds / facts.num_frames / 4)


def _keyframes(facts: VideoFacts, stretch: _Stretch) -> list[int]:
    """Returns the keyframes of the stretch, ascending; the first frame of a video always is one.

    Raises:
        InvalidRequest: there is none. The nearest one outside would show what was cut away.
    """
    keyframes = sorted({0, *facts.keyframe_indices})
    found = keyframes[bisect_left(keyframes, stretch.first) : bisect_left(keyframes, stretch.stop)]
    if not found:
        raise InvalidRequest(
            f"The video has no keyframe between {stretch.start:g} s and {stretch.end:g} s to align "
            'to. Choose a longer stretch, or "exact".',
            param="frame_alignment",
        )
    return found


def _nearest(
    frames: Sequence[int], times: Sequence[float], targets: Iterable[float]
) -> tuple[int, ...]:
    """Returns those of ``frames`` that are nearest in time to a target, each once, ascending.

    Of two at the same distance it is the earlier one.
    """
    frame_times = [times[frame] for frame in frames]
    chosen = set()
    for target in targets:
        after = bisect_left(frame_times, target)
        near = range(max(0, after - 1), min(len(frames), after + 1))
        chosen.add(frames[min(near, key=lambda place: abs(frame_times[place] - target))])
    return tuple(sorted(chosen))
