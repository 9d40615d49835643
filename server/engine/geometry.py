"""How the served model sees frames: asked of its own processor, not re-implemented."""

from functools import lru_cache
from typing import Any

import torch

from server.engine.base import VideoTokens
from server.errors import InvalidVideo
from server.evs.arithmetic import retained_tokens


class ProcessorGeometry:
    """Frame sizes and token counts of a Hugging Face video processor of the Qwen-VL kind."""

    def __init__(self, video_processor: Any) -> None:
        self._processor = video_processor
        self._frame_size = lru_cache(maxsize=1024)(self._resized)

    @property
    def temporal_patch_size(self) -> int:
        """Frames that become one step in time."""
        return int(self._processor.temporal_patch_size)

    @property
    def _token_edge(self) -> int:
        """Edge of the square of pixels that becomes one video token."""
        return int(self._processor.patch_size * self._processor.merge_size)

    def frame_size(self, *, width: int, height: int, num_frames: int) -> tuple[int, int]:
        """Returns (width, height) to which the processor resizes such frames.

        Raises:
            InvalidVideo: the aspect ratio is more extreme than the model can take.
        """
        try:
            return self._frame_size(width, height, num_frames)
        except ValueError as error:
            raise InvalidVideo(
                f"The picture is {width}x{height} pixels, an aspect ratio that the model can not "
                "take. Crop or pad the video to at most 200:1."
            ) from error

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

    def video_tokens(
        self, *, width: int, height: int, num_frames: int, pruning_rate: float
    ) -> VideoTokens:
        """Returns the token counts of a clip whose frames have the model's size."""
        tokens_per_grid = (width // self._token_edge) * (height // self._token_edge)
        num_grids = -(-num_frames // self.temporal_patch_size)
        return VideoTokens(
            before=tokens_per_grid * num_grids,
            after=retained_tokens(
                tokens_per_grid=tokens_per_grid, num_grids=num_grids, rate=pruning_rate
            ),
        )


def _size_dict(size: Any) -> Any:
    from transformers.image_utils import SizeDict

    return size if isinstance(size, SizeDict) else SizeDict(**dict(size))
