"""FFmpeg's door: the only module that imports PyAV. It runs inside a decoder process.

A video is opened once. ``probe`` reads every packet without decoding and keeps them; ``decode``
feeds the decoder the packets that the wanted frames depend on. Every packet is re-stamped with the
number of the frame it holds, and decoders carry that stamp to the frame, so a frame says by itself
which one it is, whatever the container's clock does.

Nothing a header says is trusted: frames are counted by their packets, size and rotation are those
of a decoded frame, and every failure ends in one of the faults of ``server.media.faults``.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias, cast

import av
import numpy as np
from av.codec.context import ThreadType
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from server.errors import InvalidVideo
from server.media.bitstreams import is_hidden_picture
from server.media.clip import FramePlan, VideoFacts
from server.media.faults import DecodeLimits, VideoFault, video_fault
from server.media.pictures import PictureWriter, quarter_turns
from server.media.sourcefile import SourceFile
from server.media.timeline import PacketFacts, Span, Timeline

# No playlist, concat, SDP, RTSP, image or device demuxer: those open other resources.
_CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,ogg,flv,asf,gif,ivf,"
    "h264,hevc,vvc,obu,m4v,mpegvideo,jpeg_pipe,png_pipe,webp_pipe"
)
_CODECS = (
    "h264,hevc,vvc,vp8,vp9,libdav1d,av1,mpeg1video,mpeg2video,mpeg4,msmpeg4v1,msmpeg4v2,msmpeg4,"
    "h263,flv,wmv1,wmv2,wmv3,vc1,theora,mjpeg,prores,dnxhd,ffv1,gif,png,webp"
)
_WITHOUT_PRESENTATION_TIMES = frozenset({"avi", "h264", "hevc", "vvc", "obu", "m4v", "mpegvideo"})
"""They number packets in decode order, which is wrong where there are B-frames, or not at all."""

_READ_BUFFER_BYTES = 1 << 18
_NOT_SHOWN = -1

if TYPE_CHECKING:
    _Packet: TypeAlias = Packet[VideoStream]
else:  # generic for type checkers only
    _Packet = Packet


class VideoSource:
    """One encoded video. Use as a context manager; call ``probe`` before ``decode``."""

    def __init__(self, file: SourceFile, limits: DecodeLimits) -> None:
        self._limits = limits
        # FFmpeg counts the padding of its buffers as well; the exact limit is checked on the frame.
        self._ffmpeg_max_pixels = str(2 * limits.max_pixels)
        self._container = self._open(file)
        self._reformatter = VideoReformatter()
        self._has_decode_errors = False
        self._has_huge_pictures = False

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
        self._stream, self._packets = self._choose_stream()
        self._codec = self._open_codec()
        self._timeline = self._read_timeline()
        self._stamp_packets()
        if not self._timeline.num_frames:
            raise self._fault("no_frames")
        frame = self._first_frame()
        self._quarter_turns = quarter_turns(frame.rotation)
        sideways = self._quarter_turns % 2 == 1
        return VideoFacts(
            container=self._container.format.name,
            codec=self._codec.name,
            width=frame.height if sideways else frame.width,
            height=frame.width if sideways else frame.height,
            rotation_degrees=self._quarter_turns * 90,
            frame_times_seconds=self._timeline.times_seconds,
            duration_seconds=self._timeline.duration_seconds,
            keyframe_indices=self._timeline.keyframe_numbers,
        )

    def decode(self, plan: FramePlan, out: NDArray[np.uint8]) -> None:
        """Write the planned frames as RGB into ``out``, of shape (num_frames, height, width, 3).

        A frame that can not be decoded is replaced by the one shown before it.

        Raises:
            InvalidVideo: no frame could be decoded.
        """
        writer = PictureWriter(plan, out, self._quarter_turns)
        if self._timeline.is_timed:
            for span in self._timeline.spans(writer.missing):
                for number, frame in self._exact_frames(span):
                    if number in writer.missing:
                        writer.put(number, self._rgb(frame))
        if writer.missing:
            self._fill_gaps(writer)

    # Reading the container

    def _open(self, file: SourceFile) -> InputContainer:
        # max_pixels is needed here, for the frames that opening decodes, and again for the codec.
        options = {
            "format_whitelist": _CONTAINERS,
            "codec_whitelist": _CODECS,
            "protocol_whitelist": "none",
            "max_streams": "32",
            "max_pixels": self._ffmpeg_max_pixels,
            "probesize": "5000000",
            "analyzeduration": "5000000",
        }
        try:
            return av.open(
                file,
                mode="r",
                options=options,
                metadata_errors="replace",
                buffer_size=_READ_BUFFER_BYTES,
            )
        except MemoryError:
            raise
        except av.error.ArgumentError as error:
            raise self._fault("unsupported_container") from error
        except Exception as error:
            raise self._fault("invalid_video") from error

    def _choose_stream(self) -> tuple[VideoStream, list[_Packet]]:
        """Returns the stream with the moving pictures, and its packets in decode order."""
        stills = Disposition.attached_pic | Disposition.timed_thumbnails
        streams = [s for s in self._container.streams.video if not s.disposition & stills]
        if not streams:
            raise self._fault("no_video_stream")
        # PyAV gives no codec context where FFmpeg has no decoder.
        decodable = [s for s in streams if getattr(s, "codec_context", None) is not None]
        if not decodable:
            raise self._fault("unsupported_codec")
        packets = self._demux(decodable)

        def merit(stream: VideoStream) -> tuple[bool, bool, int]:
            count = len(packets[stream.index])
            return count > 0, bool(stream.disposition & Disposition.default), count

        chosen = max(decodable, key=merit)
        return chosen, packets[chosen.index]

    def _demux(self, streams: list[VideoStream]) -> dict[int, list[_Packet]]:
        packets: dict[int, list[_Packet]] = {stream.index: [] for stream in streams}
        try:
            for packet in cast(Iterator[_Packet], self._container.demux(*streams)):
                if not packet.size:
                    continue
                of_stream = packets[packet.stream_index]
                if len(of_stream) == self._limits.max_frames:
                    raise self._fault("video_too_long")
                of_stream.append(packet)
        except (MemoryError, InvalidVideo):
            raise
        except Exception as error:
            # A damaged end: what came before it can still be shown.
            if not any(packets.values()):
                raise self._fault("invalid_video") from error
        return packets

    # Decoding

    def _open_codec(self) -> VideoCodecContext:
        codec = self._stream.codec_context
        codec.options = {"max_pixels": self._ffmpeg_max_pixels, "codec_whitelist": _CODECS}
        # Slice threads have crashed on truncated H.264 (PyAV issue 2344).
        codec.thread_type = ThreadType.FRAME
        codec.thread_count = self._limits.threads
        try:
            codec.open(strict=False)
        except MemoryError:
            raise
        except Exception as error:
            is_huge = _is_about_size(error)
            raise self._fault(
                "video_resolution_too_large" if is_huge else "unsupported_codec"
            ) from error
        return codec

    def _read_timeline(self) -> Timeline:
        codec = self._codec.name
        return Timeline(
            [
                PacketFacts(
                    time=packet.dts if packet.pts is None else packet.pts,
                    duration=packet.duration or 0,
                    is_keyframe=packet.is_keyframe,
                    is_shown=not (
                        packet.is_discard or is_hidden_picture(codec, memoryview(packet))
                    ),
                )
                for packet in self._packets
            ],
            time_base=self._stream.time_base or Fraction(1, av.time_base),
            frames_per_second=self._stream.average_rate or self._stream.base_rate,
            has_presentation_times=self._container.format.name not in _WITHOUT_PRESENTATION_TIMES,
        )

    def _stamp_packets(self) -> None:
        """Write each frame's number into its packet; the decoder hands it on to the frame."""
        for packet, number in zip(self._packets, self._timeline.frame_numbers(), strict=True):
            packet.pts = _NOT_SHOWN if number is None else number
            packet.dts = None

    def _first_frame(self) -> VideoFrame:
        """Returns the first frame that decodes, and forgets the frames that should precede it.

        A stream that was cut from a longer one may begin with packets that refer to what is gone.
        """
        for num_fed, frame in self._decoded(self._packets):
            if not 0 < frame.width * frame.height <= self._limits.max_pixels:
                raise self._fault("video_resolution_too_large")
            if self._timeline.is_timed and frame.pts is not None and frame.pts > 0:
                self._timeline = self._timeline.without(self._before(frame.pts, num_fed))
                self._stamp_packets()
            return frame
        raise self._fault(self._why_nothing_decodes())

    def _before(self, number: int, num_fed: int) -> frozenset[int]:
        """Returns the positions of packets that were decoded and should have come out earlier."""
        numbers = self._timeline.frame_numbers()[:num_fed]
        return frozenset(
            position
            for position, other in enumerate(numbers)
            if other is not None and other < number
        )

    def _why_nothing_decodes(self) -> VideoFault:
        if self._has_huge_pictures:
            return "video_resolution_too_large"
        return "video_decode_failed" if self._has_decode_errors else "no_frames"

    def _exact_frames(self, span: Span) -> Iterator[tuple[int, VideoFrame]]:
        """Yields (number, frame) of a span as they come, unless starting there gives damage."""
        is_start_proven = span.first == 0
        key_number = self._packets[span.first].pts
        for _, frame in self._decoded(self._packets[span.first : span.last + 1]):
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
        for count, (_, frame) in enumerate(self._decoded(self._packets)):
            number = frame.pts if self._timeline.is_timed else count
            if number is not None and number != _NOT_SHOWN:
                yield number, frame

    def _fill_gaps(self, writer: PictureWriter) -> None:
        """Decode from the beginning; what does not come out holds the frame before it."""
        shown: VideoFrame | None = None
        for number, frame in self._all_frames():
            for gap in [missing for missing in writer.missing if missing < number]:
                writer.put(gap, self._rgb(shown or frame))
            if number in writer.missing:
                writer.put(number, self._rgb(frame))
            shown = frame
            if not writer.missing:
                return
        if shown is None:
            raise self._fault("video_decode_failed")
        for gap in list(writer.missing):
            writer.put(gap, self._rgb(shown))

    def _decoded(self, packets: Iterable[_Packet]) -> Iterator[tuple[int, VideoFrame]]:
        """Yields (number of packets fed so far, frame); leaves the decoder empty."""
        num_fed = 0
        try:
            for packet in packets:
                num_fed += 1
                for frame in self._feed(packet):
                    yield num_fed, frame
            for frame in self._feed(None):
                yield num_fed, frame
        finally:
            self._codec.flush_buffers()

    def _feed(self, packet: _Packet | None) -> list[VideoFrame]:
        try:
            return self._codec.decode(packet)
        except Exception as error:
            if _is_about_size(error):
                self._has_huge_pictures = True
            elif isinstance(error, MemoryError):
                raise
            # One damaged packet costs its own frame only.
            self._has_decode_errors = True
            return []

    def _rgb(self, frame: VideoFrame) -> NDArray[np.uint8]:
        converted = self._reformatter.reformat(frame, format="rgb24", threads=1)
        return cast(NDArray[np.uint8], converted.to_ndarray())

    def _fault(self, fault: VideoFault) -> InvalidVideo:
        return video_fault(fault, self._limits)


def _is_about_size(error: Exception) -> bool:
    """Returns whether FFmpeg refused a picture for its size, which only its log line tells."""
    log = repr(getattr(error, "log", None))
    # The second is how its VP9 decoder puts it.
    return "max pixel count" in log or "Failed to initialize decoder for" in log
