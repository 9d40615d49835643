"""What is behind the objects: still, greyish, and never as bright or dark as an object."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

STYLES = ("flat", "gradient", "texture", "clouds", "camera")

_NOISE_SEED = 7
_NOISE_VALUES = 1 << 21


@dataclass(frozen=True, slots=True)
class Background:
    """How a background looks; ``picture`` draws it."""

    style: str
    """One of STYLES."""
    colour: tuple[float, float, float]
    """Its mean RGB."""
    contrast: float
    """Most that it departs from its mean, in levels."""
    noise: float
    """Standard deviation of what the camera adds to each frame anew, in levels."""
    seed: int

    @classmethod
    def random(cls, rng: np.random.Generator) -> "Background":
        """Returns a background of any style."""
        style = STYLES[rng.integers(len(STYLES))]
        grey = rng.uniform(85, 175)
        colour = np.clip(grey + rng.uniform(-14, 14, 3), 75, 185)
        return cls(
            style=style,
            colour=(float(colour[0]), float(colour[1]), float(colour[2])),
            contrast=0.0 if style == "flat" else float(rng.uniform(6, 26)),
            noise=float(rng.uniform(2, 9)) if style == "camera" else 0.0,
            seed=int(rng.integers(2**31)),
        )

    def picture(self, width: int, height: int) -> NDArray[np.uint8]:
        """Returns the still background, shape (height, width, 3)."""
        rng = np.random.default_rng(self.seed)
        relief = self._relief(rng, width, height)
        tint = 1 + rng.uniform(-0.3, 0.3, 3)
        shades = np.asarray(self.colour) + self.contrast * relief[..., None] * tint
        return np.clip(shades, 0, 255).astype(np.uint8)

    def with_noise(self, picture: NDArray[np.uint8], frame_index: int) -> NDArray[np.uint8]:
        """Returns the picture as a noisy camera takes it at that frame."""
        if not self.noise:
            return picture
        rng = np.random.default_rng((self.seed, frame_index))
        first = int(rng.integers(max(1, _NOISE_VALUES - picture.size)))
        grain = np.resize(_grain()[first : first + picture.size], picture.shape)
        noisy = picture + np.float32(self.noise) * grain
        return np.asarray(np.clip(noisy, 0, 255).astype(np.uint8))

    def _relief(self, rng: np.random.Generator, width: int, height: int) -> NDArray[np.float64]:
        """Returns values in [-1, 1], shape (height, width)."""
        y, x = np.indices((height, width)) / min(width, height)
        if self.style == "flat":
            return np.zeros((height, width))
        if self.style in ("gradient", "camera"):
            angle = rng.uniform(0, 2 * np.pi)
            slope = np.cos(angle) * (x - x.max() / 2) + np.sin(angle) * (y - y.max() / 2)
            return np.asarray(slope / max(1e-9, np.abs(slope).max()))
        if self.style == "texture":
            across, down = rng.uniform(20, 70, 2)
            return np.asarray(np.sin(x * across) * np.cos(y * down))
        waves = [
            np.sin(rng.uniform(1, 9) * x + rng.uniform(1, 9) * y + rng.uniform(0, 7))
            * np.cos(rng.uniform(1, 9) * x - rng.uniform(1, 9) * y)
            for _ in range(4)
        ]
        return np.asarray(sum(waves) / 4)


@lru_cache(maxsize=1)
def _grain() -> NDArray[np.float32]:
    # Drawn once, since drawing it anew would take longer than everything else.
    return np.random.default_rng(_NOISE_SEED).standard_normal(_NOISE_VALUES, np.float32)
