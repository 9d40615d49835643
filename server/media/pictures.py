"""From decoded pictures to what the model's own processor would make of them."""

from collections.abc import KeysView

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from server.media.clip import FramePlan


class PictureWriter:
    """Puts pictures into the rows that a plan gives them, turned upright and resized."""

    def __init__(
        self, plan: FramePlan, out: NDArray[np.uint8], counter_clockwise_quarter_turns: int
    ) -> None:
        self._out = out
        self._quarter_turns = counter_clockwise_quarter_turns
        self._size = (plan.width, plan.height)
        self._rows: dict[int, list[int]] = {}
        for row, number in enumerate(plan.frame_indices):
            self._rows.setdefault(number, []).append(row)

    @property
    def missing(self) -> KeysView[int]:
        """Numbers of the frames that were not put yet, ascending; a live view."""
        return self._rows.keys()

    def put(self, number: int, picture: NDArray[np.uint8]) -> None:
        """Write an RGB picture of shape (H, W, 3) as frame ``number``, which must be missing."""
        upright = np.rot90(picture, self._quarter_turns)
        self._out[self._rows.pop(number)] = resized(upright, *self._size)


def resized(picture: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Returns the picture at the size given, bit for bit as Hugging Face's video processors do.

    They resize whole clips; one picture at a time gives the same values and needs less memory.
    They call torchvision, which for bytes calls what is called here; without its other imports a
    decoder process starts and ends several times faster. Pillow's filter gives other values.
    """
    if picture.shape[:2] == (height, width):
        return picture
    # Channels last in memory: several times faster, and the same values.
    tensor = torch.from_numpy(np.ascontiguousarray(picture)).permute(2, 0, 1)[None]
    scaled = functional.interpolate(
        tensor, size=(height, width), mode="bicubic", align_corners=False, antialias=True
    )
    return np.asarray(scaled[0].permute(1, 2, 0).numpy())


def quarter_turns(rotation_degrees: int) -> int:
    """Returns the counter-clockwise quarter turns, 0 to 3, nearest to FFmpeg's rotation.

    Anything beyond a full turn comes from a damaged display matrix and counts as none.
    """
    if abs(rotation_degrees) > 360:
        return 0
    return round(rotation_degrees / 90) % 4
