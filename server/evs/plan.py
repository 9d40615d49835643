"""What the processor half decides about one video, and how it travels to the model half."""

import struct
from dataclasses import dataclass
from typing import Any, Self

import torch

from server.evs.arithmetic import METHODS, checked_method, checked_rate

MAX_FINGERPRINT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PruningChoice:
    """What was asked for one video."""

    rate: float
    """Fraction of its tokens to remove, in [0, 1)."""
    method: str
    """One of METHODS."""

    def __post_init__(self) -> None:
        checked_rate(self.rate)
        checked_method(self.method)


@dataclass(frozen=True, slots=True)
class PruningPlan:
    """What happens to one video; a field of the video's item, beside its grid."""

    choice: PruningChoice
    num_video_tokens: int
    """Its tokens before pruning."""
    num_retained: int
    """Its tokens after pruning."""
    fingerprint: int
    """Drawn from the video's hash, in [1, 2**31); tells the rows of one video from another's."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_retained <= self.num_video_tokens:
            raise ValueError(f"{self.num_retained} of {self.num_video_tokens} tokens is no pruning")
        if not 1 <= self.fingerprint <= MAX_FINGERPRINT:
            raise ValueError(f"fingerprint {self.fingerprint} is not in [1, 2**31)")

    @property
    def prunes(self) -> bool:
        """Whether any token is removed."""
        return self.num_retained < self.num_video_tokens

    def to_tensor(self) -> torch.Tensor:
        """Returns the plan as int64 of shape (5,), so that no float type can round it."""
        (rate_bits,) = struct.unpack("<q", struct.pack("<d", self.choice.rate))
        method = METHODS.index(self.choice.method)
        counts = (self.num_video_tokens, self.num_retained)
        return torch.tensor([rate_bits, method, *counts, self.fingerprint], dtype=torch.int64)

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> Self:
        """Returns the plan that ``to_tensor`` made into ``tensor``, which lies on the CPU."""
        rate_bits, method, num_video_tokens, num_retained, fingerprint = tensor.tolist()
        (rate,) = struct.unpack("<d", struct.pack("<q", rate_bits))
        choice = PruningChoice(rate=rate, method=METHODS[method])
        return cls(choice, num_video_tokens, num_retained, fingerprint)


def plans_from_field(field: Any, *, num_videos: int) -> list[PruningPlan]:
    """Returns the plans of a batch of videos from the field that the processor half made.

    Raises:
        ValueError: the field is missing, as when a client hands embeddings to the model.
    """
    if field is None or len(field) != num_videos:
        raise ValueError(f"{num_videos} videos reached the model without their pruning plans")
    return [PruningPlan.from_tensor(plan) for plan in field]
