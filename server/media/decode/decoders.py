"""One of FFmpeg's decoders: packets in, frames out, damage tolerated."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal, cast

import av
from av.codec.context import CodecContext, ThreadType
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from server.formats import codec_name
from server.media.decode.containers import ffmpeg_codecs, ffmpeg_max_pixels
from server.media.decode.packets import VideoPacket
from server.media.faults import DecodeLimits, VideoFault, video_fault

_Codec = Literal["libvpx", "libvpx-vp9"]
_PROGRESSIVE = 1
"""AV_FIELD_PROGRESSIVE; 0 means unknown, higher ones are orders of fields."""
_WITH_ALPHA: dict[str, _Codec] = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""FFmpeg's own decoders, which are faster, ignore alpha."""
_REMEMBERING = frozenset({"apng"})
"""Decoders that still lay pictures over the last one after they were flushed."""
_TELLING_PACKETS = 8
_SIZE_WORDS = re.compile(
    r"exceeds specified max pixel count"
    r"|Picture size [1-9]\d{4,}x[1-9]\d{4,} is invalid"  # beyond 32 bit whatever the limit
    r"|Failed to initialize decoder for"  # VP9
    r"|Failed to set dimensions"  # BMP
)


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
            codec = _copied(codec, _WITH_ALPHA[codec.name])
        self._limits = limits
        self._threads = threads
        self._codec = _opened(codec, limits, threads)
        self._has_errors = False

    @property
    def extradata(self) -> bytes:
        """The stream's header, which for some codecs says how packets are built."""
        return self._codec.extradata or b""

    @property
    def is_interlaced(self) -> bool:
        """Whether the stream's header says that pictures consist of two fields."""
        return self._codec.field_order > _PROGRESSIVE

    def why_nothing_came(self, packets: Sequence[VideoPacket]) -> VideoFault:
        """Returns the likely reason if these packets gave no frame."""
        if not self._has_errors:
            return "no_frames"
        if _is_refused_for_size(self._codec, self._limits, packets):
            return "video_resolution_too_large"
        return "video_decode_failed"

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
            self._empty()

    def _empty(self) -> None:
        if self.name in _REMEMBERING:
            self._codec = _opened(_copied(self._codec), self._limits, self._threads)
        else:
            self._codec.flush_buffers()

    def _feed(self, packet: VideoPacket | None) -> list[VideoFrame]:
        try:
            return self._codec.decode(packet)
        except MemoryError:
            raise
        except Exception:
            # One damaged packet costs its own frame only.
            self._has_errors = True
            return []


def _copied(codec: VideoCodecContext, name: _Codec | None = None) -> VideoCodecContext:
    """Returns a decoder for the same stream that is not open yet, by default of the same kind."""
    other = cast(VideoCodecContext, CodecContext.create(name or codec.codec, "r"))
    other.extradata = codec.extradata
    other.width, other.height = codec.width, codec.height
    other.color_range, other.colorspace = codec.color_range, codec.colorspace
    other.color_trc, other.color_primaries = codec.color_trc, codec.color_primaries
    return other


def _opened(codec: VideoCodecContext, limits: DecodeLimits, threads: int) -> VideoCodecContext:
    claimed_pixels = codec.width * codec.height  # Forgotten when opening fails.
    try:
        _open(codec, limits, threads)
    except MemoryError:
        raise
    except Exception as error:
        if claimed_pixels > limits.max_pixels:
            raise video_fault("video_resolution_too_large", limits) from error
        found = codec_name(codec.codec.canonical_name)
        raise video_fault("unsupported_codec", limits, found=found) from error
    return codec


def _open(codec: VideoCodecContext, limits: DecodeLimits, threads: int) -> None:
    codec.options = {
        "max_pixels": ffmpeg_max_pixels(limits),
        "codec_whitelist": ffmpeg_codecs(limits),
    }
    # Slice threads have crashed on truncated H.264 (PyAV issue 2344).
    codec.thread_type = ThreadType.FRAME
    codec.thread_count = threads
    codec.open(strict=False)


def _is_refused_for_size(
    codec: VideoCodecContext, limits: DecodeLimits, packets: Sequence[VideoPacket]
) -> bool:
    """Returns whether FFmpeg finds the pictures too large, which only its log tells.

    It is asked again for that. Otherwise nothing is logged: log lines wait for Python's lock, which
    can be held by who waits for the thread that logs.
    """
    level = av.logging.get_level()
    av.logging.set_level(av.logging.PANIC)
    again = _copied(codec)
    try:
        steps: list[Callable[[], object]] = [lambda: _open(again, limits, threads=1)]
        steps += [partial(again.decode, packet) for packet in packets[:_TELLING_PACKETS]]
        return any(_is_about_size(step) for step in steps)
    finally:
        av.logging.set_level(level)


def _is_about_size(step: Callable[[], object]) -> bool:
    """Returns whether a step fails with a log line about the size."""
    try:
        step()
    except Exception as error:
        return _SIZE_WORDS.search(repr(getattr(error, "log", None))) is not None
    return False
