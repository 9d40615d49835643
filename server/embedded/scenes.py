"""Synthetic clips: a few coloured shapes that stay, move, appear or disappear.

A frame is drawn when it is asked for, so training draws only those that are sampled.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.embedded.backgrounds import Background
from server.embedded.figures import COLOURS, SHAPES, paint

DIRECTIONS: dict[str, tuple[int, int]] = {
    "left": (-1, 0),
    "right": (1, 0),
    "up": (0, -1),
    "down": (0, 1),
}
"""Steps in (x, y); y points down."""
EVENTS = ("appears", "disappears")

SIZES = (
    *((160, 120), (320, 240), (192, 144)),
    *((320, 180), (256, 144), (480, 270), (640, 360)),
    *((256, 256), (160, 160)),
    *((120, 160), (240, 320), (144, 256), (180, 320)),
)
"""(width, height) in pixels; even, as H.264 wants them."""
FRAME_RATES = (8, 10, 12, 15, 24, 25, 30)
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 30.0

_EVENT_SPAN = (0.15, 0.85)
_EVENT_GAP = 0.32
"""Parts of a clip's length: when something may happen, and how long until the next."""
_SHORTEST_FOR_TWO_EVENTS_SECONDS = 3.0
_NUM_OBJECTS = (0.28, 0.34, 0.26, 0.12)
_PLACEMENTS = 40
_CHECKED_TIMES = np.linspace(0, 1, 9)


@dataclass(frozen=True, slots=True)
class Thing:
    """One object: what it looks like, where it is, and what it does."""

    colour: str
    shape: str
    rgb: tuple[int, int, int]
    radius: float
    """In parts of the picture's shorter side, as are the positions."""
    start: tuple[float, float]
    stop: tuple[float, float]
    """Where its centre is at the start and at the end of the clip."""
    direction: str | None = None
    """One of DIRECTIONS while it moves, for the whole clip; None is still."""
    event: str | None = None
    """One of EVENTS, if it is not there all the time."""
    event_seconds: float = 0.0

    def is_visible(self, seconds: float) -> bool:
        """Returns whether it is there at that time."""
        if self.event is None:
            return True
        return (seconds >= self.event_seconds) == (self.event == "appears")

    def centre(self, progress: float) -> tuple[float, float]:
        """Returns where it is at ``progress`` in [0, 1] of the clip."""
        (x0, y0), (x1, y1) = self.start, self.stop
        return x0 + progress * (x1 - x0), y0 + progress * (y1 - y0)


@dataclass(frozen=True, slots=True)
class Scene:
    """A clip before it is drawn."""

    width: int
    height: int
    fps: int
    num_frames: int
    background: Background
    things: tuple[Thing, ...]
    """Each has a colour of its own; sorted as in COLOURS."""

    @property
    def duration_seconds(self) -> float:
        """How long the clip is."""
        return self.num_frames / self.fps

    @property
    def events(self) -> list[Thing]:
        """The things that appear or disappear, in the order in which it happens."""
        return sorted((t for t in self.things if t.event), key=lambda t: t.event_seconds)

    def frames(self, indices: Iterable[int] | None = None) -> NDArray[np.uint8]:
        """Returns the frames of these indices, by default all: shape (n, height, width, 3)."""
        still = self.background.picture(self.width, self.height)
        chosen = range(self.num_frames) if indices is None else indices
        return np.stack([self._frame(still, index) for index in chosen])

    def _frame(self, still: NDArray[np.uint8], index: int) -> NDArray[np.uint8]:
        picture = still.copy()
        scale = min(self.width, self.height)
        for thing in self.visible_things(index):
            x, y = thing.centre(index / max(1, self.num_frames - 1))
            paint(
                picture,
                thing.shape,
                thing.rgb,
                centre=(x * scale, y * scale),
                radius=thing.radius * scale,
            )
        return self.background.with_noise(picture, index)

    def visible_things(self, frame_index: int) -> list[Thing]:
        """Returns what is there at a frame, later ones in front."""
        return [t for t in self.things if t.is_visible(frame_index / self.fps)]


