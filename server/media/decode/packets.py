"""The packets of a file's moving pictures: looked at once, and read again when they are needed.

None but the first are kept meanwhile, so a long video takes no more memory than a short one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Self, TypeAlias, cast

import av
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.stream import VideoStream

from server.errors import InvalidVideo
from server.formats import MOVING_WEBP, codec_name
from server.media.bitstreams import NalFormat, is_animated_webp, is_hidden_picture
from server.media.byteranges import ByteRange
from server.media.decode.containers import open_container
from server.media.faults import DecodeLimits, video_fault
from server.media.fieldpairs import FieldPairing, is_surely_progressive
from server.media.sourcefile import SourceFile
from server.media.timeline import PacketFacts, Span, Timeline

_WITHOUT_PRESENTATION_TIMES = frozenset({"avi", "h264", "hevc", "vvc", "obu", "m4v", "mpegvideo"})
"""They number packets in decode order, which is wrong where there are B-frames, or not at all."""

_TOLD_BY_CONTAINERS = frozenset({"hevc", "av1"})
"""Codecs whose packets in MP4 hold one shown frame each; H.264 may have fields."""
_NOT_SHOWN = -1
_MAX_HEAD_PACKETS = 64
_MAX_HEAD_BYTES = 2_000_000

if TYPE_CHECKING:
    VideoPacket: TypeAlias = Packet[VideoStream]
else:  # generic for type checkers only
    VideoPacket = Packet


class PacketTable:
    """What one pass over the packets of a stream has told about them."""

    def __init__(self, stream: VideoStream, *, has_holes: bool = False) -> None:
        """Begin without packets.

        Args:
            stream: whose packets they are.
            has_holes: whether packets may read as zeros, so that they are not looked into.
        """
        self.stream = stream
        self._index = stream.index  # Forgotten when the container is closed.
        self.has_holes = has_holes
        self.places: list[ByteRange] = []
        """Where the packets are, if the file has holes."""
        self.facts: list[PacketFacts] = []
        """In decode order."""
        self.head: list[VideoPacket] = []
        """The first packets."""
        self.highest_layer = 0
        """The greatest temporal layer of HEVC."""
        self.has_field_pairs = False
        """Whether some packets hold half a picture."""
        self._head_bytes = 0
        self._has_surprises = False
        codec = stream.codec_context
        self._codec = codec.name
        self.nal_format = NalFormat.of(codec.name, codec.extradata or b"")
        """How packets are put together; None for codecs where that is not known."""
        if has_holes and self.nal_format is not None and self.nal_format.is_hevc:
            # What nothing refers to can not be told without the layers of all packets.
            self.nal_format = None
        self._pairing = FieldPairing(self.nal_format, codec.extradata or b"")

    @property
    def num_packets(self) -> int:
        """Number of packets."""
        return len(self.facts)

    @property
    def is_head_all(self) -> bool:
        """Whether the first packets are all."""
        return len(self.head) == len(self.facts)

    def add(self, packet: VideoPacket) -> None:
        """Note the next packet."""
        if self.has_holes:
            self._add_unseen(packet)
            return
        data = memoryview(packet)
        is_second = self._pairing.completes(data)
        self.has_field_pairs |= is_second
        if self.nal_format is not None and self.nal_format.is_hevc:
            self.highest_layer = max(self.highest_layer, self.nal_format.temporal_layer(data))
        self._keep(packet)
        self.facts.append(
            PacketFacts(
                time=packet.dts if packet.pts is None else packet.pts,
                duration=packet.duration or 0,
                is_keyframe=packet.is_keyframe and not is_second,
                is_shown=not (
                    packet.is_discard or is_second or is_hidden_picture(self._codec, data)
                ),
                completes_previous=is_second,
            )
        )

    def _add_unseen(self, packet: VideoPacket) -> None:
        if packet.pos is None or packet.pos < 0 or packet.has_sidedata("new_extradata"):
            self._has_surprises = True
            return
        self._keep(packet)
        self.places.append(ByteRange(packet.pos, packet.pos + packet.size))
        self.facts.append(
            PacketFacts(
                time=packet.dts if packet.pts is None else packet.pts,
                duration=packet.duration or 0,
                is_keyframe=packet.is_keyframe,
                is_shown=not packet.is_discard,
            )
        )

    @property
    def tells_all(self) -> bool:
        """Whether the container alone tells what packets hold: one frame each, that is shown."""
        if self._has_surprises:
            return False
        codec = self.stream.codec_context
        extradata = codec.extradata or b""
        if self._codec == "h264":
            return is_surely_progressive(extradata)
        return codec.codec.canonical_name in _TOLD_BY_CONTAINERS and bool(extradata)

    def read_again(self, container: InputContainer) -> "PacketTable":
        """Returns the table with its first packets as they are in ``container`` now."""
        table = PacketTable(self.same_stream(container), has_holes=True)
        table.facts, table.places = self.facts, self.places
        packets = _demuxed(container, [table.stream])
        table.head = list(islice(packets, len(self.head)))
        return table

    def _keep(self, packet: VideoPacket) -> None:
        if self.is_head_all and len(self.head) < _MAX_HEAD_PACKETS:
            self._head_bytes += packet.size
            if not self.head or self._head_bytes <= _MAX_HEAD_BYTES:
                self.head.append(packet)

    def same_stream(self, container: InputContainer) -> VideoStream:
        """Returns this stream in the same file, opened again."""
        return next(s for s in container.streams.video if s.index == self._index)

    def timeline(self, container: InputContainer) -> Timeline:
        """Returns when each packet's frame is shown."""
        return Timeline(
            self.facts,
            time_base=self.stream.time_base or Fraction(1, av.time_base),
            frames_per_second=self.stream.average_rate or self.stream.base_rate,
            has_presentation_times=container.format.name not in _WITHOUT_PRESENTATION_TIMES,
        )


