"""A video's placeholder before pruning: its tokens, in the prompt's order, and their positions."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The text between a video's grids, with one place for each grid."""

    token_ids: NDArray[np.int64]
    """Text tokens, and one video token for each grid. Shape (S,)."""
    is_grid: NDArray[np.bool_]
    """Which places stand for a grid. Shape (S,)."""

    @classmethod
    def of(cls, token_ids: NDArray[np.int64], *, video_token_id: int) -> Self:
        """Returns the skeleton of a placeholder with one video token for each grid."""
        return cls(token_ids=token_ids, is_grid=token_ids == video_token_id)

    @classmethod
    def without_text(cls, num_grids: int, *, video_token_id: int) -> Self:
        """Returns the skeleton of grids that follow one another without text."""
        return cls.of(np.full(num_grids, video_token_id), video_token_id=video_token_id)

    @property
    def num_grids(self) -> int:
        """Temporal grids of the video."""
        return int(self.is_grid.sum())

    @property
    def text_ids(self) -> NDArray[np.int64]:
        """The text tokens alone."""
        return self.token_ids[~self.is_grid]

    def placeholder(self, *, tokens_per_grid: int, num_retained: int) -> list[int]:
        """Returns the placeholder's token ids.

        What a pruned video keeps of each grid is not known yet, so the first grid's place holds
        all of it; the rows that replace the placeholder bring the right order.
        """
        if num_retained == self.num_grids * tokens_per_grid:
            counts = np.full(self.num_grids, tokens_per_grid)
        else:
            counts = np.zeros(self.num_grids, np.int64)
            counts[0] = num_retained
        repeats = np.ones(len(self.token_ids), np.int64)
        repeats[self.is_grid] = counts
        ids: list[int] = np.repeat(self.token_ids, repeats).tolist()
        return ids


@dataclass(frozen=True, slots=True)
class Walk:
    """A video's placeholder before pruning, token by token."""

    is_video: NDArray[np.bool_]
    """Which of its tokens are video tokens; the others are text. Shape (N,)."""
    relative: NDArray[np.int64]
    """Positions from the start of the video, shape (N, 3)."""

    @property
    def extent(self) -> int:
        """How far the video pushes what follows."""
        return int(self.relative.max()) + 1


def image_grid(height: int, width: int) -> NDArray[np.int64]:
    """Returns the positions of one grid of tokens from its own start, shape (height * width, 3)."""
    return np.indices((1, height, width)).reshape(3, -1).T


def contiguous_walk(num_grids: int, height: int, width: int, *, t_factor: float) -> Walk:
    """Returns the walk of Qwen2.5-VL: one block of grids, each ``t_factor`` further in time.

    Truncated in double precision, as vLLM's ``get_mrope_input_positions`` does.
    """
    indices = np.indices((num_grids, height, width))
    indices[0] = (indices[0] * t_factor).astype(np.int64)
    relative = indices.reshape(3, -1).T
    return Walk(is_video=np.ones(len(relative), np.bool_), relative=relative)


def interleaved_walk(skeleton: Skeleton, height: int, width: int) -> Walk:
    """Returns the walk of Qwen3-VL: every grid starts anew behind the text before it.

    A text token pushes what follows by one, a grid by its longer edge.
    """
    steps = np.where(skeleton.is_grid, max(height, width), 1)
    starts = np.cumsum(steps) - steps
    repeats = np.where(skeleton.is_grid, height * width, 1)
    relative = np.repeat(starts, repeats)[:, None].repeat(3, axis=1)
    is_video = np.repeat(skeleton.is_grid, repeats)
    relative[is_video] += np.tile(image_grid(height, width), (skeleton.num_grids, 1))
    return Walk(is_video=is_video, relative=relative)
