"""The few bits of coded pictures that containers do not tell."""

import re
from dataclasses import dataclass
from typing import Self

_START_CODE = re.compile(b"\0\0\1")

# ITU-T H.264, table 7-1. What is not named here may be needed by later pictures.
_H264_SLICES = range(1, 5)
_H264_IDLE = frozenset({6, 9, 12})
"""SEI, access unit delimiter, filler."""
# ITU-T H.265, table 7-1.
_HEVC_SLICES = range(0, 32)
_HEVC_SUB_LAYER_NON_REFERENCE = range(0, 16, 2)
_HEVC_IDLE = frozenset({35, 38, 39, 40})
"""Access unit delimiter, filler, SEI before and after."""

_JPEG_SCAN, _JPEG_END = b"\xff\xda", b"\xff\xd9"
_GIF_EXTENSION, _GIF_IMAGE = 0x21, 0x2C


@dataclass(frozen=True, slots=True)
class NalFormat:
    """How the packets of an H.264 or HEVC stream are put together from NAL units."""

    is_hevc: bool
    length_bytes: int
    """Size of the number before each unit; 0 where start codes separate them (Annex B)."""

    @classmethod
    def of(cls, codec: str, extradata: bytes) -> Self | None:
        """Returns the format that the stream's header tells; None for any other codec.

        Args:
            codec: decoder name.
            extradata: what the container keeps for the decoder; may be empty.
        """
        if codec not in ("h264", "hevc"):
            return None
        is_hevc = codec == "hevc"
        length_position = 21 if is_hevc else 4  # ISO/IEC 14496-15: lengthSizeMinusOne
        if extradata[:1] != b"\1" or len(extradata) <= length_position:
            return cls(is_hevc, 0)
        return cls(is_hevc, (extradata[length_position] & 3) + 1)

    def is_unreferenced(self, packet: memoryview, *, highest_layer: int = 0) -> bool:
        """Returns whether a packet surely holds nothing that another one needs.

        Args:
            packet: coded data.
            highest_layer: the greatest ``temporal_layer`` of the stream. Only there is a sub-layer
                non-reference picture of HEVC one for good.
        """
        headers = self._units(packet)
        if self.is_hevc:
            return _is_unreferenced_hevc(headers, highest_layer)
        return _is_unreferenced_h264(headers)

    def temporal_layer(self, packet: memoryview) -> int:
        """Returns the number of the highest temporal layer that a packet holds a picture of."""
        if not self.is_hevc:
            return 0
        slices = [low & 7 for high, low in self._units(packet) if high >> 1 & 0x3F in _HEVC_SLICES]
        return max(slices, default=0)

    def unit_starts(self, packet: memoryview) -> list[int]:
        """Returns where the header of each unit is; nothing if lengths do not add up."""
        if self.length_bytes:
            return _starts_by_length(packet, self.length_bytes)
        return [match.end() for match in _START_CODE.finditer(packet)]

    def _units(self, packet: memoryview) -> list[tuple[int, int]]:
        """Returns the first two bytes of each unit; nothing if the packet is not sound."""
        starts = self.unit_starts(packet)
        if any(start + 2 > len(packet) for start in starts):
            return []
        return [(packet[start], packet[start + 1]) for start in starts]


def _starts_by_length(packet: memoryview, length_bytes: int) -> list[int]:
    starts = []
    end = 0
    while end < len(packet):
        start = end + length_bytes
        starts.append(start)
        end = start + int.from_bytes(packet[end:start], "big")
    return starts if end == len(packet) else []


def _is_unreferenced_h264(headers: list[tuple[int, int]]) -> bool:
    kinds = [high & 0x1F for high, _ in headers]
    slices = [high for (high, _), kind in zip(headers, kinds, strict=True) if kind in _H264_SLICES]
    nal_ref_idc = 0x60
    return (
        bool(slices)
        and not any(high & nal_ref_idc for high in slices)
        and len(slices) + sum(kind in _H264_IDLE for kind in kinds) == len(headers)
    )


def _is_unreferenced_hevc(headers: list[tuple[int, int]], highest_layer: int) -> bool:
    kinds = [high >> 1 & 0x3F for high, _ in headers]
    slices = [header for header, kind in zip(headers, kinds, strict=True) if kind in _HEVC_SLICES]
    return (
        bool(slices)
        and all(_is_base_view(*header) and header[1] & 7 == highest_layer for header in slices)
        and all(kind in _HEVC_SUB_LAYER_NON_REFERENCE or kind in _HEVC_IDLE for kind in kinds)
    )


def _is_base_view(high: int, low: int) -> bool:
    return not high & 1 and not low >> 3  # nuh_layer_id


def is_hidden_picture(codec: str, packet: memoryview) -> bool:
    """Returns whether a packet holds only pictures that are never shown by themselves.

    VP8 and VP9 encoders send such reference pictures in packets with a time of their own. FFmpeg
    gives what follows the last picture of a GIF, such as comments, a packet too.

    Args:
        codec: decoder name.
        packet: coded data, not empty.
    """
    if codec == "vp8":
        return not packet[0] & 0x10  # RFC 6386, section 9.1: show_frame
    if codec == "gif":
        return not _has_gif_image(packet)
    if codec == "vp9":
        return not _is_vp9_superframe(packet) and _is_hidden_vp9_frame(packet[0])
    return False


def is_animated_webp(packet: memoryview) -> bool:
    """Returns whether a WebP file moves, which FFmpeg 8.1 can not decode."""
    # The extended header, whose second flag bit is that of the animation.
    return bytes(packet[8:16]) == b"WEBPVP8X" and len(packet) > 20 and bool(packet[20] & 0x02)


def is_cut_jpeg(data: bytes | memoryview) -> bool:
    """Returns whether the end of a JPEG file is missing."""
    # Neither marker can be among the coded pixels (ITU-T T.81, F.1.2.3).
    data = bytes(data)
    return data.rfind(_JPEG_END) < data.rfind(_JPEG_SCAN)


def _has_gif_image(packet: memoryview) -> bool:
    """Returns whether there is a picture behind any extensions; a damaged packet may have one."""
    position = 0
    if bytes(packet[:3]) == b"GIF" and len(packet) > 10:
        has_palette, palette_size = packet[10] & 0x80, 3 << (packet[10] & 7) + 1
        position = 13 + (palette_size if has_palette else 0)
    try:
        while packet[position] == _GIF_EXTENSION:
            position += 2
            while packet[position]:
                position += 1 + packet[position]
            position += 1
        return packet[position] == _GIF_IMAGE
    except IndexError:
        return position != len(packet)


def _is_vp9_superframe(packet: memoryview) -> bool:
    """Returns whether several frames are packed together; the last one of them is shown."""
    marker = packet[-1]
    if marker & 0xE0 != 0xC0:
        return False
    num_frames = (marker & 7) + 1
    bytes_per_size = (marker >> 3 & 3) + 1
    index_bytes = 2 + num_frames * bytes_per_size
    return len(packet) >= index_bytes and packet[-index_bytes] == marker


def _is_hidden_vp9_frame(header: int) -> bool:
    # VP9 specification, section 6.2: frame_marker(2), profile(2), reserved(1) in profile 3 only,
    # show_existing_frame(1), frame_type(1), show_frame(1); most significant bit first.
    is_profile_3 = header & 0x30 == 0x30
    show_existing_frame = header & (0x04 if is_profile_3 else 0x08)
    show_frame = header & (0x01 if is_profile_3 else 0x02)
    return not show_existing_frame and not show_frame
