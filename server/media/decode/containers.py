"""What is accepted as a video file."""

import av
from av.container import InputContainer

from server.formats import CODECS, CONTAINERS, container_name, ffmpeg_list
from server.media.faults import DecodeLimits, video_fault
from server.media.sourcefile import SourceFile

_READ_BUFFER_BYTES = 1 << 18


def ffmpeg_max_pixels(limits: DecodeLimits) -> str:
    """Returns the option's value that makes FFmpeg refuse what is surely too large.

    It counts the padding of its buffers as well; the exact limit is checked on the frame.
    """
    return str(2 * limits.max_pixels)


def ffmpeg_codecs(limits: DecodeLimits) -> str:
    """Returns the option's value that lists the decoders which may be used."""
    return ffmpeg_list(CODECS, limits.codecs)


def open_container(
    file: SourceFile, limits: DecodeLimits, *, has_holes: bool = False
) -> InputContainer:
    """Returns the container that ``file`` holds.

    Args:
        file: the encoded video.
        limits: what is accepted.
        has_holes: whether packets may read as zeros, so that nothing is to be learned from them.

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
    if has_holes:
        # Parsers would take keyframes for something else; the table says which are some.
        options["fflags"] = "noparse"
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
