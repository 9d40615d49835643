"""How the served model sees frames: asked of its own processor, not re-implemented."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from server.conversation import PixelLimits
from server.engine.base import VideoGeometry, VideoTokens
from server.errors import ConfigurationError, InvalidVideo
from server.evs.arithmetic import retained_tokens

_MAX_RESIZES = 64
"""Far more than any processor takes until it leaves a frame as it is."""


def geometry_of(hf_processor: Any) -> VideoGeometry:
    """Returns the geometry of a model's processor, by what kind of processor it is.

    Raises:
        ConfigurationError: it is of no kind that is known here.
    """
    if hasattr(hf_processor, "video_processor"):
        return ProcessorGeometry(hf_processor.video_processor)
    if hasattr(hf_processor, "video_target_num_patches"):
        return NemotronGeometry(hf_processor)
    raise ConfigurationError(
        f"the model's processor, {type(hf_processor).__name__}, takes no videos that this server "
        "knows how to size; serve another model"
    )


class _Geometry(ABC):
    """What the kinds of processors have in common."""

    def __init__(self) -> None:
        self._frame_size = lru_cache(maxsize=1024)(self._limited_size)

    @property
    @abstractmethod
    def temporal_patch_size(self) -> int:
        """Frames that become one step in time."""

    @abstractmethod
    def _resized(self, width: int, height: int, num_frames: int) -> tuple[int, int]:
        """Returns (width, height) of frames that the processor has resized once.

        Raises:
            ValueError: it refuses such frames.
        """

    @abstractmethod
    def _tokens_per_grid(self, width: int, height: int) -> int:
        """Returns the tokens of one temporal grid of frames that have the model's size."""

    @property
    def limits_each_frame(self) -> bool:
        """Whether the processor's own limits on pixels are those of a frame, not of a clip."""
        return False

    def frame_size(
        self, *, width: int, height: int, num_frames: int, limits: PixelLimits
    ) -> tuple[int, int]:
        """Returns (width, height) to which the processor resizes such frames.

        Some processors resize their own result once more, such as of long and narrow frames, or of
        an odd number of them. Then it is the size at which that ends, so that the plan holds.

        Args:
            width: of a frame as it is decoded.
            height: of a frame as it is decoded.
            num_frames: frames of the clip.
            limits: kept as far as the processor leaves frames that keep them as they are.

        Raises:
            InvalidVideo: the processor refuses such frames, such as for their aspect ratio.
        """
        try:
            return self._frame_size(width, height, num_frames, limits)
        except ValueError as error:
            if num_frames < self.temporal_patch_size:
                raise InvalidVideo(
                    f"The model takes no video of fewer than {self.temporal_patch_size} frames. "
                    "Ask for more (fps, num_frames), or send a longer one."
                ) from error
            raise InvalidVideo(
                f"The picture is {width}x{height} pixels, an aspect ratio that the model can not "
                "take. Crop or pad the video to well below 200:1."
            ) from error

    def _limited_size(
        self, width: int, height: int, num_frames: int, limits: PixelLimits
    ) -> tuple[int, int]:
        """Returns the size that the processor settles on, for frames within the limits."""
        return self._settled_size(width, height, num_frames)

    def _settled_size(self, width: int, height: int, num_frames: int) -> tuple[int, int]:
        size = self._resized(width, height, num_frames)
        for _ in range(_MAX_RESIZES):
            again = self._resized(*size, num_frames)
            if again == size:
                break
            size = again
        return size

    def video_tokens(
        self, *, width: int, height: int, num_frames: int, pruning_rate: float, pruning_method: str
    ) -> VideoTokens:
        """Returns the token counts of a clip whose frames have the model's size."""
        tokens_per_grid = self._tokens_per_grid(width, height)
        num_grids = -(-num_frames // self.temporal_patch_size)
        return VideoTokens(
            before=tokens_per_grid * num_grids,
            after=retained_tokens(
                tokens_per_grid=tokens_per_grid,
                num_grids=num_grids,
                rate=pruning_rate,
                method=pruning_method,
            ),
        )


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The limits on one frame."""

    fewest: float
    most: float
    max_side: float

    @classmethod
    def of(cls, limits: PixelLimits, num_frames: int) -> "_Bounds":
        most = limits.most_pixels(num_frames)
        max_side = math.inf if limits.max_side is None else limits.max_side
        return cls(min(limits.min_pixels or 1, most), most, max_side)

    def applied(
        self, size: tuple[int, int], *, source: tuple[int, int], edge: int
    ) -> tuple[int, int]:
        """Returns ``size``, or one that breaks no limit, in the shape of ``source``.

        As Qwen's processors do it: in steps of ``edge`` pixels, down to keep an upper limit, and up
        to keep the lower one, but never beyond an upper one.
        """
        width, height = source
        if self._are_broken_by(size):
            # Divided in this order, as the processors round.
            divisor = max(math.sqrt(width * height / self.most), max(source) / self.max_side)
            return _at_least_one(width / divisor // edge, height / divisor // edge, edge)
        if math.prod(size) < self.fewest:
            factor = math.sqrt(self.fewest / (width * height))
            grown = _at_least_one(-(width * factor // -edge), -(height * factor // -edge), edge)
            return size if self._are_broken_by(grown) else grown
        return size

    def _are_broken_by(self, size: tuple[int, int]) -> bool:
        return math.prod(size) > self.most or max(size) > self.max_side


def _at_least_one(columns: float, rows: float, edge: int) -> tuple[int, int]:
    """Returns the size of a frame of so many tokens a row and a column, at least one of each."""
    return max(1, int(columns)) * edge, max(1, int(rows)) * edge


class ProcessorGeometry(_Geometry):
    """Frame sizes and token counts of a Hugging Face video processor of the Qwen-VL kind."""

    def __init__(self, video_processor: Any) -> None:
        super().__init__()
        self._processor = video_processor

    @property
    def temporal_patch_size(self) -> int:
        """Frames that become one step in time."""
        return int(self._processor.temporal_patch_size)

    @property
    def limits_each_frame(self) -> bool:
        """Whether the processor's own limits on pixels are those of a frame, not of a clip."""
        few, many = (self._settled_size(8192, 8192, frames) for frames in (4, 256))
        return few == many

    @property
    def _token_edge(self) -> int:
        """Edge of the square of pixels that becomes one video token."""
        return int(self._processor.patch_size * self._processor.merge_size)

    def _limited_size(
        self, width: int, height: int, num_frames: int, limits: PixelLimits
    ) -> tuple[int, int]:
        natural = self._settled_size(width, height, num_frames)
        bounds = _Bounds.of(limits, num_frames)
        wanted = bounds.applied(natural, source=(width, height), edge=self._token_edge)
        # The processor has the last word: its own limits hold too.
        return natural if wanted == natural else self._settled_size(*wanted, num_frames)

    def _resized(self, width: int, height: int, num_frames: int) -> tuple[int, int]:
        # A tensor without data, so that the processor's own rule answers at no cost.
        video = torch.empty((1, num_frames, 3, height, width), dtype=torch.uint8, device="meta")
        resized = self._processor.resize(
            video,
            size=_size_dict(self._processor.size),
            resample=self._processor.resample,
            factor=self._token_edge,
            temporal_factor=self._processor.temporal_patch_size,
            cap_pixels_per_frame=self._processor.cap_pixels_per_frame or False,
        )
        return int(resized.shape[-1]), int(resized.shape[-2])

    def _tokens_per_grid(self, width: int, height: int) -> int:
        return (width // self._token_edge) * (height // self._token_edge)


class NemotronGeometry(_Geometry):
    """Frame sizes and token counts of vLLM's processor for Nemotron Nano VL.

    Frames are squares of one size, unless the model sets a number of patches to fill: limits on
    pixels have nothing to choose from. It resizes
    in floating point where it is given another size, so values differ from ours by the rounding.
    """

    def __init__(self, processor: Any) -> None:
        super().__init__()
        self._processor = processor
        self._fit = _patch_fitter()

    @property
    def temporal_patch_size(self) -> int:
        """Frames that become one step in time."""
        return int(self._processor.video_temporal_patch_size)

    def _resized(self, width: int, height: int, num_frames: int) -> tuple[int, int]:
        if self._processor.video_target_num_patches is None:
            return int(self._processor.image_size), int(self._processor.image_size)
        fitted_width, fitted_height, _ = self._fitted(width, height)
        return fitted_width, fitted_height

    def _tokens_per_grid(self, width: int, height: int) -> int:
        if self._processor.video_target_num_patches is None:
            return int(self._processor.num_image_token)
        return self._fitted(width, height)[2]

    def _fitted(self, width: int, height: int) -> tuple[int, int, int]:
        """Returns width, height and tokens of a frame that fills the number of patches."""
        return self._fit(
            width,
            height,
            target_patches=self._processor.video_target_num_patches,
            maintain_aspect_ratio=self._processor.video_maintain_aspect_ratio,
            patch_size=self._processor.config.patch_size,
            downsample_ratio=self._processor.config.downsample_ratio,
        )


def _patch_fitter() -> Callable[..., tuple[int, int, int]]:
    from vllm.transformers_utils.processors.nano_nemotron_vl import (
        get_video_target_size_and_feature_size,
    )

    return get_video_target_size_and_feature_size


def _size_dict(size: Any) -> Any:
    from transformers.image_utils import SizeDict

    return size if isinstance(size, SizeDict) else SizeDict(**dict(size))
