"""How the served model sees frames: asked of its own processor, not re-implemented."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from server.conversation import PixelLimits
from server.engine.base import VideoGeometry, VideoTokens
from server.engine.bounds import FrameBounds, Size, distortion, grids_in_shape
from server.errors import ConfigurationError, InvalidVideo
from server.evs.arithmetic import retained_tokens

_MAX_RESIZES = 64
"""Far more than any processor takes until it leaves a frame as it is."""
_MAX_DISTORTION = 2.0
"""How far the shape of a frame may be changed to keep a limit, as a factor of its aspect ratio."""
_MAX_ASPECT_RATIO = 200
"""Above it, Qwen's processors refuse a frame."""


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
        source = width, height
        bounds = FrameBounds.of(limits, num_frames=num_frames, edge=self._token_edge)
        size = self._lowered_size(source, num_frames, bounds)
        if math.prod(size) >= bounds.fewest:
            return size
        # The processor has the last word: above its own limit it would make the frame smaller.
        raised = self._settled_size(*bounds.raised(source), num_frames)
        is_better = bounds.are_kept_by(raised) and math.prod(raised) > math.prod(size)
        return raised if is_better else size

    def _lowered_size(self, source: Size, num_frames: int, bounds: FrameBounds) -> Size:
        """Returns the size that keeps the upper limits, or the least one if none does."""
        natural = self._settled_size(*source, num_frames)
        if bounds.are_kept_by(natural):
            return natural
        lowered = bounds.lowered(source)
        if self._leaves(lowered, num_frames) and bounds.are_kept_by(lowered):
            return lowered
        allowed = max(_MAX_DISTORTION, distortion(natural, source))
        least = self._least_size(source, num_frames, allowed)
        if math.prod(least) > bounds.most:
            return least
        # The shape gives way: a limit that some size keeps is kept.
        return self._squeezed_size(source, num_frames, bounds, allowed) or self._narrowest_size(
            source, num_frames, bounds, allowed, least
        )

    def _squeezed_size(
        self, source: Size, num_frames: int, bounds: FrameBounds, allowed: float
    ) -> Size | None:
        """Returns the size nearest in shape that keeps the upper limits, None if there is none."""
        by_shape = sorted((distortion(size, source), size) for size in bounds.largest_sizes())
        kept = (size for factor, size in by_shape if factor <= allowed)
        return next((size for size in kept if self._leaves(size, num_frames)), None)

    def _narrowest_size(
        self, source: Size, num_frames: int, bounds: FrameBounds, allowed: float, least: Size
    ) -> Size:
        """Returns the size whose longer side is the shortest, within the most pixels."""
        first = int(bounds.max_side // self._token_edge) + 1
        for side in range(first, max(least) // self._token_edge):
            wider = replace(bounds, max_side=side * self._token_edge)
            size = self._squeezed_size(source, num_frames, wider, allowed)
            if size is not None:
                return size
        return least

    def _least_size(self, source: Size, num_frames: int, allowed: float) -> Size:
        """Returns the size of fewest pixels that the processor leaves as it is, in about the shape
        of ``source``."""
        edge = self._token_edge
        square = self._settled_size(edge, edge, num_frames)
        natural = self._settled_size(*source, num_frames)
        # A square of one row less is too small, and one row of tokens may be as long as a shape is.
        fewest = max(1, (min(square) // edge - 1) ** 2)
        most = 2 * math.prod(square) // edge**2 + _MAX_ASPECT_RATIO
        for columns, rows in grids_in_shape(source, allowed, fewest=fewest, most=most):
            size = columns * edge, rows * edge
            if self._leaves(size, num_frames):
                return size
        return natural

    def _leaves(self, size: Size, num_frames: int) -> bool:
        """Returns whether the processor leaves frames of that size as they are."""
        try:
            return self._resized(*size, num_frames) == size
        except ValueError:
            return False

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
