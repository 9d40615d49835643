"""How a decoded frame is to be turned and stretched before it is shown."""

import struct
from fractions import Fraction

from av.filter import Graph
from av.video.frame import VideoFrame

from server.media.pictures import Orientation

_DISPLAY_MATRIX = struct.Struct("=9i")
_TYPES_UNKNOWN_TO_PYAV = range(28, 32)
"""Kinds of AVFrameSideData, such as EXIF, at which PyAV 18 fails to list any."""
_PLAUSIBLE_SHAPES = (Fraction(1, 8), Fraction(8))


def orientation_of(frame: VideoFrame) -> Orientation:
    """Returns what the frame's display matrix asks for, which may stem from EXIF."""
    try:
        side_data = frame.side_data
    except ValueError:
        side_data = _without_unknown_side_data(frame).side_data
    # PyAV's stubs give it the type of a dictionary that holds motion vectors alone.
    matrix = bytes(side_data.get("DISPLAYMATRIX") or b"")  # type: ignore[call-overload]
    if len(matrix) < _DISPLAY_MATRIX.size:
        return Orientation()
    a, b, _, c, d, *_ = _DISPLAY_MATRIX.unpack_from(matrix)
    return Orientation.of(a, b, c, d)


def display_size(width: int, height: int, pixel_shape: Fraction | None) -> tuple[int, int]:
    """Returns the size at which pixels are square, none of them lost.

    Args:
        width: of the picture as coded.
        height: of the picture as coded.
        pixel_shape: width of a pixel divided by its height; one that can not be is ignored.
    """
    low, high = _PLAUSIBLE_SHAPES
    if pixel_shape is None or not low <= pixel_shape <= high:
        return width, height
    if pixel_shape > 1:
        return round(width * pixel_shape), height
    return width, round(height / pixel_shape)


def _without_unknown_side_data(frame: VideoFrame) -> VideoFrame:
    graph = Graph()
    graph.threads = 1
    filters = [graph.add("sidedata", f"mode=delete:type={t}") for t in _TYPES_UNKNOWN_TO_PYAV]
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1)
    )
    graph.link_nodes(source, *filters, graph.add("buffersink")).configure()
    graph.vpush(frame)
    return graph.vpull()
