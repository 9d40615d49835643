"""One encoded video: which frames it has, and those of a plan.

``probe`` reads every packet once, without decoding; ``decode`` reads them again and feeds decoders
those that the wanted frames depend on. Every packet is re-stamped with the number of the frame it
holds, and decoders carry that stamp to the frame, so a frame says by itself which one it is,
whatever the container's clock does.

Nothing a header says is trusted: frames are counted by their packets, size and rotation are those
of a decoded frame, and every failure ends in one of the faults of ``server.media.faults``.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain
from threading import Lock
from typing import Self, TypeAlias

import numpy as np
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from server.errors import InvalidVideo
from server.media.byteranges import ByteRange
from server.media.clip import FramePlan, VideoFacts
from server.media.decode.colours import PictureConverter
from server.media.decode.containers import open_container
from server.media.decode.decoders import PictureDecoder
from server.media.decode.fields import without_interlacing
from server.media.decode.packets import (
    PacketFeed,
    PacketTable,
    VideoPacket,
    is_shown,
    packet_table,
    unseen_packet_table,
)
from server.media.decode.shapes import display_size, orientation_of
from server.media.faults import DecodeLimits, VideoFault, video_fault
from server.media.pictures import PictureWriter
from server.media.sourcefile import SourceFile
from server.media.timeline import Span, can_be_shared

Fetch: TypeAlias = Callable[[Sequence[ByteRange]], None]
"""Returns when these parts of a file are filled."""

_DECODER_BYTES_PER_PIXEL = 50
"""What a decoder may hold: 17 pictures of 10 bit 4:2:0."""


class VideoSource:
    """One encoded video. Use as a context manager; call ``probe`` before ``decode``."""

    def __init__(
        self, file: SourceFile, limits: DecodeLimits, *, fetch: Fetch | None = None
    ) -> None:
        """Open the container.

        Args:
            file: the encoded video.
            limits: what it may cost.
            fetch: fills holes of the file; None if it has none.

        Raises:
            InvalidVideo: there is no container, or none that is accepted.
        """
        self._limits = limits
        self._file = file
        self._fetch = fetch
        self._container = open_container(file, limits, has_holes=fetch is not None)
        self._pictures = PictureConverter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._container.close()

    def probe(self) -> VideoFacts:
        """Returns what the packets and the first frame say.

        Raises:
            InvalidVideo: there is no usable video, or it exceeds a limit.
        """
        self._table = self._read_table()
        self._timeline = self._table.timeline(self._container)
        if not self._timeline.num_frames:
            raise self._fault("no_frames")
        # Of many packets others take their share, by decoders of their own.
        threads = self._limits.threads if self._table.is_head_all else 1
        self._decoder = self._open_decoder(self._table.stream, threads=threads)
        frame = self._first_frame()
        bytes_of_decoders = (
            self._limits.threads * _DECODER_BYTES_PER_PIXEL * (frame.width * frame.height)
        )
        self._has_memory_to_share = bytes_of_decoders <= self._limits.memory_bytes // 2
        self._is_interlaced = (
            frame.interlaced_frame or self._decoder.is_interlaced or self._table.has_field_pairs
        )
        self._orientation = orientation_of(frame)
        size = display_size(frame.width, frame.height, self._table.stream.sample_aspect_ratio)
        width, height = reversed(size) if self._orientation.is_sideways else size
        return VideoFacts(
            container=self._container.format.name,
            codec=self._decoder.name,
            width=width,
            height=height,
            rotation_degrees=self._orientation.quarter_turns * 90,
            frame_times_seconds=self._timeline.times_seconds,
            duration_seconds=self._timeline.duration_seconds,
            keyframe_indices=self._timeline.keyframe_numbers,
        )

    def decode(self, plan: FramePlan, out: NDArray[np.uint8]) -> int:
        """Write the planned frames as RGB into ``out``, of shape (num_frames, height, width, 3).

        A frame that can not be decoded is replaced by the one shown before it, or after it where
        there is none. Returns how many of the planned frames were.

        Raises:
            InvalidVideo: no frame could be decoded.
        """
        writer = PictureWriter(plan, out, self._orientation)
        if self._timeline.is_timed:
            self._fetch_spans(writer.missing)
            self._write_spans(writer)
        if writer.missing:
            self._fetch_all()
            self._fill_gaps(writer)
        return writer.num_replaced

    # Holes

    def _read_table(self) -> PacketTable:
        """Returns the packets, of which those are there that the first frame needs."""
        if self._fetch is not None:
            table = unseen_packet_table(self._container, self._limits)
            if table is None:
                self._fetch_all()
                self._open_again()
            else:
                self._fetch(table.places[: len(table.head)])
                self._open_again()
                return table.read_again(self._container)
        return packet_table(self._container, self._limits)

    def _open_again(self) -> None:
        self._container.close()
        has_holes = self._fetch is not None
        self._container = open_container(self._file.reopened(), self._limits, has_holes=has_holes)

    def _fetch_spans(self, wanted: Set[int]) -> None:
        if self._fetch is not None:
            spans = self._spans(wanted)
            self._fetch([p for s in spans for p in self._table.places[s.first : s.last + 1]])

    def _fetch_all(self) -> None:
        if self._fetch is not None:
            self._fetch([ByteRange(0, self._file.num_bytes)])
            self._fetch = None

    # Decoding

    def _open_decoder(self, stream: VideoStream, *, threads: int) -> PictureDecoder:
        tags = {name.lower(): value for name, value in stream.metadata.items()}
        has_alpha_packets = tags.get("alpha_mode") == "1" and any(
            packet.has_sidedata("matroska_block_additional") for packet in self._table.head[:1]
        )
        return PictureDecoder(
            stream, self._limits, threads=threads, has_alpha_packets=has_alpha_packets
        )

    def _feed(self) -> PacketFeed:
        """Returns the packets from the first one on."""
        if self._table.is_head_all:
            return PacketFeed.of_head(self._table, self._timeline)
        return PacketFeed.of_file(self._file, self._limits, self._table, self._timeline)

    @contextmanager
    def _feed_and_decoder(self) -> Iterator[tuple[PacketFeed, PictureDecoder]]:
        """Yields the packets from the first one on, and a decoder that uses all threads."""
        with self._feed() as feed:
            if self._table.is_head_all:
                yield feed, self._decoder
            else:
                yield feed, self._open_decoder(feed.stream, threads=self._limits.threads)

    def _first_frame(self) -> VideoFrame:
        """Returns the first frame that decodes, and forgets the frames that should precede it.

        A stream that was cut from a longer one may begin with packets that refer to what is gone.
        """
        head = PacketFeed.of_head(self._table, self._timeline)
        frame = self._first_of(head.all())
        if frame is None and not self._table.is_head_all:
            self._fetch_all()
            with self._feed() as feed:
                frame = self._first_of(feed.all())
        if frame is None:
            raise self._fault(self._decoder.why_nothing_came(self._table.head))
        return frame

    def _first_of(self, packets: Iterable[VideoPacket]) -> VideoFrame | None:
        for num_fed, frame in self._decoder.frames(packets):
            if not 0 < frame.width * frame.height <= self._limits.max_pixels:
                raise self._fault("video_resolution_too_large")
            if self._timeline.is_timed and frame.pts is not None and frame.pts > 0:
                self._timeline = self._timeline.without(self._before(frame.pts, num_fed))
            return frame
        return None

    def _before(self, number: int, num_fed: int) -> frozenset[int]:
        """Returns the positions of packets that were decoded and should have come out earlier."""
        numbers = self._timeline.frame_numbers()[:num_fed]
        return frozenset(
            position
            for position, other in enumerate(numbers)
            if other is not None and other < number
        )

    def _write_spans(self, writer: PictureWriter) -> None:
        """Write what comes out when decoding starts at keyframes."""
        spans = self._spans(writer.missing)
        if self._has_memory_to_share and can_be_shared(spans, self._limits.threads):
            try:
                return self._write_spans_in_parallel(spans, writer)
            except (MemoryError, RuntimeError):
                # So many decoders, or threads, do not fit. One may.
                spans = self._spans(writer.missing)
        with self._feed_and_decoder() as (feed, decoder):
            for span in spans:
                packets = self._needed(feed.span(span), writer.missing)
                self._write_span(span, packets, writer, decoder, self._pictures)

    def _spans(self, wanted: Set[int]) -> list[Span]:
        """Returns the packets that the wanted frames need, in interlaced video their neighbours."""
        return self._timeline.spans(wanted, num_neighbours=1 if self._is_interlaced else 0)

    def _write_spans_in_parallel(self, spans: list[Span], writer: PictureWriter) -> None:
        """Have each thread decode span after span by a decoder of its own.

        Threads of one decoder wait for each other, and run empty at the end of each span.
        """
        with ExitStack() as opened:
            feed = opened.enter_context(self._feed())
            waiting, turn = deque(spans), Lock()

            def work(decoder: PictureDecoder) -> None:
                pictures = PictureConverter()
                while True:
                    with turn:
                        if not waiting:
                            return
                        span = waiting.popleft()
                        packets = deque(self._needed(feed.span(span), writer.missing))
                    self._write_span(span, _taken_from(packets), writer, decoder, pictures)

            decoders = self._single_decoders(feed, opened)
            with ThreadPoolExecutor(self._limits.threads) as threads:
                tasks = [threads.submit(work, decoder) for decoder in decoders]
            for task in tasks:
                task.result()

    def _single_decoders(self, feed: PacketFeed, opened: ExitStack) -> list[PictureDecoder]:
        """Returns a decoder of one thread for each thread; streams lend theirs only once."""
        decoders = []
        if not self._table.is_head_all:
            decoders = [self._decoder, self._open_decoder(feed.stream, threads=1)]
        while len(decoders) < self._limits.threads:
            container = opened.enter_context(
                open_container(self._file.reopened(), self._limits, has_holes=self._table.has_holes)
            )
            decoders.append(self._open_decoder(self._table.same_stream(container), threads=1))
        return decoders[: self._limits.threads]

    def _write_span(
        self,
        span: Span,
        packets: Iterable[VideoPacket],
        writer: PictureWriter,
        decoder: PictureDecoder,
        pictures: PictureConverter,
    ) -> None:
        frames = self._exact_frames(span, packets, decoder)
        for number, frame in without_interlacing(frames, writer.missing):
            if number in writer.missing:
                writer.put(number, pictures.picture(frame))

    def _needed(self, packets: Iterable[VideoPacket], wanted: Set[int]) -> Iterator[VideoPacket]:
        """Yields the packets of a span without the pictures that no other one refers to.

        They are left out here, as with FFmpeg's ``skip_frame`` they would still take the turn of a
        thread. Not from interlaced video, where a packet may be half a picture.
        """
        nal_format = None if self._is_interlaced else self._table.nal_format
        highest_layer = self._table.highest_layer
        for place, packet in enumerate(packets):
            if (
                place == 0
                or nal_format is None
                or packet.pts in wanted
                or not nal_format.is_unreferenced(memoryview(packet), highest_layer=highest_layer)
            ):
                yield packet

    def _exact_frames(
        self, span: Span, packets: Iterable[VideoPacket], decoder: PictureDecoder
    ) -> Iterator[tuple[int, VideoFrame]]:
        """Yields (number, frame) of a span as they come, unless starting there gives damage."""
        is_start_proven = span.first == 0
        packets = iter(packets)
        key = next(packets)
        key_number = key.pts
        for _, frame in decoder.frames(chain([key], packets)):
            if not is_start_proven:
                # The container's word alone is not enough that decoding can start here.
                if frame.pts == key_number and not frame.key_frame:
                    return
                if frame.is_corrupt:
                    continue
            if frame.pts is not None:
                yield frame.pts, frame

    def _all_frames(
        self, feed: PacketFeed, decoder: PictureDecoder
    ) -> Iterator[tuple[int, VideoFrame]]:
        """Yields (number, frame) from the beginning, in the decoder's order."""
        for count, (_, frame) in enumerate(decoder.frames(feed.all())):
            number = frame.pts if self._timeline.is_timed else count
            if number is not None and is_shown(number):
                yield number, frame

    def _fill_gaps(self, writer: PictureWriter) -> None:
        """Decode from the beginning; what does not come out holds the frame before it."""
        shown: VideoFrame | None = None
        with self._feed_and_decoder() as (feed, decoder):
            frames = self._all_frames(feed, decoder)
            for number, frame in without_interlacing(frames, writer.missing):
                for gap in [missing for missing in writer.missing if missing < number]:
                    writer.replace(gap, self._pictures.picture(shown or frame))
                if number in writer.missing:
                    writer.put(number, self._pictures.picture(frame))
                shown = frame
                if not writer.missing:
                    return
        if shown is None:
            raise self._fault("video_decode_failed")
        for gap in list(writer.missing):
            writer.replace(gap, self._pictures.picture(shown))

    def _fault(self, fault: VideoFault) -> InvalidVideo:
        return video_fault(fault, self._limits)


def _taken_from(packets: "deque[VideoPacket]") -> Iterator[VideoPacket]:
    """Yields the packets, and lets go of each."""
    while packets:
        yield packets.popleft()