def random_scene(
    rng: np.random.Generator,
    *,
    size: tuple[int, int] | None = None,
    duration_seconds: float | None = None,
) -> Scene:
    """Returns a scene drawn from ``rng``, of that (width, height) and length if they are given."""
    width, height = size or SIZES[rng.integers(len(SIZES))]
    fps = int(rng.choice(FRAME_RATES))
    if duration_seconds is None:
        duration_seconds = float(np.exp(rng.uniform(*np.log([SHORTEST_SECONDS, LONGEST_SECONDS]))))
    num_frames = max(8, round(duration_seconds * fps))
    background = Background.random(rng)
    count = 1 + int(rng.choice(len(_NUM_OBJECTS), p=_NUM_OBJECTS))
    colours = rng.choice(list(COLOURS), size=count, replace=False)
    acts = _acts(rng, count, num_frames / fps)
    things: list[Thing] = []
    for colour, (event, event_seconds) in zip(colours, acts, strict=True):
        thing = _placed(rng, str(colour), event, event_seconds, things, width, height)
        if thing is not None:
            things.append(thing)
    order = list(COLOURS)
    things.sort(key=lambda thing: order.index(thing.colour))
    return Scene(width, height, fps, num_frames, background, tuple(things))


def _acts(
    rng: np.random.Generator, count: int, duration_seconds: float
) -> list[tuple[str | None, float]]:
    """Returns an event and its time for each of ``count`` things, most of them none."""
    most = 2 if duration_seconds >= _SHORTEST_FOR_TWO_EVENTS_SECONDS else 1
    num_events = min(count, most, int(rng.choice(3, p=(0.3, 0.3, 0.4))))
    first, last = _EVENT_SPAN
    if num_events == 2:
        early = rng.uniform(first, last - _EVENT_GAP)
        times = [early, rng.uniform(early + _EVENT_GAP, last)]
    else:
        times = [rng.uniform(first, last) for _ in range(num_events)]
    acts: list[tuple[str | None, float]] = [
        (str(rng.choice(EVENTS, p=(0.65, 0.35))), float(time * duration_seconds)) for time in times
    ]
    acts += [(None, 0.0)] * (count - num_events)
    return [acts[index] for index in rng.permutation(count)]


def _placed(
    rng: np.random.Generator,
    colour: str,
    event: str | None,
    event_seconds: float,
    others: list[Thing],
    width: int,
    height: int,
) -> Thing | None:
    """Returns a thing that stays clear of the others, or None if there is no room for it."""
    shape = str(rng.choice(SHAPES))
    rgb = np.clip(np.asarray(COLOURS[colour]) + rng.integers(-9, 10, 3), 0, 255)
    moves = event is None and rng.random() < 0.62
    direction = str(rng.choice(list(DIRECTIONS))) if moves else None
    extent = np.array([width, height]) / min(width, height)
    for _ in range(_PLACEMENTS):
        radius = float(rng.uniform(0.14, 0.21))
        start, stop = _path(rng, direction, radius, extent)
        thing = Thing(
            colour,
            shape,
            (int(rgb[0]), int(rgb[1]), int(rgb[2])),
            radius,
            start,
            stop,
            direction,
            event,
            event_seconds,
        )
        if all(_is_clear(thing, other) for other in others):
            return thing
    return None


def _path(
    rng: np.random.Generator, direction: str | None, radius: float, extent: NDArray[np.float64]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns where a thing's centre starts and stops, so that it stays within the picture."""
    low, high = np.full(2, radius), extent - radius
    start = rng.uniform(low, high)
    stop = start.copy()
    if direction is not None:
        step = np.asarray(DIRECTIONS[direction])
        axis = int(np.flatnonzero(step)[0])
        room = high[axis] - low[axis]
        travel = rng.uniform(0.65, 1.0) * room
        near = rng.uniform(low[axis], high[axis] - travel)
        start[axis], stop[axis] = (near, near + travel)[:: int(step[axis])]
    return (float(start[0]), float(start[1])), (float(stop[0]), float(stop[1]))


def _is_clear(thing: Thing, other: Thing) -> bool:
    gaps = [np.subtract(thing.centre(p), other.centre(p)) for p in _CHECKED_TIMES]
    return bool(min(np.hypot(*gap) for gap in gaps) > 1.05 * (thing.radius + other.radius))
