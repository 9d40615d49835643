"""The bundled clip, and how it was made: ``python -m server.demo.clip`` writes it anew.

A red circle crosses a still, textured background from left to right; half way a blue square
appears and stays. Most of the picture does not change, which is what EVS lives on.
"""

from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

CLIP_PATH = Path(__file__).parent / "assets" / "shapes.mp4"
WIDTH, HEIGHT, FPS, DURATION_SECONDS = 320, 180, 24, 8
RED, BLUE = (220, 40, 40), (40, 70, 220)


def write_clip(path: Path) -> None:
    """Encode the clip as H.264 in MP4 at ``path``."""
    background = _background()
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"crf": "26", "preset": "slow"}
        for index in range(FPS * DURATION_SECONDS):
            picture = _picture(background, index / (FPS * DURATION_SECONDS))
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _background() -> NDArray[np.uint8]:
    rows, columns = np.indices((HEIGHT, WIDTH))
    texture = 24 * np.sin(columns / 9) * np.cos(rows / 7)
    shades = np.stack([150 + texture, 160 + texture, 140 + 0.3 * rows], axis=-1)
    return shades.astype(np.uint8)


def _picture(background: NDArray[np.uint8], progress: float) -> NDArray[np.uint8]:
    """Returns the picture at ``progress`` in [0, 1) of the clip."""
    rows, columns = np.indices((HEIGHT, WIDTH))
    picture = background.copy()
    if progress >= 0.5:
        picture[20:60, 240:280] = BLUE
    x, y = 20 + progress * (WIDTH - 40), HEIGHT * 0.62
    picture[(columns - x) ** 2 + (rows - y) ** 2 < 18**2] = RED
    return picture


if __name__ == "__main__":
    CLIP_PATH.parent.mkdir(exist_ok=True)
    write_clip(CLIP_PATH)
