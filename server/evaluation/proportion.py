"""How many of how many, and between which bounds the true share lies."""

from dataclasses import dataclass
from math import sqrt

_Z_OF_95_PERCENT = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Proportion:
    """``right`` of ``asked``."""

    right: int
    asked: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.asked:
            raise ValueError(f"{self.right} can not be right of {self.asked}")

    @property
    def share(self) -> float | None:
        """In [0, 1]; None if nothing was asked."""
        return self.right / self.asked if self.asked else None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the true share; all of [0, 1] if nothing was asked."""
        if not self.asked:
            return 0.0, 1.0
        n, p, z2 = self.asked, self.right / self.asked, _Z_OF_95_PERCENT**2
        centre = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = _Z_OF_95_PERCENT * sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
        # At 0 and n right a bound is exactly 0 and 1, which rounding would miss.
        low = 0.0 if self.right == 0 else centre - half
        return low, 1.0 if self.right == n else centre + half

    def __add__(self, other: "Proportion") -> "Proportion":
        """Returns both together."""
        return Proportion(self.right + other.right, self.asked + other.asked)
