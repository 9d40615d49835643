"""Clips whose frames say which one they are: a number in large black and white blocks."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
from numpy.typing import NDArray

BLOCK = 16
BITS = 16
BLOCKS_PER_ROW = 8

Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class ClipRecipe:
    """How to make a clip. ``encode`` returns its bytes; equal recipes show equal pictures."""

    num_frames: int = 60
    width: int = 160
    height: int = 96
    container: str = "mp4"
    codec: str = "libx264"
    fps: int = 30
    options: dict[str, str] = field(default_factory=dict)
    container_options: dict[str, str] = field(default_factory=dict)
    times_ms: Sequence[int] | None = None
    """Presentation time of each frame; None spaces them evenly from 0."""
    rotation: int = 0
    """Counter-clockwise turn that a player must make, in degrees."""

    def encode(self) -> bytes:
        """Returns the clip."""
        buffer = io.BytesIO()
        with av.open(
            buffer, "w", format=self.container, options=self.container_options
        ) as container:
            stream = container.add_stream(self.codec, rate=self.fps, options=self.options)
            stream.width, stream.height, stream.pix_fmt = self.width, self.height, "yuv420p"
            if self.times_ms is not None:
                stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
            if self.rotation:
                stream.set_display_rotation(self.rotation)
            for number in range(self.num_frames):
                picture = counter_picture(number, self.width, self.height)
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                if self.times_ms is not None:
                    frame.pts, frame.time_base = self.times_ms[number], Fraction(1, 1000)
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return buffer.getvalue()


def counter_picture(number: int, width: int, height: int) -> Picture:
    """Returns a picture that ``read_counter`` reads as ``number``, over a moving background."""
    rows, columns = np.indices((height, width))
    picture = np.stack(
        [(columns + 3 * number) % 200, (rows + number) % 200, (rows + columns) % 200], axis=-1
    ).astype(np.uint8)
    for bit in range(BITS):
        picture[_block(bit)] = 255 * (number >> bit & 1)
    return picture


def read_counter(picture: Picture) -> int:
    """Returns the number that a decoded picture of original size shows."""
    means = [picture[_block(bit)][4:-4, 4:-4].mean() for bit in range(BITS)]
    return sum(1 << bit for bit, mean in enumerate(means) if mean > 127)


def counters(pictures: Iterable[Picture]) -> list[int]:
    """Returns the number that each picture shows."""
    return [read_counter(picture) for picture in pictures]


def _block(bit: int) -> tuple[slice, slice]:
    top, left = (BLOCK * place for place in divmod(bit, BLOCKS_PER_ROW))
    return slice(top, top + BLOCK), slice(left, left + BLOCK)
