"""What can be wrong with a video, in words for the client. No text of FFmpeg's ever gets out."""

from dataclasses import dataclass
from typing import Literal, get_args

from server.errors import InvalidVideo

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


def video_fault(fault: VideoFault, limits: DecodeLimits) -> InvalidVideo:
    """Returns the error for ``fault``, saying what is wrong and what would be accepted."""
    return InvalidVideo(_TEXTS[fault].format(limits=limits), code=fault)


_TEXTS: dict[VideoFault, str] = {
    "invalid_video": (
        "The data is not a readable video file. Send a complete MP4, WebM, MKV or MOV file."
    ),
    "no_video_stream": "The file has no video stream. Send a file with moving pictures.",
    "no_frames": "The file has a video stream but no frame in it. Send a complete file.",
    "unsupported_container": (
        "The container format is not accepted. Send MP4, MOV, WebM, MKV, AVI, MPEG-TS, MPEG-PS, "
        "Ogg, FLV, ASF/WMV, GIF or APNG."
    ),
    "unsupported_codec": ("The video codec is not accepted. Send H.264, HEVC, VP8, VP9 or AV1."),
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
