"""The seam between the server and the engine: all that the pipeline may ask of it. No vLLM here."""

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from server.conversation import PixelLimits
from server.media.clip import VideoClip

JsonObject = dict[str, Any]

CLIP_URL_SCHEME = "clip:"
"""``clip:0`` in a request body given to the engine stands for the first prepared video."""


@dataclass(frozen=True, slots=True)
class PreparedVideo:
    """A decoded video, which share of its tokens to remove, and how."""

    clip: VideoClip
    pruning_rate: float
    """Fraction of the video's tokens asked to be removed, in [0, 1)."""
    pruning_method: str
    """One of ``ModelFacts.pruning_methods``, if there are any."""


@dataclass(frozen=True, slots=True)
class VideoTokens:
    """What pruning does to one video: token counts before and after."""

    before: int
    """Video tokens of the unpruned clip."""
    after: int
    """Video tokens that the prompt holds."""

    @property
    def effective_rate(self) -> float:
        """Fraction that is really removed; short clips can not lose more than 1 - 1/grids."""
        return 1 - self.after / self.before


class VideoGeometry(Protocol):
    """How the served model sees frames. Pure arithmetic; safe to call from the event loop."""

    @property
    def temporal_patch_size(self) -> int:
        """Frames that become one step in time."""

    @property
    def limits_each_frame(self) -> bool:
        """Whether the processor's own limits on pixels are those of a frame, not of a clip."""

    def frame_size(
        self, *, width: int, height: int, num_frames: int, limits: PixelLimits
    ) -> tuple[int, int]:
        """Returns (width, height) to which the model's own processor would resize a frame.

        The processor leaves frames of that size as they are. ``limits`` are kept as far as it
        does: a model has limits of its own, and some have frames of one size only.

        Raises:
            InvalidVideo: the processor refuses such frames, such as for their aspect ratio.
        """

    def video_tokens(
        self, *, width: int, height: int, num_frames: int, pruning_rate: float, pruning_method: str
    ) -> VideoTokens:
        """Returns the token counts of a clip whose frames have the model's size."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the rest of the server needs to know about the served model."""

    name: str
    """Name by which clients address it."""
    max_model_len: int
    """Tokens that prompt and answer may have together."""
    max_video_tokens: int
    """Tokens that one video may have after pruning; the engine's encoder cache holds no more."""
    pruning_methods: tuple[str, ...]
    """Methods by which its videos can be pruned; none if no rate above 0 can be honoured."""
    reserved_texts: frozenset[str]
    """Special tokens as text; user text that spells one would forge the prompt's structure."""
    geometry: VideoGeometry
    """Frame sizes and token counts."""
    max_video_seconds: float = math.inf
    """Time that a prompt's videos may span together; finite where the model counts time in
    positions, of which it has a table."""

    @property
    def supports_pruning(self) -> bool:
        """Whether a pruning rate above 0 can be honoured."""
        return bool(self.pruning_methods)


@dataclass(slots=True)
class EngineTrace:
    """Filled in by the engine while it works on one request. Times are CLOCK_MONOTONIC."""

    queued_at: float | None = None
    """The engine took the request into its queue."""
    scheduled_at: float | None = None
    """The scheduler began to compute the prompt."""
    first_token_at: float | None = None
    """The engine produced the first token."""
    video_tokens_after: tuple[int, ...] = field(default=())
    """Prompt tokens that each video takes, in order, as the rendered prompt has them."""


class ChatEngine(Protocol):
    """An engine that answers OpenAI chat requests about prepared videos."""

    @property
    def facts(self) -> ModelFacts:
        """The served model. Raises EngineUnavailable before ``start`` has returned."""

    @property
    def has_died(self) -> bool:
        """Whether the engine ended by itself, for good."""

    async def start(self) -> None:
        """Load the model. Returns when the engine can answer.

        Raises:
            ConfigurationError: the settings do not fit the model or the machine.
        """

    async def stop(self) -> None:
        """Stop for good; no process of the engine is left when this returns."""

    async def check_health(self) -> None:
        """Returns when the engine is able to answer.

        Raises:
            EngineUnavailable: it is loading, stopped, dead or stuck.
        """

    def models(self) -> JsonObject:
        """Returns the body of ``GET /v1/models``."""

    async def prompt_tokens(
        self, body: Mapping[str, Any], videos: Sequence[PreparedVideo], trace: EngineTrace
    ) -> int:
        """Returns how many tokens the prompt of a request has, without running it.

        Arguments and errors as for ``complete``; of ``trace``, only ``video_tokens_after`` is
        filled in. What the frames show does not matter, but their number, size and times do.
        """

    async def complete(
        self, body: Mapping[str, Any], videos: Sequence[PreparedVideo], trace: EngineTrace
    ) -> JsonObject:
        """Returns a whole ``chat.completion`` object. Cancelling it aborts the request.

        Args:
            body: an OpenAI chat request whose video URLs are ``clip:<index into videos>``.
            videos: the prepared videos, in order of appearance.
            trace: filled in on the way.

        Raises:
            RequestError: the engine refuses the request.
            EngineUnavailable: the engine died or is overloaded for good.
        """

    def stream(
        self, body: Mapping[str, Any], videos: Sequence[PreparedVideo], trace: EngineTrace
    ) -> AsyncGenerator[JsonObject, None]:
        """Yields ``chat.completion.chunk`` objects. Closing the iterator aborts the request.

        Arguments and errors as for ``complete``; errors are raised by the iterator.
        """
