"""A scene as the model sees it: sampled as by the server, resized and cut as by the processor."""

import io
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.conversation import SamplingWish
from server.embedded.architecture import (
    FRAMES_PER_GRID,
    MAX_FRAMES,
    MAX_TOKENS_PER_GRID,
    MERGED_PATCHES,
    PATCH_PIXELS,
)
from server.embedded.figures import COLOURS, SHAPES, signed_distance
from server.embedded.questions import Question, at_second
from server.embedded.scenes import DIRECTIONS, EVENTS, Scene, Thing
from server.media.clip import VideoFacts
from server.media.pictures import resized
from server.media.sampling import plan_frames
from server.settings import VideoSettings

Labels = NDArray[np.int64]

TOKEN_PIXELS = PATCH_PIXELS * MERGED_PATCHES
NO_LABEL = -100
"""What cross-entropy ignores."""
LABELS = {
    "colour": ("nothing", *COLOURS),
    "shape": ("nothing", *SHAPES),
    "direction": ("nothing", "still", *DIRECTIONS),
}
"""What the training's heads tell of the object under a token, by head."""
CHANGE_LABELS = {
    "change": ("nothing", "stays", "moves", *EVENTS),
    "colour": LABELS["colour"],
    "shape": LABELS["shape"],
    "second": ("nothing", *map(str, range(32))),
}
"""The same for what the language model knows of a token, which has seen what is before it."""

_POINTS = 6
"""A token's area is looked at in so many points a side."""
_CLEAR, _FAINT = 0.3, 0.06
"""Part of a token that an object covers to be its label, and below which there is nothing."""


@dataclass(frozen=True, slots=True)
class View:
    """Which frames of a scene are seen, and when."""

    scene: Scene
    frame_indices: tuple[int, ...]

    @property
    def timestamps(self) -> list[float]:
        """The second that the processor writes before each grid: the middle of its frames'."""
        times = [index / self.scene.fps for index in self.frame_indices]
        steps = range(0, len(times), FRAMES_PER_GRID)
        return [(times[i] + times[i + FRAMES_PER_GRID - 1]) / 2 for i in steps]

    @property
    def num_grids(self) -> int:
        """Steps in time."""
        return len(self.frame_indices) // FRAMES_PER_GRID

    def seen_seconds(self, thing: Thing) -> float | None:
        """Returns the timestamp of the first grid that shows a thing's event, or None."""
        grid = self.seen_grid(thing)
        return None if grid is None else self.timestamps[grid]

    def seen_grid(self, thing: Thing) -> int | None:
        """Returns the first grid that shows a thing's event, after one that does not."""
        happened = thing.event == "appears"
        seen = [thing.is_visible(i / self.scene.fps) == happened for i in self.frame_indices]
        return seen.index(True) // FRAMES_PER_GRID if True in seen and not seen[0] else None

    def answer(self, question: Question) -> str | None:
        """Returns what can be told from these frames; None if they do not tell."""
        events = [self.seen_grid(thing) for thing in self.scene.events]
        if question.event is not None:
            seconds = self.seen_seconds(question.event)
            return None if seconds is None else at_second(float(f"{seconds:.1f}"))
        if question.kind == "order":
            return None if None in events or len(set(events)) < len(events) else question.answer
        if question.kind in ("count", "describe"):
            return None if None in events else question.answer
        return question.answer


def sampled(scene: Scene, wish: SamplingWish | None = None) -> View:
    """Returns the frames that the server takes, by default at its default rate."""
    settings = VideoSettings(max_frames=MAX_FRAMES)
    facts = VideoFacts(
        container="mov,mp4,m4a,3gp,3g2,mj2",
        codec="h264",
        width=scene.width,
        height=scene.height,
        rotation_degrees=0,
        frame_times_seconds=tuple(index / scene.fps for index in range(scene.num_frames)),
        duration_seconds=scene.duration_seconds,
    )
    plan = plan_frames(facts, wish or SamplingWish(), settings, temporal_patch_size=FRAMES_PER_GRID)
    return View(scene, plan.frame_indices)


@lru_cache(maxsize=256)
def frame_size(width: int, height: int) -> tuple[int, int]:
    """Returns the (width, height) at which the model sees a picture; the processor's rule."""
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

    resized_height, resized_width = smart_resize(
        FRAMES_PER_GRID,
        height,
        width,
        temporal_factor=FRAMES_PER_GRID,
        factor=TOKEN_PIXELS,
        min_pixels=1,
        max_pixels=FRAMES_PER_GRID * MAX_TOKENS_PER_GRID * TOKEN_PIXELS**2,
    )
    return resized_width, resized_height


