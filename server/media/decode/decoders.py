"""One of FFmpeg's decoders: packets in, frames out, damage tolerated."""

from collections.abc import Iterable, Iterator
from typing import Literal

from av.codec.context import CodecContext, ThreadType
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from server.media.decode.containers import CODECS, VideoPacket, ffmpeg_max_pixels
from server.media.faults import DecodeLimits, VideoFault, video_fault

_PROGRESSIVE = 1
"""AV_FIELD_PROGRESSIVE; 0 means unknown, higher ones are orders of fields."""
_WITH_ALPHA: dict[str, Literal["libvpx", "libvpx-vp9"]] = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""FFmpeg's own decoders, which are faster, ignore alpha."""


class PictureDecoder:
    """Decodes packets of one stream. It is empty before and after each use of ``frames``."""

    def __init__(
        self,
        stream: VideoStream,
        limits: DecodeLimits,
        *,
        threads: int,
        has_alpha_packets: bool = False,
    ) -> None:
        """Open the decoder.

        Args:
            stream: whose packets will come.
            limits: the largest picture that may be decoded.
            threads: how many FFmpeg may use.
            has_alpha_packets: whether transparency is coded beside the pictures (WebM).

        Raises:
            InvalidVideo: FFmpeg refuses the stream.
        """
        codec = stream.codec_context
        self.name = codec.name
        """Name of the codec, such as ``h264``."""
        if has_alpha_packets and codec.name in _WITH_ALPHA:
            codec = _alternative(codec, _WITH_ALPHA[codec.name])
        self._codec = _opened(codec, limits, threads)
        self._has_errors = False
        self._has_huge_pictures = False

    @property
    def extradata(self) -> bytes:
        """The stream's header, which for some codecs says how packets are built."""
        return self._codec.extradata or b""

    @property
    def is_interlaced(self) -> bool:
        """Whether the stream's header says that pictures consist of two fields."""
        return self._codec.field_order > _PROGRESSIVE

    @property
    def why_nothing_came(self) -> VideoFault:
        """The likely reason if no packet gave a frame."""
        if self._has_huge_pictures:
            return "video_resolution_too_large"
        return "video_decode_failed" if self._has_errors else "no_frames"

    def frames(self, packets: Iterable[VideoPacket]) -> Iterator[tuple[int, VideoFrame]]:
        """Yields (number of packets fed so far, frame)."""
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

    def _feed(self, packet: VideoPacket | None) -> list[VideoFrame]:
        try:
            return self._codec.decode(packet)
        except Exception as error:
            if _is_about_size(error):
                self._has_huge_pictures = True
            elif isinstance(error, MemoryError):
                raise
            # One damaged packet costs its own frame only.
            self._has_errors = True
            return []


def _alternative(
    codec: VideoCodecContext, name: Literal["libvpx", "libvpx-vp9"]
) -> VideoCodecContext:
    other = CodecContext.create(name, "r")
    other.extradata = codec.extradata
    other.width, other.height = codec.width, codec.height
    other.color_range, other.colorspace = codec.color_range, codec.colorspace
    other.color_trc, other.color_primaries = codec.color_trc, codec.color_primaries
    return other


def _opened(codec: VideoCodecContext, limits: DecodeLimits, threads: int) -> VideoCodecContext:
    codec.options = {"max_pixels": ffmpeg_max_pixels(limits), "codec_whitelist": CODECS}
    # Slice threads have crashed on truncated H.264 (PyAV issue 2344).
    codec.thread_type = ThreadType.FRAME
    codec.thread_count = threads
    try:
        codec.open(strict=False)
    except MemoryError:
        raise
    except Exception as error:
        is_huge = _is_about_size(error)
        raise video_fault(
            "video_resolution_too_large" if is_huge else "unsupported_codec", limits
        ) from error
    return codec


def _is_about_size(error: Exception) -> bool:
    """Returns whether FFmpeg refused a picture for its size, which only its log line tells."""
    log = repr(getattr(error, "log", None))
    # The second is how its VP9 decoder puts it.
    return "max pixel count" in log or "Failed to initialize decoder for" in log
