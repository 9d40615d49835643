"""What is asked: prompts with videos and images, and a rate and method for each video."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.families import Family

QUESTION = " what is it"


@dataclass(frozen=True)
class Medium:
    """One video or image of a prompt."""

    kind: str
    """``video`` or ``image``."""
    data: Any
    """As vLLM takes it: frames and metadata, or a picture."""
    rate: float | None = None
    """None leaves it to the engine."""
    method: str | None = None


@dataclass(frozen=True)
class Case:
    """One prompt."""

    name: str
    media: tuple[Medium, ...]
    question: str = QUESTION
    between: str = " then "

    def at(self, *rates: float | None, method: str | None = None) -> "Case":
        """Returns this case with a rate for each of its videos; the last holds for the rest."""
        given = iter(rates)
        last, media = rates[-1], []
        for medium in self.media:
            if medium.kind == "video":
                last = next(given, last)
                medium = replace(medium, rate=last, method=method)
            media.append(medium)
        label = "/".join(str(rate) for rate in rates)
        return replace(
            self, name=f"{self.name} at {label} {method or ''}".strip(), media=tuple(media)
        )

    @property
    def videos(self) -> list[Medium]:
        """Its videos, in order."""
        return [medium for medium in self.media if medium.kind == "video"]

    def text(self, family: Family) -> str:
        """Returns the prompt in ChatML, as the families' chat templates write it."""
        places = {"video": family.video_prompt, "image": family.image_prompt}
        media = self.between.join(places[medium.kind] for medium in self.media)
        return f"<|im_start|>user\n{media}{self.question}<|im_end|>\n<|im_start|>assistant\n"

    def request(self, family: Family) -> dict[str, Any]:
        """Returns the prompt as ``LLM.generate`` takes it."""
        data: dict[str, list[Any]] = {}
        for medium in self.media:
            data.setdefault(medium.kind, []).append(medium.data)
        request: dict[str, Any] = {"prompt": self.text(family), "multi_modal_data": data}
        kwargs = {
            "video_pruning_rate": [video.rate for video in self.videos],
            "video_pruning_method": [video.method for video in self.videos],
        }
        given = {k: v for k, v in kwargs.items() if any(value is not None for value in v)}
        if given:
            request["mm_processor_kwargs"] = given
        return request


def video(
    num_frames: int, *, seed: int = 0, width: int = 160, height: int = 96, fps: float = 2.0
) -> Medium:
    """Returns noise: what changes how much is far beyond rounding, so that all keep the same."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 255, (num_frames, height, width, 3), dtype=np.uint8)
    metadata = {
        "fps": fps,
        "duration": num_frames / fps,
        "total_num_frames": num_frames,
        "frames_indices": list(range(num_frames)),
        "do_sample_frames": False,
    }
    return Medium("video", (frames, metadata))


def still(*, width: int, height: int) -> Medium:
    """Returns a video of one frame as the server gives it to the model: twice."""
    frames, metadata = video(1, width=width, height=height).data
    twice = {**metadata, "total_num_frames": 2, "frames_indices": [0, 0]}
    return Medium("video", (np.repeat(frames, 2, axis=0), twice))


def image(*, seed: int = 1, width: int = 128, height: int = 96) -> Medium:
    """Returns a picture of noise."""
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Medium("image", Image.fromarray(pixels))


TEXT = Case("text only", ())
ONE = Case("one video", (video(16),))
TWO = Case("two videos", (video(16), video(8, seed=3, fps=4.0)))
ADJACENT = replace(TWO, name="two videos with nothing between", between="")
VIDEO_IMAGE = Case("video, image", (video(16), image()))
IMAGE_VIDEO = Case("image, video", (image(), video(16)))
LONG = Case("30 grids", (video(60, seed=5, width=64, height=64, fps=1.5),))

LONGEST = Case("210 grids", (video(420, seed=11, width=64, height=64, fps=0.7),))

IDENTITY: Sequence[Case] = (
    TEXT,
    ONE,
    TWO,
    ADJACENT,
    VIDEO_IMAGE,
    IMAGE_VIDEO,
    LONG,
    Case("1 fps", (video(6, seed=6, fps=1.0),)),
    Case("4 fps", (video(12, seed=7, fps=4.0),)),
    Case("2 grids", (video(4, seed=8),)),
    Case("3 grids, odd frames", (video(5, seed=9),)),
    Case("17 grids", (video(34, seed=10, width=64, height=64),)),
    LONGEST,
)
"""At rate 0 each of them equals an engine without pruning."""

UNPRUNED: Sequence[Case] = [
    replace(case.at(0.0), name=f"all of {case.name}")
    for case in (ONE, TWO, ADJACENT, VIDEO_IMAGE, IMAGE_VIDEO)
]
"""What two implementations differ by in 16 bits when nothing is removed."""

RATES = (0.25, 0.5, 0.75, 0.9)
PRUNED: Sequence[Case] = (
    *(ONE.at(rate) for rate in (0.0, *RATES)),
    *(TWO.at(*rates) for rates in ((0.5, 0.75), (0.0, 0.9), (0.9, 0.0))),
    ADJACENT.at(0.5, 0.75),
    VIDEO_IMAGE.at(0.75),
    IMAGE_VIDEO.at(0.75),
    LONG.at(0.75),
)
"""Held against the reference, and against one another under every schedule."""

IN_16_BITS: Sequence[Case] = (
    *(ONE.at(rate) for rate in (0.0, 0.5, 0.9)),
    TWO.at(0.5, 0.75),
    ADJACENT.at(0.0, 0.75),
    VIDEO_IMAGE.at(0.75),
    IMAGE_VIDEO.at(0.75),
)
"""The same for a family that runs in 16 bits only, which a CPU is slow at."""