def pictures(view: View, *, jpeg_quality: int | None = None) -> NDArray[np.uint8]:
    """Returns the view's frames at the model's size, shape (frames, height, width, 3).

    Args:
        view: what is drawn.
        jpeg_quality: what each frame suffers before it is resized, as a codec would do.
    """
    size = frame_size(view.scene.width, view.scene.height)
    frames = view.scene.frames(view.frame_indices)
    if jpeg_quality is not None:
        frames = np.stack([_compressed(frame, jpeg_quality) for frame in frames])
    return np.stack([resized(frame, *size) for frame in frames])


def _compressed(frame: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer), np.uint8)


def patches(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns frames in the processor's order of patches, shape (t * h * w, channels * pixels).

    Raises:
        ValueError: the frames do not fill whole patches and grids.
    """
    num_frames, height, width, channels = frames.shape
    cut = frames.reshape(
        num_frames // FRAMES_PER_GRID,
        FRAMES_PER_GRID,
        height // TOKEN_PIXELS,
        MERGED_PATCHES,
        PATCH_PIXELS,
        width // TOKEN_PIXELS,
        MERGED_PATCHES,
        PATCH_PIXELS,
        channels,
    )
    ordered = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return np.ascontiguousarray(ordered.reshape(-1, channels * FRAMES_PER_GRID * PATCH_PIXELS**2))


def normalised(patches_uint8: Any) -> Any:
    """Returns a tensor of bytes as the processor scales them, in [-1, 1]."""
    return (patches_uint8.float() - 127.5) / 127.5


def token_labels(view: View) -> tuple[dict[str, Labels], dict[str, Labels]]:
    """Returns what is under each token, as indices in LABELS and in CHANGE_LABELS, by head.

    Each has the shape (tokens,), and NO_LABEL where an object only touches a token, or two share
    it. What disappears is under its tokens for one grid more, as a change.
    """
    cover = _grid_covers(view)
    owner, most, total = cover.argmax(axis=1), cover.max(axis=1), cover.sum(axis=1)
    is_object = (most >= _CLEAR) & (most >= 0.75 * total)

    def labels(head: str, names: tuple[str, ...]) -> Labels:
        values = np.array([names.index(_looks(thing, head)) for thing in view.scene.things])
        told = np.where(is_object, values[owner], NO_LABEL)
        return np.where(total < _FAINT, 0, told)

    seen = {head: labels(head, names).reshape(-1) for head, names in LABELS.items()}
    changes = {head: labels(head, CHANGE_LABELS[head]) for head in ("change", "colour", "shape")}
    for number, thing in enumerate(view.scene.things):
        grid = view.seen_grid(thing) if thing.event else None
        if grid is not None:
            place = cover[:, number].max(axis=0) >= _CLEAR
            changes["change"][grid][place] = CHANGE_LABELS["change"].index(str(thing.event))
            for head in ("colour", "shape"):
                changes[head][grid][place] = LABELS[head].index(_looks(thing, head))
    seconds = [1 + int(float(f"{seconds:.1f}")) for seconds in view.timestamps]
    known = [second if second < len(CHANGE_LABELS["second"]) else NO_LABEL for second in seconds]
    changes["second"] = np.repeat(known, cover[0, 0].size)
    return seen, {head: values.reshape(-1) for head, values in changes.items()}


def _looks(thing: Thing, head: str) -> str:
    if head == "direction":
        return thing.direction or "still"
    if head == "change":
        return "moves" if thing.direction else "stays"
    return str(getattr(thing, head))


def _grid_covers(view: View) -> NDArray[np.float64]:
    """Returns which part of each token each thing covers, shape (grids, things, rows, columns)."""
    size = frame_size(view.scene.width, view.scene.height)
    columns, rows = size[0] // TOKEN_PIXELS, size[1] // TOKEN_PIXELS
    covers = np.stack([_covers(view, index, rows, columns) for index in view.frame_indices])
    steps = range(0, len(covers), FRAMES_PER_GRID)
    return np.stack([covers[step : step + FRAMES_PER_GRID].mean(axis=0) for step in steps])


def _covers(view: View, frame_index: int, rows: int, columns: int) -> NDArray[np.float64]:
    """Returns which part of each token each thing covers, shape (things, rows, columns)."""
    scene = view.scene
    scale = min(scene.width, scene.height)
    x = (np.arange(columns * _POINTS) + 0.5) / (columns * _POINTS) * scene.width / scale
    y = (np.arange(rows * _POINTS) + 0.5) / (rows * _POINTS) * scene.height / scale
    parts = []
    for thing in scene.things:
        if not thing.is_visible(frame_index / scene.fps):
            parts.append(np.zeros((rows, columns)))
            continue
        centre_x, centre_y = thing.centre(frame_index / max(1, scene.num_frames - 1))
        distance = signed_distance(
            thing.shape,
            ((x - centre_x) / thing.radius)[None, :].astype(np.float32),
            ((y - centre_y) / thing.radius)[:, None].astype(np.float32),
        )
        parts.append((distance < 0).reshape(rows, _POINTS, columns, _POINTS).mean(axis=(1, 3)))
    return np.stack(parts)
