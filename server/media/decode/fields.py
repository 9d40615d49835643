"""Pictures out of frames whose odd and even lines were taken at different times.

Only frames that are flagged so are touched; FFmpeg's bwdif makes one picture of each, from its
lines and those of the frames before and after.
"""

from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from fractions import Fraction

import av
from av.filter import Graph
from av.video.frame import VideoFrame

_LEAST_SIDE = 4
"""bwdif refuses pictures of fewer lines or columns."""


def without_interlacing(
    frames: Iterable[tuple[int, VideoFrame]], wanted: Set[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """Yields every (number, frame), the wanted ones deinterlaced if they need it.

    Args:
        frames: numbers and frames; neighbours are recognised where numbers follow each other.
        wanted: whose pixels matter.
    """
    before: tuple[int, VideoFrame] | None = None
    current: tuple[int, VideoFrame] | None = None
    for after in frames:
        if current is not None:
            yield _in_context(before, current, after, wanted)
        before, current = current, after
    if current is not None:
        yield _in_context(before, current, None, wanted)


def _in_context(
    before: tuple[int, VideoFrame] | None,
    current: tuple[int, VideoFrame],
    after: tuple[int, VideoFrame] | None,
    wanted: Set[int],
) -> tuple[int, VideoFrame]:
    number, frame = current
    if number not in wanted or not frame.interlaced_frame:
        return current
    return number, deinterlaced(
        frame,
        before=before[1] if before is not None and before[0] == number - 1 else None,
        after=after[1] if after is not None and after[0] == number + 1 else None,
    )


def deinterlaced(
    frame: VideoFrame, *, before: VideoFrame | None = None, after: VideoFrame | None = None
) -> VideoFrame:
    """Returns a progressive frame shown at the time of ``frame``, which may have neighbours."""
    if min(frame.width, frame.height) < _LEAST_SIDE:
        return frame
    sequence = [f for f in (before, frame, after) if f is not None and _is_alike(f, frame)]
    graph = _graph(frame)
    for place, member in enumerate(sequence):
        member.pts, member.time_base = place, Fraction(1)
        graph.vpush(member)
    graph.vpush(None)
    results = []
    with suppress(av.error.BlockingIOError, av.error.EOFError):
        while True:
            results.append(graph.vpull())
    return results[sequence.index(frame)]


def _graph(frame: VideoFrame) -> Graph:
    graph = Graph()
    graph.threads = 1
    graph.link_nodes(
        graph.add_buffer(
            width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1)
        ),
        graph.add("bwdif", "mode=send_frame:deint=interlaced"),
        graph.add("buffersink"),
    ).configure()
    return graph


def _is_alike(one: VideoFrame, other: VideoFrame) -> bool:
    return (one.width, one.height, one.format.name) == (
        other.width,
        other.height,
        other.format.name,
    )
