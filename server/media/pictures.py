"""From decoded pictures to what the model's own processor would make of them."""

import math
from collections.abc import KeysView
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from server.media.clip import FramePlan
from server.media.colours import WideColours


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded picture at its full size."""

    pixels: NDArray[np.uint8 | np.uint16]
    """RGB, shape (height, width, 3); 16 bit with ``colours``, else 8 bit."""
    colours: WideColours | None = None
    """What the values stand for, if it is not SDR BT.709."""


@dataclass(frozen=True, slots=True)
class Orientation:
    """How a picture is brought upright: first mirrored, then turned."""

    quarter_turns: int = 0
    """Counter-clockwise, 0 to 3."""
    is_mirrored: bool = False
    """Whether left and right are swapped."""

    def __post_init__(self) -> None:
        if not 0 <= self.quarter_turns < 4:
            raise ValueError(f"{self.quarter_turns} quarter turns; expected 0 to 3")

    @classmethod
    def of(cls, a: int, b: int, c: int, d: int) -> Self:
        """Returns the nearest orientation to a display matrix, which moves (x, y) to
        (a * x + c * y, b * x + d * y), with y downwards; one that is no picture's is ignored."""
        determinant = a * d - b * c
        if determinant == 0:
            return cls()
        is_mirrored = determinant < 0
        if is_mirrored:
            a, b = -a, -b
        return cls(round(-math.atan2(b, a) / (math.pi / 2)) % 4, is_mirrored)

    @property
    def is_sideways(self) -> bool:
        """Whether width and height are swapped."""
        return self.quarter_turns % 2 == 1

    def upright(self, picture: NDArray[np.uint8 | np.uint16]) -> NDArray[np.uint8 | np.uint16]:
        """Returns a view of the picture, of shape (height, width, 3), as it is to be seen."""
        return np.rot90(picture[:, ::-1] if self.is_mirrored else picture, self.quarter_turns)


class PictureWriter:
    """Puts pictures into the rows that a plan gives them, turned upright and resized."""

    def __init__(self, plan: FramePlan, out: NDArray[np.uint8], orientation: Orientation) -> None:
        self._out = out
        self._orientation = orientation
        self._size = (plan.width, plan.height)
        self.num_replaced = 0
        """Rows that got another frame than the plan says."""
        self._rows: dict[int, list[int]] = {}
        for row, number in enumerate(plan.frame_indices):
            self._rows.setdefault(number, []).append(row)

    @property
    def missing(self) -> KeysView[int]:
        """Numbers of the frames that were not put yet, ascending; a live view."""
        return self._rows.keys()

    def replace(self, number: int, picture: Picture) -> None:
        """Write the picture of another frame as frame ``number``, which must be missing."""
        self.num_replaced += len(self._rows[number])
        self.put(number, picture)

    def put(self, number: int, picture: Picture) -> None:
        """Write a picture as frame ``number``, which must be missing."""
        upright = self._orientation.upright(picture.pixels)
        if picture.colours is None:
            written = resized(upright.astype(np.uint8, copy=False), *self._size)
        else:
            # Toning down is dear, so it comes last, where there are fewest pixels.
            written = picture.colours.to_sdr(_resized_16_bit(upright, *self._size))
        self._out[self._rows.pop(number)] = written


def on_white(picture: NDArray[np.uint8 | np.uint16]) -> NDArray[np.uint8]:
    """Returns an RGBA picture of shape (height, width, 4) without its alpha, as on white paper.

    So do the image processors of Hugging Face and vLLM with transparent images, so models know it.
    White is also what most pages and viewers put behind them; on black, dark text would be lost.
    """
    alpha = picture[..., 3:].astype(np.uint16)
    if alpha.min(initial=255) == 255:
        return np.ascontiguousarray(picture[..., :3], np.uint8)
    mixed = picture[..., :3] * alpha + 255 * (255 - alpha)
    return ((mixed + 127) // 255).astype(np.uint8)


def resized(picture: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Returns the picture at the size given, bit for bit as Hugging Face's video processors do.

    They resize whole clips; one picture at a time gives the same values and needs less memory.
    They call torchvision, which for bytes calls what is called here; without its other imports a
    decoder process starts and ends several times faster. Pillow's filter gives other values.
    """
    if picture.shape[:2] == (height, width):
        return picture
    return _interpolated(picture, width, height)


def _resized_16_bit(
    picture: NDArray[np.uint8 | np.uint16], width: int, height: int
) -> NDArray[np.float32]:
    """Returns a 16 bit picture at the size given, as numbers from 0 to 1."""
    values = picture.astype(np.float32) / np.float32(65535)
    if values.shape[:2] == (height, width):
        return values
    return _interpolated(values, width, height)


def _interpolated(picture: NDArray[Any], width: int, height: int) -> NDArray[Any]:
    # Channels last in memory: several times faster, and the same values. Torch takes a batch of one
    # for that only if its strides say so where they do not matter.
    rows, columns, channels = picture.shape
    batch = torch.from_numpy(np.ascontiguousarray(picture)).as_strided(
        (1, channels, rows, columns), (picture.size, 1, columns * channels, channels)
    )
    scaled = functional.interpolate(
        batch,
        size=(height, width),
        mode="bicubic",
        align_corners=False,
        antialias=True,
    )
    return np.asarray(scaled[0].permute(1, 2, 0).numpy())
