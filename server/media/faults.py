"""What can be wrong with a video, in words for the client. No text of FFmpeg's ever gets out."""

from dataclasses import dataclass
from typing import Literal, get_args

from server.errors import InvalidVideo
from server.formats import CODECS, CONTAINERS, in_words

VideoFault = Literal[
    "invalid_video",
    "no_video_stream",
    "no_frames",
    "unsupported_container",
    "unsupported_codec",
    "video_decode_failed",
    "video_resolution_too_large",
    "video_too_long",
    "video_too_complex",
]
"""Closed set of reasons; it is the error's ``code``."""

VIDEO_FAULTS: tuple[VideoFault, ...] = get_args(VideoFault)


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """What one video may cost its decoder process."""

    max_pixels: int
    """Largest picture, width x height."""
    max_frames: int
    """Longest video, in frames."""
    memory_bytes: int
    """Address space that may be added to what the process starts with, frames for the model and
    the source file not counted."""
    timeout_seconds: float
    """Wall clock from the start of the process to the last frame."""
    threads: int
    """Threads that FFmpeg may use."""
    containers: tuple[str, ...] = tuple(CONTAINERS)
    """Which containers of ``server.formats`` are accepted."""
    codecs: tuple[str, ...] = tuple(CODECS)
    """Which of its codecs."""


def video_fault(
    fault: VideoFault, limits: DecodeLimits, *, found: str | None = None
) -> InvalidVideo:
    """Returns the error for ``fault``, saying what is wrong and what would be accepted.

    Args:
        fault: what is wrong.
        limits: what would be accepted.
        found: name of the container or codec that is not accepted, where it is known.
    """
    if fault == "unsupported_container":
        text = _container_text(limits, found)
    elif fault == "unsupported_codec":
        text = _codec_text(limits, found)
    else:
        text = _TEXTS[fault].format(limits=limits)
    error = InvalidVideo(text, code=fault)
    error.found = found
    return error


def _container_text(limits: DecodeLimits, found: str | None) -> str:
    if found in limits.containers:
        pictures = tuple(name for name in LIST_PICTURES if name in limits.containers)
        cure = f"Send {in_words(CONTAINERS, pictures)}" if pictures else "Send a video file"
        return f"A frame of a list is {found}, which is not accepted there. {cure}."
    what = f"The container format is {found}, which" if found else "The container format"
    return f"{what} is not accepted. Send {in_words(CONTAINERS, limits.containers)}."


def _codec_text(limits: DecodeLimits, found: str | None) -> str:
    if found in limits.codecs:
        return (
            f"The video codec is {found}, in a form that can not be decoded. Re-encode it and try "
            "again."
        )
    what = f"The video codec is {found}, which" if found else "The video codec"
    return f"{what} is not accepted. Send {in_words(CODECS, limits.codecs)}."


LIST_PICTURES = ("jpeg", "png", "webp")
"""Containers that a frame of a list of pictures may be."""

_TEXTS: dict[VideoFault, str] = {
    "invalid_video": ("The data is not a readable video file. Send a complete file."),
    "no_video_stream": "The file has no video stream. Send a file with moving pictures.",
    "no_frames": "The file has a video stream but no frame in it. Send a complete file.",
    "video_decode_failed": (
        "The video could not be decoded: its data is damaged, encrypted or not what it claims to "
        "be. Re-encode it and try again."
    ),
    "video_resolution_too_large": (
        "The picture has more than {limits.max_pixels} pixels, the limit. Send a smaller one."
    ),
    "video_too_long": (
        "The video has more than {limits.max_frames} frames, the limit. Send a shorter clip."
    ),
    "video_too_complex": (
        "Decoding the video took more than {limits.timeout_seconds:g} s or "
        "{limits.memory_bytes} bytes of memory. Send a shorter or smaller clip."
    ),
}
