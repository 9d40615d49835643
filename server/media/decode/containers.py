"""What is accepted as a video file, and the packets of its moving pictures."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias, cast

import av
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.stream import VideoStream

from server.errors import InvalidVideo
from server.formats import (
    CODECS,
    CONTAINERS,
    MOVING_WEBP,
    codec_name,
    container_name,
    ffmpeg_list,
)
from server.media.bitstreams import is_animated_webp
from server.media.faults import DecodeLimits, video_fault
from server.media.sourcefile import SourceFile

WITHOUT_PRESENTATION_TIMES = frozenset({"avi", "h264", "hevc", "vvc", "obu", "m4v", "mpegvideo"})
"""They number packets in decode order, which is wrong where there are B-frames, or not at all."""

_READ_BUFFER_BYTES = 1 << 18

if TYPE_CHECKING:
    VideoPacket: TypeAlias = Packet[VideoStream]
else:  # generic for type checkers only
    VideoPacket = Packet


def ffmpeg_max_pixels(limits: DecodeLimits) -> str:
    """Returns the option's value that makes FFmpeg refuse what is surely too large.

    It counts the padding of its buffers as well; the exact limit is checked on the frame.
    """
    return str(2 * limits.max_pixels)


def ffmpeg_codecs(limits: DecodeLimits) -> str:
    """Returns the option's value that lists the decoders which may be used."""
    return ffmpeg_list(CODECS, limits.codecs)


def open_container(file: SourceFile, limits: DecodeLimits) -> InputContainer:
    """Returns the container that ``file`` holds.

    Raises:
        InvalidVideo: it is not one of those accepted.
    """
    # max_pixels is needed here, for the frames that opening decodes, and again for the codec.
    options = {
        "format_whitelist": ffmpeg_list(CONTAINERS, limits.containers),
        "codec_whitelist": ffmpeg_codecs(limits),
        "protocol_whitelist": "none",
        "max_streams": "32",
        "max_pixels": ffmpeg_max_pixels(limits),
        "probesize": "5000000",
        "analyzeduration": "5000000",
    }
    try:
        return _open(file, options)
    except MemoryError:
        raise
    except av.error.ArgumentError as error:
        found = _refused_container(file.reopened(), options)
        raise video_fault("unsupported_container", limits, found=found) from error
    except Exception as error:
        raise video_fault("invalid_video", limits) from error


def _open(file: SourceFile, options: dict[str, str]) -> InputContainer:
    return av.open(
        file,
        mode="r",
        options=options,
        metadata_errors="replace",
        buffer_size=_READ_BUFFER_BYTES,
    )


def _refused_container(file: SourceFile, options: dict[str, str]) -> str | None:
    """Returns the name of a container that FFmpeg has recognised and was told not to open.

    It is asked again for that, since only its log says so.
    """
    level = av.logging.get_level()
    av.logging.set_level(av.logging.ERROR)
    try:
        with av.logging.Capture() as records:
            _open(file, options).close()
    except MemoryError:
        raise
    except Exception:
        names = [name for _, name, message in records if "not on whitelist" in message]
        return container_name(names[0]) if names else None
    finally:
        av.logging.set_level(level)
    return None


def choose_stream(
    container: InputContainer, limits: DecodeLimits
) -> tuple[VideoStream, list[VideoPacket]]:
    """Returns the stream with the moving pictures, and its packets in decode order.

    Raises:
        InvalidVideo: there is none, its codec is not accepted, or it is too long.
    """
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
    packets = _demux(container, accepted, limits)

    def merit(stream: VideoStream) -> tuple[bool, bool, bool, int, bool]:
        count = len(packets[stream.index])
        is_default = bool(stream.disposition & Disposition.default)
        # AVIF keeps the alpha of a sequence in a grey stream of the same length.
        is_grey = (stream.codec_context.pix_fmt or "").startswith("gray")
        return count > 0, count > 1, is_default, count, not is_grey

    chosen = max(accepted, key=merit)
    if any(is_animated_webp(memoryview(packet)) for packet in packets[chosen.index][:1]):
        raise video_fault("unsupported_codec", limits, found=MOVING_WEBP)
    return chosen, packets[chosen.index]


def _demux(
    container: InputContainer, streams: list[VideoStream], limits: DecodeLimits
) -> dict[int, list[VideoPacket]]:
    packets: dict[int, list[VideoPacket]] = {stream.index: [] for stream in streams}
    try:
        for packet in cast(Iterator[VideoPacket], container.demux(*streams)):
            if not packet.size:
                continue
            of_stream = packets[packet.stream_index]
            if len(of_stream) == limits.max_frames:
                raise video_fault("video_too_long", limits)
            of_stream.append(packet)
    except (MemoryError, InvalidVideo):
        raise
    except Exception as error:
        # A damaged end: what came before it can still be shown.
        if not any(packets.values()):
            raise video_fault("invalid_video", limits) from error
    return packets
