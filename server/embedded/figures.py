"""The coloured shapes of the synthetic world: where a figure is solid, and how it is painted."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 38, 38),
    "green": (36, 168, 60),
    "blue": (36, 66, 214),
    "yellow": (236, 214, 40),
    "purple": (150, 44, 176),
    "white": (246, 246, 246),
    "black": (14, 14, 14),
}
"""RGB by name; in this order a description lists its objects."""

SHAPES = ("circle", "square", "triangle", "cross")


def _circle(x: Floats, y: Floats) -> Floats:
    return np.asarray(np.hypot(x, y) - 1.0, np.float32)


def _square(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.abs(x), np.abs(y)) - np.float32(0.9)


def _triangle(x: Floats, y: Floats) -> Floats:
    # Upright, apex at the top; y points down.
    slope = np.float32(0.894) * np.abs(x) - np.float32(0.447) * (y + np.float32(1.05))
    return np.maximum(slope, y - np.float32(0.9))


def _cross(x: Floats, y: Floats) -> Floats:
    across, along = np.abs(x), np.abs(y)
    arm, width = np.float32(1.05), np.float32(0.36)
    lying = np.maximum(across - arm, along - width)
    standing = np.maximum(across - width, along - arm)
    return np.minimum(lying, standing)


_DISTANCES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
}


def signed_distance(shape: str, x: Floats, y: Floats) -> Floats:
    """Returns how far points are outside a shape of radius 1 at the origin; inside is negative."""
    return _DISTANCES[shape](x, y)


def paint(
    picture: NDArray[np.uint8],
    shape: str,
    colour: tuple[int, int, int],
    *,
    centre: tuple[float, float],
    radius: float,
) -> None:
    """Draw a shape with smooth edges into ``picture``, shape (height, width, 3).

    Args:
        picture: changed in place; what lies outside of it is cut off.
        shape: one of SHAPES.
        colour: RGB.
        centre: (x, y) in pixels.
        radius: in pixels.
    """
    height, width, _ = picture.shape
    reach = radius * 1.15 + 1
    left, right = max(0, int(centre[0] - reach)), min(width, int(centre[0] + reach) + 2)
    top, bottom = max(0, int(centre[1] - reach)), min(height, int(centre[1] + reach) + 2)
    if left >= right or top >= bottom:
        return
    x = (np.arange(left, right, dtype=np.float32) + np.float32(0.5 - centre[0])) / radius
    y = (np.arange(top, bottom, dtype=np.float32) + np.float32(0.5 - centre[1])) / radius
    distance = signed_distance(shape, x[None, :], y[:, None]) * np.float32(radius)
    cover = np.clip(0.5 - distance, 0, 1)[..., None].astype(np.float32)
    part = picture[top:bottom, left:right]
    mixed = part + cover * (np.asarray(colour, np.float32) - part)
    picture[top:bottom, left:right] = (mixed + 0.5).astype(np.uint8)
