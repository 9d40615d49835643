"""M-RoPE positions that pruning does not move.

Let P be the positions of the unpruned prompt. Before any encoder has run, all of P is known but
which video tokens are retained. So text, images and videos of which nothing is removed get their
final positions when the prompt is laid out, and a token of a pruned video gets a **mark** in place
of a position: where its video starts, which video it belongs to, and its index in the placeholder.
The encoder's row for that token carries the same two names and the position relative to the start
of its video; when rows arrive, marks that match them become positions.

Rows find their marks by name and not by counting, so it does not matter where a chunk starts, what
was computed before, or in which order videos come. A position once written is final.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

BASE = 256
"""Integers below it are exact in bfloat16 and float16; larger ones travel as digits."""
_COORDINATE_DIGITS, _INDEX_DIGITS, _FINGERPRINT_DIGITS = 3, 3, 4
NUM_CHANNELS = 3 * _COORDINATE_DIGITS + _INDEX_DIGITS + _FINGERPRINT_DIGITS
"""Trailing channels of an embedding row, 16, which also keeps rows aligned in memory."""


class MediaSpan(Protocol):
    """One image or video in a prompt."""

    @property
    def offset(self) -> int:
        """Index of its first placeholder token."""

    @property
    def length(self) -> int:
        """Placeholder tokens in the prompt, after pruning."""

    @property
    def extent(self) -> int:
        """How far it pushes what follows: its largest unpruned coordinate plus one."""

    def laid_out(self, start: int) -> NDArray[np.int64]:
        """Returns positions or marks of shape (3, length), for a medium that starts there."""


@dataclass(frozen=True, slots=True)
class WholeSpan:
    """An image, or a video of which nothing is removed."""

    offset: int
    relative: NDArray[np.int64]
    """Its tokens' positions from its own start, shape (length, 3)."""

    @property
    def length(self) -> int:
        """Placeholder tokens in the prompt."""
        return len(self.relative)

    @property
    def extent(self) -> int:
        """How far it pushes what follows."""
        return int(self.relative.max()) + 1

    def laid_out(self, start: int) -> NDArray[np.int64]:
        """Returns final positions."""
        return self.relative.T + start


@dataclass(frozen=True, slots=True)
class PrunedSpan:
    """A video whose retained tokens the encoder chooses."""

    offset: int
    length: int
    extent: int
    fingerprint: int

    def laid_out(self, start: int) -> NDArray[np.int64]:
        """Returns marks: all negative, so that none can be taken for a position."""
        marks = np.empty((3, self.length), dtype=np.int64)
        marks[0] = start
        marks[1] = np.arange(self.length)
        marks[2] = self.fingerprint
        return -1 - marks


def lay_out(num_tokens: int, spans: Sequence[MediaSpan]) -> tuple[torch.Tensor, int]:
    """Returns positions and marks of shape (3, num_tokens), and the delta of generated tokens.

    The delta is final: token i of the answer has position num_tokens + i + delta.
    """
    positions: NDArray[np.int64] = np.empty((3, num_tokens), dtype=np.int64)
    index, position = 0, 0
    for span in spans:
        text = span.offset - index
        positions[:, index : span.offset] = np.arange(position, position + text)
        position += text
        index = span.offset + span.length
        positions[:, span.offset : index] = span.laid_out(position)
        position += span.extent
    text = num_tokens - index
    positions[:, index:] = np.arange(position, position + text)
    return torch.from_numpy(positions), position + text - num_tokens


def to_channels(relative: torch.Tensor, *, fingerprint: int) -> torch.Tensor:
    """Returns the channels of a pruned video's rows, shape (N, NUM_CHANNELS), all below BASE.

    Args:
        relative: positions from the video's start, shape (N, 3).
        fingerprint: the video's, at least 1; rows whose channels are 0 match no mark.
    """
    index = torch.arange(len(relative), device=relative.device)
    names = torch.full_like(index, fingerprint)
    digits = [
        *(_digits(relative[:, axis], _COORDINATE_DIGITS) for axis in range(3)),
        _digits(index, _INDEX_DIGITS),
        _digits(names, _FINGERPRINT_DIGITS),
    ]
    return torch.cat(digits, dim=1)


def write_retained(
    channels: Sequence[torch.Tensor], positions: torch.Tensor, *, num_computed_tokens: int
) -> None:
    """Replace, in place, the marks that rows with these channels belong to.

    Every shape below is known on the host, so that a GPU is not waited for.

    Args:
        channels: of the rows that the coming chunk uses, shapes (K_i, NUM_CHANNELS).
        positions: positions and marks of the whole prompt, shape (3, N), on the same device.
        num_computed_tokens: no token before it is looked at.
    """
    digits = torch.cat(list(channels)).long()
    if not len(digits):
        return
    coordinates, index, fingerprint = digits.split(
        [3 * _COORDINATE_DIGITS, _INDEX_DIGITS, _FINGERPRINT_DIGITS], dim=1
    )
    relative = _number(coordinates.view(-1, 3, _COORDINATE_DIGITS))
    names, order = _name(_number(fingerprint), _number(index)).sort()
    window = positions[:, num_computed_tokens:]
    marks = (-1 - window).long()
    wanted = _name(marks[2], marks[1])
    found = torch.searchsorted(names, wanted).clamp_(max=len(names) - 1)
    is_written = (window[0] < 0) & (names[found] == wanted)
    absolute = (relative[order[found]].T + marks[0]).to(positions.dtype)
    window.copy_(torch.where(is_written, absolute, window))


def _name(fingerprint: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return fingerprint * BASE**_INDEX_DIGITS + index


def _digits(values: torch.Tensor, count: int) -> torch.Tensor:
    powers = [BASE**place for place in reversed(range(count))]
    return torch.stack([values // power % BASE for power in powers], dim=-1)


def _number(digits: torch.Tensor) -> torch.Tensor:
    """Returns the numbers whose digits lie along the last axis."""
    number = digits[..., 0]
    for place in range(1, digits.shape[-1]):
        number = number * BASE + digits[..., place]
    return number
