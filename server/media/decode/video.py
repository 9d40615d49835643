"""One encoded video: which frames it has, and those of a plan.

A video is opened once. ``probe`` reads every packet without decoding and keeps them; ``decode``
feeds the decoder the packets that the wanted frames depend on. Every packet is re-stamped with the
number of the frame it holds, and decoders carry that stamp to the frame, so a frame says by itself
which one it is, whatever the container's clock does.

Nothing a header says is trusted: frames are counted by their packets, size and rotation are those
of a decoded frame, and every failure ends in one of the faults of ``server.media.faults``.
"""

from collections.abc import Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from server.errors import InvalidVideo
from server.media.bitstreams import NalFormat, is_hidden_picture
from server.media.clip import FramePlan, VideoFacts
from server.media.decode.colours import PictureConverter
from server.media.decode.containers import (
    WITHOUT_PRESENTATION_TIMES,
    VideoPacket,
    choose_stream,
    open_container,
)
from server.media.decode.decoders import PictureDecoder
from server.media.decode.fields import without_interlacing
from server.media.decode.shapes import display_size, orientation_of
from server.media.faults import DecodeLimits, VideoFault, video_fault
from server.media.fieldpairs import second_fields
from server.media.pictures import PictureWriter
from server.media.sourcefile import SourceFile
from server.media.timeline import PacketFacts, Span, Timeline, can_be_shared

_NOT_SHOWN = -1
_DECODER_BYTES_PER_PIXEL = 50
"""What a decoder may hold: 17 pictures of 10 bit 4:2:0."""


