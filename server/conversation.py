"""A chat request after its wire form has been checked: what to ask the engine, and which videos."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


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
class UrlSource:
    """A file behind a URL."""

    url: str
    """data:, http(s) or file: URL as the client sent it."""

    def __repr__(self) -> str:
        return f"UrlSource({len(self.url)} characters)"


@dataclass(frozen=True, slots=True)
class Base64Source:
    """A file in the request itself, with no URL around it."""

    text: str
    """Its bytes in base64, as the client sent them."""

    def __repr__(self) -> str:
        return f"Base64Source({len(self.text)} characters)"


@dataclass(frozen=True, slots=True)
class FrameListSource:
    """A video as the list of its frames, each a picture of its own."""

    pictures: tuple[UrlSource | Base64Source, ...]
    """The frames, in the order in which they are shown."""
    fps: float
    """Frames per second, which dates them."""

    def __post_init__(self) -> None:
        if not self.pictures:
            raise ValueError("a list without frames")
        if not 0 < self.fps < math.inf:
            raise ValueError(f"{self.fps} frames per second; expected a positive number")

    def __repr__(self) -> str:
        return f"FrameListSource({len(self.pictures)} frames, {self.fps:g} fps)"


@dataclass(frozen=True, slots=True)
class UploadSource:
    """A file that was uploaded before."""

    file_id: str
    """The id that the client gives; nobody has looked whether there is such a file."""
    owner: str
    """Whose request it is; only files of the same owner are found."""

    def __repr__(self) -> str:
        return "UploadSource()"


MediaSource: TypeAlias = UrlSource | Base64Source | FrameListSource | UploadSource
"""Where the bytes of a video come from."""


@dataclass(frozen=True, slots=True)
class VideoRequest:
    """One video of a chat request."""

    source: MediaSource
    """Where the video is."""
    param: str
    """JSON path of the source, for error messages."""
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
