"""A chat request after its wire form has been checked: what to ask the engine, and which videos."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

FrameAlignment = Literal["exact", "keyframe"]
"""Which frame stands for a moment: the one on screen, or the keyframe nearest to it."""


@dataclass(frozen=True, slots=True)
class SamplingWish:
    """Which frames the client would like; of ``fps`` and ``num_frames`` at most one is set."""

    fps: float | None = None
    """Frames per second."""
    num_frames: int | None = None
    """Frames in all, evenly spaced."""
    min_frames: int | None = None
    """Fewest frames at a rate, where there are as many."""
    max_frames: int | None = None
    """Most frames."""
    start_seconds: float = 0.0
    """Where the stretch to sample begins, in the time of the video."""
    end_seconds: float | None = None
    """Where it ends, itself not in it; None is the end of the video."""
    alignment: FrameAlignment = "exact"
    """Which frame stands for each moment."""

    def __post_init__(self) -> None:
        if self.fps is not None and self.num_frames is not None:
            raise ValueError("fps and num_frames exclude each other")
        if (self.min_frames or 1) > (self.max_frames or math.inf):
            raise ValueError(f"min_frames {self.min_frames} is above max_frames {self.max_frames}")
        end_seconds = math.inf if self.end_seconds is None else self.end_seconds
        if not 0 <= self.start_seconds < end_seconds:
            raise ValueError(f"[{self.start_seconds}, {self.end_seconds}) seconds is no stretch")


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """How large the client would like frames to be as the model gets them; None is no limit.

    An upper limit goes before ``min_pixels``.
    """

    min_pixels: int | None = None
    """Fewest pixels of a frame, as far as the model and the server allow."""
    max_pixels: int | None = None
    """Most pixels of a frame."""
    total_pixels: int | None = None
    """Most pixels of all frames of the video together."""
    max_side: int | None = None
    """Most pixels along the longer side of a frame."""
    preferred_pixels: int | None = None
    """Most pixels of a frame where the model can; no reason to refuse a video."""

    def __post_init__(self) -> None:
        given = (self.max_pixels, self.total_pixels, self.max_side, self.preferred_pixels)
        if any(limit is not None and limit < 1 for limit in (self.min_pixels, *given)):
            raise ValueError("a limit is at least 1 pixel")

    def most_pixels(self, num_frames: int) -> float:
        """Returns the most pixels that one of ``num_frames`` frames may have; infinity if any."""
        share = math.inf if self.total_pixels is None else max(1, self.total_pixels // num_frames)
        limits = (self.max_pixels, self.preferred_pixels)
        return min(share, *(limit for limit in limits if limit is not None), math.inf)


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """How many tokens a video may have, and how far it may be pruned for it."""

    tokens: int
    """Most video tokens after pruning."""
    max_rate: float
    """Highest pruning rate that may be chosen; 0 where the model can not prune."""

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 0 <= self.max_rate < 1:
            raise ValueError(f"{self.tokens} tokens at a rate up to {self.max_rate} is no budget")


@dataclass(frozen=True, slots=True)
class UrlSource:
    """A file behind a URL."""

    url: str
    """data:, http(s) or file: URL as the client sent it."""

    @property
    def scheme(self) -> str:
        """What stands before the colon, in lower case, if it is short; nobody has checked it."""
        return self.url[:6].partition(":")[0].lower()

    @property
    def is_remote(self) -> bool:
        """Whether it is an http(s) URL."""
        return self.scheme in ("http", "https")

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
    """Fraction of the video's tokens to remove at the least, in [0, 1)."""
    pruning_method: str
    """How the tokens to remove are chosen; counts only at a rate above 0."""
    pixels: PixelLimits = PixelLimits()
    """Sizes of the frames."""
    token_budget: TokenBudget | None = None
    """What the video has to fit into, at no lower a rate than ``pruning_rate``."""
    hint_params: Mapping[str, str] = field(default_factory=dict)
    """JSON path of each hint that was given, by the hint's name, for error messages."""

    def param_of(self, name: str | None) -> str:
        """Returns the JSON path to blame: of the hint of that name, or ``name`` itself; the
        video's own where there is none."""
        return self.hint_params.get(name, name) if name else self.param


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