def packet_table(container: InputContainer, limits: DecodeLimits) -> PacketTable:
    """Returns the packets of the stream with the moving pictures.

    Raises:
        InvalidVideo: there is none, its codec is not accepted, or it is too long.
    """
    return _filled(container, [PacketTable(s) for s in _accepted(container, limits)], limits)


def unseen_packet_table(container: InputContainer, limits: DecodeLimits) -> PacketTable | None:
    """Returns the same for a file with holes; None if it takes more than its container to tell.

    Raises:
        InvalidVideo: as for ``packet_table``.
    """
    streams = _accepted(container, limits)
    tables = [PacketTable(stream, has_holes=True) for stream in streams]
    if len(tables) > 1 or not tables[0].tells_all or not container.format.name.startswith("mov,"):
        return None
    table = _filled(container, tables, limits)
    return table if table.num_packets and table.tells_all else None


def _filled(
    container: InputContainer, made: Sequence[PacketTable], limits: DecodeLimits
) -> PacketTable:
    """Reads all packets; returns the table of the stream with the moving pictures."""
    tables = {table.stream.index: table for table in made}
    try:
        for packet in _demuxed(container, [table.stream for table in tables.values()]):
            table = tables[packet.stream_index]
            if table.num_packets == limits.max_frames:
                raise video_fault("video_too_long", limits)
            table.add(packet)
    except (MemoryError, InvalidVideo):
        raise
    except Exception as error:
        # A damaged end: what came before it can still be shown.
        if not any(table.num_packets for table in tables.values()):
            raise video_fault("invalid_video", limits) from error
    chosen = max(tables.values(), key=_merit)
    if any(is_animated_webp(memoryview(packet)) for packet in chosen.head[:1]):
        raise video_fault("unsupported_codec", limits, found=MOVING_WEBP)
    return chosen


def _accepted(container: InputContainer, limits: DecodeLimits) -> list[VideoStream]:
    # Covers and thumbnails, and the tiles of a larger picture.
    parts = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.dependent
    streams = [s for s in container.streams.video if not s.disposition & parts]
    if not streams:
        raise video_fault("no_video_stream", limits)
    # PyAV gives no codec context where FFmpeg has no decoder.
    decodable = [s for s in streams if getattr(s, "codec_context", None) is not None]
    if not decodable:
        raise video_fault("unsupported_codec", limits)
    accepted = [s for s in decodable if s.codec_context.codec.canonical_name in limits.codecs]
    if not accepted:
        found = codec_name(decodable[0].codec_context.codec.canonical_name)
        raise video_fault("unsupported_codec", limits, found=found)
    return accepted


def _merit(table: PacketTable) -> tuple[bool, bool, bool, int, bool]:
    count = table.num_packets
    is_default = bool(table.stream.disposition & Disposition.default)
    # AVIF keeps the alpha of a sequence in a grey stream of the same length.
    is_grey = (table.stream.codec_context.pix_fmt or "").startswith("gray")
    return count > 0, count > 1, is_default, count, not is_grey


def _demuxed(container: InputContainer, streams: Iterable[VideoStream]) -> Iterator[VideoPacket]:
    """Yields packets in the file's order; fails where it is damaged."""
    packets = cast(Iterator[VideoPacket], container.demux(*streams))
    return (packet for packet in packets if packet.size)


@dataclass(slots=True)
class PacketFeed:
    """A stream's packets once more, from the start and in order, for decoders.

    Each is stamped with the number of the frame it holds, which decoders hand on to the frame.
    """

    stream: VideoStream
    _numbers: list[int | None]
    _packets: Iterator[tuple[int, VideoPacket]]
    _container: InputContainer | None = field(default=None)

    @classmethod
    def of_head(cls, table: PacketTable, timeline: Timeline) -> Self:
        """Returns a feed of the packets that ``table`` has kept."""
        return cls(table.stream, timeline.frame_numbers(), enumerate(table.head))

    @classmethod
    def of_file(
        cls, file: SourceFile, limits: DecodeLimits, table: PacketTable, timeline: Timeline
    ) -> Self:
        """Returns a feed of all packets, read from the file again."""
        container = open_container(file.reopened(), limits, has_holes=table.has_holes)
        stream = table.same_stream(container)
        packets = enumerate(_while_sound(_demuxed(container, [stream])))
        return cls(stream, timeline.frame_numbers(), packets, container)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._container is not None:
            self._container.close()

    def all(self) -> Iterator[VideoPacket]:
        """Yields what has not been read yet."""
        return self.span(Span(0, len(self._numbers) - 1))

    def span(self, span: Span) -> Iterator[VideoPacket]:
        """Yields the packets of a span, which must follow what was read before."""
        for position, packet in self._packets:
            if position >= span.first:
                number = self._numbers[position]
                packet.pts = _NOT_SHOWN if number is None else number
                packet.dts = None
                yield packet
            if position >= span.last:
                return


def is_shown(number: int | None) -> bool:
    """Returns whether the number that a frame carries is that of a frame to be shown."""
    return number is not None and number != _NOT_SHOWN


def _while_sound(packets: Iterator[VideoPacket]) -> Iterator[VideoPacket]:
    try:
        yield from packets
    except MemoryError:
        raise
    except Exception:
        # The damage at which the first pass has ended, too.
        return
