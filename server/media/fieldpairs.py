"""Which packets of interlaced H.264 hold the second half of a picture.

A frame may be coded as two fields, and MPEG-TS and some files give each a packet of its own, where
FFmpeg's decoder gives one frame for both. So such packets must be found to count frames. It takes
the first numbers of each slice header, and of the sequence's parameters (ITU-T H.264, 7.3).
"""

from dataclasses import dataclass

from server.media.bitstreams import NalFormat

_SEQUENCE_PARAMETERS = 7
_SLICES = (1, 2, 5)
_HEADER_BYTES = 32
_WITH_CHROMA_FORMAT = frozenset({44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 244})


class _Bits:
    """Numbers from the payload of a NAL unit."""

    def __init__(self, payload: bytes) -> None:
        data = payload.replace(b"\0\0\3", b"\0\0")
        self._bits = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def take(self, count: int) -> int:
        """Returns the next ``count`` bits as a number; raises ``EOFError`` at the end."""
        if count > self._left:
            raise EOFError
        self._left -= count
        return self._bits >> self._left & (1 << count) - 1

    def exp_golomb(self) -> int:
        """Returns the next number of variable length."""
        zeros = 0
        while not self.take(1):
            zeros += 1
        return (1 << zeros | self.take(zeros)) - 1


@dataclass(frozen=True, slots=True)
class _Sequence:
    """What must be known to read a slice header."""

    bits_of_frame_num: int
    has_colour_planes: bool
    may_have_fields: bool


@dataclass(frozen=True, slots=True)
class _Field:
    frame_num: int
    is_bottom: bool


class FieldPairing:
    """Finds the packets of a stream that complete the picture of the packet before."""

    def __init__(self, nal_format: NalFormat | None, extradata: bytes) -> None:
        """Prepare.

        Args:
            nal_format: how packets are put together; None for codecs that have no such packets.
            extradata: the stream's header. Where it is not sound, nothing is a pair.
        """
        self._nal_format = nal_format
        sequence = None if nal_format is None or nal_format.is_hevc else _sequence(extradata)
        self._sequence = sequence if sequence is not None and sequence.may_have_fields else None
        self._first: _Field | None = None

    def completes(self, packet: memoryview) -> bool:
        """Returns whether ``packet`` completes the one that was asked about before.

        Args:
            packet: each of the stream, in decode order.
        """
        if self._nal_format is None or self._sequence is None:
            return False
        field, first = _only_field(self._nal_format, packet, self._sequence), self._first
        is_second = (
            first is not None
            and field is not None
            and first.frame_num == field.frame_num
            and first.is_bottom != field.is_bottom
        )
        self._first = None if is_second else field
        return is_second


def is_surely_progressive(extradata: bytes) -> bool:
    """Returns whether the header of an H.264 stream in MP4 rules out pictures of two fields."""
    num_sequences_position, only_one = 5, 1  # ISO/IEC 14496-15, 5.2.4.1
    if len(extradata) <= num_sequences_position or extradata[0] != 1:
        return False
    sequence = _sequence(extradata)
    is_only_one = extradata[num_sequences_position] & 0x1F == only_one
    return is_only_one and sequence is not None and not sequence.may_have_fields


def _only_field(nal_format: NalFormat, packet: memoryview, sequence: _Sequence) -> _Field | None:
    """Returns the field that the packet holds; None if it is a frame, or two fields."""
    slices = [
        bytes(packet[start : start + _HEADER_BYTES])
        for start in nal_format.unit_starts(packet)
        if start < len(packet) and packet[start] & 0x1F in _SLICES
    ]
    try:
        fields = {_field_of_slice(unit, sequence) for unit in slices}
    except EOFError:
        return None
    return fields.pop() if len(fields) == 1 else None


def _field_of_slice(unit: bytes, sequence: _Sequence) -> _Field | None:
    bits = _Bits(unit[1:])
    for _ in ("first_mb_in_slice", "slice_type", "pic_parameter_set_id"):
        bits.exp_golomb()
    if sequence.has_colour_planes:
        bits.take(2)
    frame_num = bits.take(sequence.bits_of_frame_num)
    is_field = bits.take(1)
    return _Field(frame_num, bool(bits.take(1))) if is_field else None


def _sequence(extradata: bytes) -> _Sequence | None:
    """Returns the first parameter set of a stream's header, if there is a sound one."""
    starts = (
        [8] if extradata[:1] == b"\1" else NalFormat(False, 0).unit_starts(memoryview(extradata))
    )
    for start in starts:
        unit = extradata[start:]
        if unit[:1] and unit[0] & 0x1F == _SEQUENCE_PARAMETERS:
            try:
                return _parsed(_Bits(unit[1:]))
            except EOFError:
                return None
    return None


def _parsed(bits: _Bits) -> _Sequence:
    profile = bits.take(8)
    bits.take(16)  # constraints, level_idc
    bits.exp_golomb()  # seq_parameter_set_id
    has_colour_planes = profile in _WITH_CHROMA_FORMAT and _skip_chroma(bits)
    bits_of_frame_num = bits.exp_golomb() + 4
    _skip_picture_order(bits)
    bits.exp_golomb()  # max_num_ref_frames
    bits.take(1)  # gaps_in_frame_num_value_allowed_flag
    for _ in ("width", "height"):
        bits.exp_golomb()
    frame_mbs_only = bits.take(1)
    return _Sequence(bits_of_frame_num, has_colour_planes, not frame_mbs_only)


def _skip_chroma(bits: _Bits) -> bool:
    """Returns separate_colour_plane_flag."""
    chroma_format = bits.exp_golomb()
    is_separate = chroma_format == 3 and bool(bits.take(1))
    for _ in ("bit_depth_luma_minus8", "bit_depth_chroma_minus8"):
        bits.exp_golomb()
    bits.take(1)  # qpprime_y_zero_transform_bypass_flag
    if bits.take(1):  # seq_scaling_matrix_present_flag
        for place in range(8 if chroma_format != 3 else 12):
            if bits.take(1):
                _skip_scaling_list(bits, 16 if place < 6 else 64)
    return is_separate


def _skip_scaling_list(bits: _Bits, size: int) -> None:
    last, following = 8, 8
    for _ in range(size):
        if following:
            code = bits.exp_golomb()
            delta = (code + 1) // 2 if code % 2 else -(code // 2)
            following = (last + delta) % 256
        last = following or last


def _skip_picture_order(bits: _Bits) -> None:
    kind = bits.exp_golomb()
    if kind == 0:
        bits.exp_golomb()  # log2_max_pic_order_cnt_lsb_minus4
    elif kind == 1:
        bits.take(1)
        bits.exp_golomb()
        bits.exp_golomb()
        for _ in range(min(bits.exp_golomb(), 255)):
            bits.exp_golomb()
