"""What is accepted as a video file, and the packets of its moving pictures."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias, cast

import av
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.stream import VideoStream

from server.errors import InvalidVideo
from server.media.bitstreams import is_animated_webp
from server.media.faults import DecodeLimits, video_fault
from server.media.sourcefile import SourceFile

# No playlist, concat, SDP, RTSP, image2 or device demuxer: those open other resources. The demuxers
# of single pictures (..._pipe) read what they are given only.
_CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,ogg,flv,asf,gif,ivf,"
    "h264,hevc,vvc,obu,m4v,mpegvideo,apng,png_pipe,jpeg_pipe,webp_pipe,bmp_pipe"
)
CODECS = (
    "h264,hevc,vvc,vp8,vp9,libvpx,libvpx-vp9,libdav1d,av1,mpeg1video,mpeg2video,mpeg4,msmpeg4v1,"
    "msmpeg4v2,msmpeg4,h263,flv,wmv1,wmv2,wmv3,vc1,theora,mjpeg,prores,dnxhd,ffv1,gif,"
    "apng,png,webp,bmp"
)
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


def open_container(file: SourceFile, limits: DecodeLimits) -> InputContainer:
    """Returns the container that ``file`` holds.

    Raises:
        InvalidVideo: it is not one of those accepted.
    """
    # max_pixels is needed here, for the frames that opening decodes, and again for the codec.
    options = {
        "format_whitelist": _CONTAINERS,
        "codec_whitelist": CODECS,
        "protocol_whitelist": "none",
        "max_streams": "32",
        "max_pixels": ffmpeg_max_pixels(limits),
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
        raise video_fault("unsupported_container", limits) from error
    except Exception as error:
        raise video_fault("invalid_video", limits) from error


def choose_stream(
    container: InputContainer, limits: DecodeLimits
) -> tuple[VideoStream, list[VideoPacket]]:
    """Returns the stream with the moving pictures, and its packets in decode order.

    Raises:
        InvalidVideo: there is none, FFmpeg has no decoder for it, or it is too long.
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
    packets = _demux(container, decodable, limits)

    def merit(stream: VideoStream) -> tuple[bool, bool, bool, int, bool]:
        count = len(packets[stream.index])
        is_default = bool(stream.disposition & Disposition.default)
        # AVIF keeps the alpha of a sequence in a grey stream of the same length.
        is_grey = (stream.codec_context.pix_fmt or "").startswith("gray")
        return count > 0, count > 1, is_default, count, not is_grey

    chosen = max(decodable, key=merit)
    if any(is_animated_webp(memoryview(packet)) for packet in packets[chosen.index][:1]):
        raise video_fault("unsupported_codec", limits)
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
