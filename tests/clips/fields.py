"""H.264 whose frames are coded as two fields each (PAFF), which no encoder at hand can write.

Macroblocks hold plain samples (I_PCM), so all there is to write is headers.
"""

import io
from fractions import Fraction

import av

WIDTH, HEIGHT = 32, 32
_MACROBLOCKS_PER_FIELD = 2
_MACROBLOCK_BYTES = 384
_START = b"\0\0\0\1"


def fields_clip(num_frames: int) -> bytes:
    """Returns an Annex B stream; the luma of frame i is 20 + 4 * i, 1 more in its odd lines."""
    units = [_unit(3, 7, _sequence_parameters()), _unit(3, 8, _picture_parameters())]
    for number in range(num_frames):
        units += [_field(number, is_bottom=False), _field(number, is_bottom=True)]
    return b"".join(units)


def contained(stream: bytes, container: str, *, fields_per_packet: int) -> bytes:
    """Returns an Annex B stream of field pairs in a container, 25 frames per second."""
    buffer = io.BytesIO()
    with (
        av.open(io.BytesIO(stream), format="h264") as source,
        av.open(buffer, "w", format=container) as output,
    ):
        template = source.streams.video[0]
        fields = [bytes(packet) for packet in source.demux(template) if packet.size]
        copy = output.add_stream_from_template(template)
        for number in range(0, len(fields), fields_per_packet):
            packet = av.Packet(b"".join(fields[number : number + fields_per_packet]))
            packet.stream, packet.time_base = copy, Fraction(1, 50)
            packet.pts = packet.dts = number
            packet.duration = fields_per_packet
            packet.is_keyframe = number % 2 == 0
            output.mux(packet)
    return buffer.getvalue()


def _sequence_parameters() -> str:
    main_profile, level = f"{77:08b}" + "0" * 8, f"{30:08b}"
    sizes = _ue(WIDTH // 16 - 1) + _ue(HEIGHT // 32 - 1)
    return main_profile + level + _ue(0, 0, 0, 4, 1) + "0" + sizes + "0" + "0" + "1" + "0" + "0"


def _picture_parameters() -> str:
    return _ue(0, 0) + "0" + "0" + _ue(0, 0, 0) + "0" + "00" + _ue(0, 0, 0) + "0" + "0" + "0"


def _field(number: int, *, is_bottom: bool) -> bytes:
    is_idr = not is_bottom
    header = _ue(0, 7, 0) + "0000" + "1" + str(int(is_bottom))
    header += _ue(number % 2) if is_idr else ""
    header += f"{int(is_bottom):08b}" + ("00" if is_idr else "0") + _ue(0)
    body = header
    luma = 20 + 4 * number + is_bottom
    for _ in range(_MACROBLOCKS_PER_FIELD):
        body += _ue(25)
        body += "0" * (-len(body) % 8)
        body += "".join(f"{v:08b}" for v in [luma] * 256 + [128] * (_MACROBLOCK_BYTES - 256))
    return _unit(3, 5 if is_idr else 1, body)


def _ue(*values: int) -> str:
    """Returns numbers as Exp-Golomb codes."""
    codes = (f"{value + 1:b}" for value in values)
    return "".join("0" * (len(code) - 1) + code for code in codes)


def _unit(reference: int, kind: int, bits: str) -> bytes:
    bits += "1"
    bits += "0" * (-len(bits) % 8)
    payload = int(bits, 2).to_bytes(len(bits) // 8, "big")
    escaped = bytearray()
    for byte in payload:
        if byte <= 3 and escaped[-2:] == b"\0\0":
            escaped.append(3)
        escaped.append(byte)
    return _START + bytes([reference << 5 | kind]) + bytes(escaped)