class VideoSource:
    """One encoded video. Use as a context manager; call ``probe`` before ``decode``."""

    def __init__(self, file: SourceFile, limits: DecodeLimits) -> None:
        self._limits = limits
        self._file = file
        self._container = open_container(file, limits)
        self._pictures = PictureConverter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._container.close()

    def probe(self) -> VideoFacts:
        """Returns what the packets and the first frame say.

        Raises:
            InvalidVideo: there is no usable video, or it exceeds a limit.
        """
        self._stream, self._packets = choose_stream(self._container, self._limits)
        self._stream_place = self._container.streams.video.index(self._stream)
        self._decoder = self._open_decoder(self._stream, threads=self._limits.threads)
        self._are_second_fields = self._second_fields()
        self._timeline = self._read_timeline()
        self._stamp_packets()
        if not self._timeline.num_frames:
            raise self._fault("no_frames")
        frame = self._first_frame()
        bytes_of_decoders = (
            self._limits.threads * _DECODER_BYTES_PER_PIXEL * (frame.width * frame.height)
        )
        self._has_memory_to_share = bytes_of_decoders <= self._limits.memory_bytes // 2
        self._is_interlaced = (
            frame.interlaced_frame or self._decoder.is_interlaced or any(self._are_second_fields)
        )
        self._orientation = orientation_of(frame)
        size = display_size(frame.width, frame.height, self._stream.sample_aspect_ratio)
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
            self._write_spans(writer)
        if writer.missing:
            self._fill_gaps(writer)
        return writer.num_replaced

    # Decoding

    def _open_decoder(self, stream: VideoStream, *, threads: int) -> PictureDecoder:
        tags = {name.lower(): value for name, value in stream.metadata.items()}
        has_alpha_packets = tags.get("alpha_mode") == "1" and any(
            packet.has_sidedata("matroska_block_additional") for packet in self._packets[:1]
        )
        return PictureDecoder(
            stream, self._limits, threads=threads, has_alpha_packets=has_alpha_packets
        )

    def _read_timeline(self) -> Timeline:
        codec = self._decoder.name
        return Timeline(
            [
                PacketFacts(
                    time=packet.dts if packet.pts is None else packet.pts,
                    duration=packet.duration or 0,
                    is_keyframe=packet.is_keyframe and not is_second,
                    is_shown=not (
                        packet.is_discard
                        or is_second
                        or is_hidden_picture(codec, memoryview(packet))
                    ),
                    completes_previous=is_second,
                )
                for packet, is_second in zip(self._packets, self._are_second_fields, strict=True)
            ],
            time_base=self._stream.time_base or Fraction(1, av.time_base),
            frames_per_second=self._stream.average_rate or self._stream.base_rate,
            has_presentation_times=self._container.format.name not in WITHOUT_PRESENTATION_TIMES,
        )

    def _second_fields(self) -> list[bool]:
        nal_format = NalFormat.of(self._decoder.name, self._decoder.extradata)
        if nal_format is None:
            return [False] * len(self._packets)
        packets = [memoryview(packet) for packet in self._packets]
        return second_fields(nal_format, self._decoder.extradata, packets)

    def _stamp_packets(self) -> None:
        """Write each frame's number into its packet; the decoder hands it on to the frame."""
        for packet, number in zip(self._packets, self._timeline.frame_numbers(), strict=True):
            packet.pts = _NOT_SHOWN if number is None else number
            packet.dts = None

    def _first_frame(self) -> VideoFrame:
        """Returns the first frame that decodes, and forgets the frames that should precede it.

        A stream that was cut from a longer one may begin with packets that refer to what is gone.
        """
        for num_fed, frame in self._decoder.frames(self._packets):
            if not 0 < frame.width * frame.height <= self._limits.max_pixels:
                raise self._fault("video_resolution_too_large")
            if self._timeline.is_timed and frame.pts is not None and frame.pts > 0:
                self._timeline = self._timeline.without(self._before(frame.pts, num_fed))
                self._stamp_packets()
            return frame
        raise self._fault(self._decoder.why_nothing_came(self._packets))

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
        for span in spans:
            self._write_span(span, writer, self._decoder, self._pictures)

    def _spans(self, wanted: Set[int]) -> list[Span]:
        """Returns the packets that the wanted frames need, in interlaced video their neighbours."""
        return self._timeline.spans(wanted, num_neighbours=1 if self._is_interlaced else 0)

    def _write_spans_in_parallel(self, spans: list[Span], writer: PictureWriter) -> None:
        """Have each thread decode span after span by a decoder of its own.

        Threads of one decoder wait for each other, and run empty at the end of each span.
        """
        waiting: SimpleQueue[Span] = SimpleQueue()
        for span in sorted(spans, key=lambda span: span.num_packets, reverse=True):
            waiting.put(span)

        def work() -> None:
            with open_container(self._file.reopened(), self._limits) as container:
                stream = container.streams.video[self._stream_place]
                decoder = self._open_decoder(stream, threads=1)
                pictures = PictureConverter()
                with suppress(Empty):
                    while True:
                        self._write_span(waiting.get_nowait(), writer, decoder, pictures)

        with ThreadPoolExecutor(self._limits.threads) as threads:
            tasks = [threads.submit(work) for _ in range(self._limits.threads)]
        for task in tasks:
            task.result()

    def _write_span(
        self, span: Span, writer: PictureWriter, decoder: PictureDecoder, pictures: PictureConverter
    ) -> None:
        frames = self._exact_frames(span, writer.missing, decoder)
        for number, frame in without_interlacing(frames, writer.missing):
            if number in writer.missing:
                writer.put(number, pictures.picture(frame))

    def _needed_packets(self, span: Span, wanted: Set[int]) -> list[VideoPacket]:
        """Returns the packets of a span without the pictures that no other one refers to.

        They are left out here, as with FFmpeg's ``skip_frame`` they would still take the turn of a
        thread. Not from interlaced video, where a packet may be half a picture.
        """
        packets = self._packets[span.first : span.last + 1]
        nal_format = NalFormat.of(self._decoder.name, self._decoder.extradata)
        if nal_format is None or self._is_interlaced:
            return packets
        unreferenced = nal_format.unreferenced([memoryview(packet) for packet in packets])
        return packets[:1] + [
            packet
            for packet, is_unreferenced in zip(packets[1:], unreferenced[1:], strict=True)
            if not is_unreferenced or packet.pts in wanted
        ]

    def _exact_frames(
        self, span: Span, wanted: Set[int], decoder: PictureDecoder
    ) -> Iterator[tuple[int, VideoFrame]]:
        """Yields (number, frame) of a span as they come, unless starting there gives damage."""
        is_start_proven = span.first == 0
        key_number = self._packets[span.first].pts
        for _, frame in decoder.frames(self._needed_packets(span, wanted)):
            if not is_start_proven:
                # The container's word alone is not enough that decoding can start here.
                if frame.pts == key_number and not frame.key_frame:
                    return
                if frame.is_corrupt:
                    continue
            if frame.pts is not None:
                yield frame.pts, frame

    def _all_frames(self) -> Iterator[tuple[int, VideoFrame]]:
        """Yields (number, frame) from the beginning, in the decoder's order."""
        for count, (_, frame) in enumerate(self._decoder.frames(self._packets)):
            number = frame.pts if self._timeline.is_timed else count
            if number is not None and number != _NOT_SHOWN:
                yield number, frame

    def _fill_gaps(self, writer: PictureWriter) -> None:
        """Decode from the beginning; what does not come out holds the frame before it."""
        shown: VideoFrame | None = None
        for number, frame in without_interlacing(self._all_frames(), writer.missing):
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
