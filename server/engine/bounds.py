"""Limits on the frames of a video, and the sizes in whole tokens that keep them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from server.conversation import PixelLimits

Size = tuple[int, int]
"""(width, height) in pixels."""


@dataclass(frozen=True, slots=True)
class FrameBounds:
    """The limits on one frame, for a model whose tokens are squares of pixels."""

    fewest: float
    """Fewest pixels, as far as the upper limits allow."""
    most: float
    """Most pixels."""
    max_side: float
    """Most pixels along the longer side."""
    edge: int
    """Edge of the square of pixels that becomes one token."""

    @classmethod
    def of(cls, limits: PixelLimits, *, num_frames: int, edge: int) -> "FrameBounds":
        """Returns what ``limits`` come to for each of ``num_frames`` frames."""
        most = limits.most_pixels(num_frames)
        max_side = math.inf if limits.max_side is None else limits.max_side
        return cls(min(limits.min_pixels or 1, most), most, max_side, edge)

    def are_kept_by(self, size: Size) -> bool:
        """Returns whether a size is above no upper limit."""
        return math.prod(size) <= self.most and max(size) <= self.max_side

    def lowered(self, source: Size) -> Size:
        """Returns a size in the shape of ``source`` that keeps the upper limits.

        As Qwen's processors do it, rounded down to whole tokens. A side has one token at the
        least, so that a long and narrow frame may stay above a limit.
        """
        width, height = source
        # Divided in this order, as the processors round.
        divisor = max(math.sqrt(width * height / self.most), max(source) / self.max_side)
        columns, rows = int(width / divisor // self.edge), int(height / divisor // self.edge)
        return max(1, columns) * self.edge, max(1, rows) * self.edge

    def raised(self, source: Size) -> Size:
        """Returns a size in the shape of ``source`` that has the fewest pixels or more."""
        width, height = source
        factor = math.sqrt(self.fewest / (width * height))
        return (
            max(1, int(-(width * factor // -self.edge))) * self.edge,
            max(1, int(-(height * factor // -self.edge))) * self.edge,
        )

    def largest_sizes(self) -> Iterator[Size]:
        """Yields the largest size that keeps the upper limits for each width in whole tokens.

        Nothing, where one token is too large. One of the limits has to be finite.
        """
        side = int(min(self.max_side, self.most / self.edge) // self.edge)
        tokens = int(min(self.most, (side * self.edge) ** 2) // self.edge**2)
        for columns in range(1, side + 1):
            yield columns * self.edge, min(tokens // columns, side) * self.edge


def distortion(size: Size, source: Size) -> float:
    """Returns by which factor the shape of ``size`` is off that of ``source``, at least 1."""
    factor = size[0] * source[1] / (size[1] * source[0])
    return max(factor, 1 / factor)


def grids_in_shape(
    source: Size, allowed: float, *, fewest: int, most: int
) -> Iterator[tuple[int, int]]:
    """Yields each (columns, rows) with ``fewest`` to ``most`` tokens, those with fewer first.

    Only those whose shape is off that of ``source`` by a factor of ``allowed`` at most.
    """
    shape = source[0] / source[1]
    for tokens in range(fewest, most + 1):
        narrowest, widest = math.sqrt(tokens * shape / allowed), math.sqrt(tokens * shape * allowed)
        for columns in range(max(1, int(narrowest)), min(tokens, math.ceil(widest)) + 1):
            grid = columns, tokens // columns
            if tokens % columns == 0 and distortion(grid, source) <= allowed:
                yield grid
