"""A chat request after its wire form has been checked: what to ask the engine, and which videos."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SamplingWish:
    """How many frames the client would like; at most one of the two is set."""

    fps: float | None = None
    """Frames per second."""
    num_frames: int | None = None
    """Frames in all, evenly spaced."""

    def __post_init__(self) -> None:
        if self.fps is not None and self.num_frames is not None:
            raise ValueError("fps and num_frames exclude each other")


@dataclass(frozen=True, slots=True)
class VideoRequest:
    """One video of a chat request."""

    url: str
    """data: or http(s) URL as the client sent it."""
    param: str
    """JSON path of the URL, for error messages."""
    sampling: SamplingWish
    """Frames to sample."""
    pruning_rate: float
    """Fraction of the video's tokens to remove, in [0, 1)."""
    pruning_method: str
    """How the tokens to remove are chosen; counts only at a rate above 0."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request, allow-listed field by field."""

    body: Mapping[str, Any]
    """OpenAI request for the engine; the i-th video part's URL is ``clip:i``."""
    videos: tuple[VideoRequest, ...]
    """The videos, in order of appearance."""
    stream: bool
    """Whether the answer is streamed."""
    include_usage: bool
    """Whether a stream ends with a usage chunk."""
