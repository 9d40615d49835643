"""When each packet's frame is shown, and which packets a frame needs. Pure; no FFmpeg here."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

_FALLBACK_FPS = Fraction(25)
_PLAUSIBLE_FPS = (Fraction(1, 10), Fraction(1000))


@dataclass(frozen=True, slots=True)
class PacketFacts:
    """What a container says about one packet."""

    time: int | None
    """Presentation time in ticks of the stream, None where the container has none."""
    duration: int
    """How long the frame is shown, in ticks; 0 where unknown."""
    is_keyframe: bool
    """Whether decoding can start here, as the container claims."""
    is_shown: bool
    """False for packets that are only decoded for others: before an edit list's start, hidden."""
    completes_previous: bool = False
    """Whether it holds the second half of the picture before it, so that both are needed."""


@dataclass(frozen=True, slots=True)
class Span:
    """A run of packets to decode: [first, last] in decode order."""

    first: int
    last: int

    @property
    def num_packets(self) -> int:
        """Number of packets."""
        return self.last + 1 - self.first


def can_be_shared(spans: Sequence[Span], num_workers: int) -> bool:
    """Returns whether decoding spans one by one keeps all workers busy nearly to the end.

    With few or uneven spans one worker would be left with a long one while the others idle.
    """
    sizes = [span.num_packets for span in spans]
    return (
        num_workers > 1 and len(sizes) >= 2 * num_workers and max(sizes) * num_workers <= sum(sizes)
    )


class Timeline:
    """The shown frames of a stream, numbered in presentation order from 0."""

    def __init__(
        self,
        packets: Sequence[PacketFacts],
        *,
        time_base: Fraction,
        frames_per_second: Fraction | None,
        has_presentation_times: bool = True,
    ) -> None:
        self._packets = packets
        self._time_base = time_base
        self._frames_per_second = frames_per_second
        self._has_presentation_times = has_presentation_times
        shown = [position for position, packet in enumerate(packets) if packet.is_shown]
        times = [time for position in shown if (time := packets[position].time) is not None]
        self.is_timed = (
            has_presentation_times
            and len(times) == len(shown)
            and (len(shown) < 2 or min(times) < max(times))
        )
        """Whether packets carry usable times. If not, frame i is the i-th that the decoder gives
        out when it starts at the beginning, and the frame rate dates it."""
        if self.is_timed:
            # Stable: frames with equal times keep their decode order.
            shown.sort(key=lambda position: packets[position].time or 0)
        self._shown = shown
        self._times_seconds, self.duration_seconds = (
            self._from_times() if self.is_timed else self._from_rate()
        )
        self._keyframes = [i for i, packet in enumerate(packets) if packet.is_keyframe]

    @property
    def num_frames(self) -> int:
        """Number of frames that can be shown."""
        return len(self._shown)

    @property
    def times_seconds(self) -> tuple[float, ...]:
        """Presentation time of each frame relative to the first one, ascending."""
        return self._times_seconds

    @property
    def keyframe_numbers(self) -> tuple[int, ...]:
        """Frames at which the container says that decoding can start, ascending."""
        return tuple(
            number
            for number, position in enumerate(self._shown)
            if self._packets[position].is_keyframe
        )

    def without(self, positions: Collection[int]) -> "Timeline":
        """Returns the timeline as if the packets at these positions showed nothing."""
        packets = [
            replace(packet, is_shown=packet.is_shown and position not in positions)
            for position, packet in enumerate(self._packets)
        ]
        return Timeline(
            packets,
            time_base=self._time_base,
            frames_per_second=self._frames_per_second,
            has_presentation_times=self._has_presentation_times,
        )

    def frame_numbers(self) -> list[int | None]:
        """Returns, per packet in decode order, which frame it holds; None if it is not shown."""
        numbers: list[int | None] = [None] * len(self._packets)
        for number, position in enumerate(self._shown):
            numbers[position] = number
        return numbers

    def spans(self, frames: Iterable[int], *, num_neighbours: int = 0) -> list[Span]:
        """Returns the packets that ``frames`` depend on, in decode order, without overlap.

        A frame depends on what follows the last keyframe that precedes it both in decode and in
        presentation order: a keyframe may be followed by frames shown before it, which refer to
        the group before (open GOP).

        Args:
            frames: their numbers.
            num_neighbours: how many frames on both sides of each one are needed in its span.
        """
        spans: list[Span] = []
        needed = (self._needed(frame, num_neighbours) for frame in frames)
        for last, first in sorted((span.last, span.first) for span in needed):
            while spans and first <= spans[-1].last + 1:
                first = min(first, spans.pop().first)
            spans.append(Span(first, last))
        return spans

    def _needed(self, frame: int, num_neighbours: int) -> Span:
        around = self._shown[max(frame - num_neighbours, 0) : frame + num_neighbours + 1]
        last = max(around)
        is_half = last + 1 < len(self._packets) and self._packets[last + 1].completes_previous
        return Span(min(map(self._start_for, around)), last + 1 if is_half else last)

    def _start_for(self, position: int) -> int:
        time = self._packets[position].time or 0
        for index in range(bisect_right(self._keyframes, position) - 1, -1, -1):
            key_time = self._packets[self._keyframes[index]].time
            if key_time is not None and key_time <= time:
                return self._keyframes[index]
        return 0

    def _from_times(self) -> tuple[tuple[float, ...], float]:
        ticks = [self._packets[position].time or 0 for position in self._shown]
        if not ticks:
            return (), 0.0
        tick_seconds = float(self._time_base)
        times = tuple((tick - ticks[0]) * tick_seconds for tick in ticks)
        held = self._packets[self._shown[-1]].duration * tick_seconds
        if held <= 0 and len(times) > 1:
            held = times[-1] / (len(times) - 1)
        if held <= 0:
            held = float(1 / _plausible(self._frames_per_second))
        return times, times[-1] + held

    def _from_rate(self) -> tuple[tuple[float, ...], float]:
        rate = _plausible(self._frames_per_second)
        count = len(self._shown)
        return tuple(float(number / rate) for number in range(count)), float(count / rate)


def _plausible(frames_per_second: Fraction | None) -> Fraction:
    """Returns the rate that a header claims, or a usual one where the claim can not be."""
    low, high = _PLAUSIBLE_FPS
    if frames_per_second is None or not low <= frames_per_second <= high:
        return _FALLBACK_FPS
    return frames_per_second
