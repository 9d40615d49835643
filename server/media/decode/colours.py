"""From decoded frames to RGB, by what the frame says about its colours.

Matrix (BT.601, 709, 2020 ...) and range are honoured as tagged. Where there is no tag, it is BT.601
and limited range at any size: that is what FFmpeg, and with it OpenCV and TorchCodec, assume, so
models have been trained on it, though some players take BT.709 for large pictures.
"""

from typing import cast

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import ColorPrimaries, ColorTrc, VideoReformatter
from numpy.typing import NDArray

from server.media.colours import Primaries, Transfer, WideColours
from server.media.decode.fields import deinterlaced
from server.media.pictures import Picture, on_white

# AVColorSpace
_RGB, _BT709, _UNSPECIFIED, _FCC, _BT470BG, _SMPTE170M, _SMPTE240M, _BT2020, _BT2020_CL = (
    *(0, 1, 2),
    *(4, 5, 6, 7),
    *(9, 10),
)
_KNOWN_MATRICES = frozenset(
    {_RGB, _BT709, _UNSPECIFIED, _FCC, _BT470BG, _SMPTE170M, _SMPTE240M, _BT2020}
)
_TRANSFERS: dict[int, Transfer] = {
    ColorTrc.SMPTE2084: "pq",
    ColorTrc.ARIB_STD_B67: "hlg",
}
_PRIMARIES: dict[int, Primaries] = {
    ColorPrimaries.BT2020: "bt2020",
    ColorPrimaries.SMPTE432: "p3",
}


class PictureConverter:
    """Converts frames to pictures. Not for several threads at once."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()

    def picture(self, frame: VideoFrame) -> Picture:
        """Returns the frame as a player shows it, but not turned upright."""
        if frame.interlaced_frame:
            frame = deinterlaced(frame)
        colours = _wide_colours(frame)
        frame.colorspace = _matrix(frame, is_hdr=colours is not None and colours.transfer != "sdr")
        if colours is not None:
            return Picture(self._pixels(frame, "rgb48le"), colours)
        if _may_be_transparent(frame):
            return Picture(on_white(self._pixels(frame, "rgba")))
        return Picture(_rgb(self._reformatter.reformat(frame, format="rgb24", threads=1)))

    def _pixels(self, frame: VideoFrame, pixel_format: str) -> NDArray[np.uint8 | np.uint16]:
        converted = self._reformatter.reformat(frame, format=pixel_format, threads=1)
        return cast(NDArray[np.uint8 | np.uint16], converted.to_ndarray())


def _rgb(frame: VideoFrame) -> NDArray[np.uint8]:
    """Returns the pixels of a frame in RGB, shape (height, width, 3); not copied."""
    (plane,) = frame.planes
    rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)[: frame.height]
    return rows[:, : 3 * frame.width].reshape(frame.height, frame.width, 3)


def _wide_colours(frame: VideoFrame) -> WideColours | None:
    transfer: Transfer = _TRANSFERS.get(frame.color_trc, "sdr")
    primaries: Primaries = _PRIMARIES.get(frame.color_primaries, "bt709")
    if transfer != "sdr" and frame.color_primaries == ColorPrimaries.UNSPECIFIED:
        primaries = "bt2020"
    is_plain = transfer == "sdr" and primaries == "bt709"
    return None if is_plain else WideColours(transfer, primaries)


def _matrix(frame: VideoFrame, *, is_hdr: bool) -> int:
    """Returns the nearest matrix that FFmpeg can apply; it refuses frames with any other."""
    matrix = frame.colorspace
    if matrix == _BT2020_CL or (is_hdr and matrix == _UNSPECIFIED):
        return _BT2020
    return matrix if matrix in _KNOWN_MATRICES else _UNSPECIFIED


def _may_be_transparent(frame: VideoFrame) -> bool:
    is_palette = frame.format.name == "pal8"  # whose entries may be transparent
    return is_palette or any(component.is_alpha for component in frame.format.components)
