"""Settings of the way from bytes to frames."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from server.formats import CODECS, CONTAINERS, Format
from server.settings.groups import Group, require_order

_HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?")


def _check_host_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name of a host; write it in lower case and ASCII, without a port, "
                "or as *.example.com"
            )
    return names


def _choice_of(
    formats: Mapping[str, Format], kind: str
) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    def check(names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in formats:
                raise ValueError(
                    f"{name[:40]!r} is no {kind} that can be accepted; choose from "
                    f"{', '.join(formats)}"
                )
        if not names:
            raise ValueError(f"without a {kind} no video is accepted; name at least one")
        return names

    return check


Containers = Annotated[
    tuple[str, ...], Field(strict=False), AfterValidator(_choice_of(CONTAINERS, "container"))
]
Codecs = Annotated[
    tuple[str, ...], Field(strict=False), AfterValidator(_choice_of(CODECS, "codec"))
]
HostNames = Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_check_host_names)]


class VideoSettings(Group):
    """How a video is fetched, sampled and decoded. Clients choose within the caps given here."""

    default_fps: float = Field(default=2.0, gt=0, le=60)
    """Frames per second sampled when the request says nothing."""
    max_fps: float = Field(default=30.0, gt=0, le=240)
    """Highest sampling rate a request may ask for; more is clamped to it."""
    min_frames: int = Field(default=4, ge=1)
    """Fewest frames sampled at a rate, where there are as many; num_frames may ask for fewer."""
    max_frames: int = Field(default=256, ge=1)
    """Most frames sampled from one video, whatever the request asks for."""
    max_model_pixels_per_frame: int | None = Field(default=None, ge=1)
    """Most pixels (width x height) of a frame as the model gets it, as far as the model allows so
    few; null leaves it to the model. More is clamped to it."""
    max_model_pixels_per_video: int | None = Field(default=None, ge=1)
    """The same for all frames of a video together."""
    max_videos: int = Field(default=4, ge=1)
    """Videos in one request. Above it: 400."""
    max_video_bytes: int = Field(default=100_000_000, ge=1)
    """Largest encoded video. Above it: 413."""
    range_threshold_bytes: int | None = Field(default=16_777_216, ge=0)
    """MP4 and MOV files of URLs that are larger are read by range where their origin allows it:
    only what the frames need. null always reads all."""
    max_ranged_video_bytes: int = Field(default=10_000_000_000, ge=1)
    """Largest file that is read by range; what is read of it keeps to max_video_bytes. Above
    either: 413."""
    max_list_frames: int = Field(default=1024, ge=1)
    """Frames in a video that is sent as a list of pictures. Above it: 400."""
    max_picture_bytes: int = Field(default=20_000_000, ge=1)
    """Largest picture in such a list, all of which together are a video. Above it: 413."""
    max_pixels_per_frame: int = Field(default=16_777_216, ge=1)
    """Largest picture (width x height) that is decoded. Above it: 400."""
    max_source_frames: int = Field(default=108_000, ge=1)
    """Longest video, in frames (108 000 is an hour at 30 fps). Above it: 400."""
    containers: Containers = tuple(CONTAINERS)
    """Container formats that are accepted, of those in the default; ``mp4`` is MOV too,
    ``matroska`` WebM. Frames of a list are ``jpeg``, ``png`` or ``webp``. Others: 400."""
    codecs: Codecs = tuple(CODECS)
    """Video codecs that are accepted, of those in the default, by FFmpeg's names. Others: 400."""
    allow_urls: bool = True
    """Whether http(s) URLs are fetched. data: URLs always work."""
    allow_private_addresses: bool = False
    """Whether URLs may lead to loopback, private or special addresses and to any port."""
    allowed_hosts: HostNames = ()
    """Hosts that URLs may lead to, redirects included, also as *.example.com; none means any."""
    local_directory: str | None = Field(default=None, pattern="^/")
    """Directory below which file: URLs are read; without it they are refused. Absolute."""
    fetch_timeout_seconds: float = Field(default=30.0, gt=0)
    """Total time to retrieve one URL, redirects included."""
    max_downloads_per_host: int = Field(default=16, ge=1)
    """Downloads from one host at once. Others wait, as long as the time for their URL lasts."""
    decode_timeout_seconds: float = Field(default=60.0, gt=0)
    """Wall clock for one video in its decoder process, which is killed after it."""
    decode_memory_bytes: int = Field(default=2_000_000_000, ge=100_000_000)
    """Memory one decoder process may add to what it starts with."""
    max_concurrent_decodes: int = Field(default=0, ge=0)
    """Decoder processes at once; 0 means one per CPU core."""
    max_queued_decodes: int = Field(default=64, ge=0)
    """Videos that may wait for a decoder process. Above it: 503 with Retry-After, before the body
    of a request is read; clients that send many make room for those that send few."""
    queue_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long a video may wait for a decoder process. After it: 503 with Retry-After."""
    download_cache_bytes: int = Field(default=256_000_000, ge=0)
    """Memory for videos of URLs, used again after their origin has said that they still hold; 0 is
    none. What an origin calls private or no-store is not kept."""
    clip_cache_bytes: int = Field(default=512_000_000, ge=0)
    """Memory for decoded clips, so that the next question about one is not decoded; 0 is none."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        require_order("min_frames", self.min_frames, "max_frames", self.max_frames)
        require_order("default_fps", self.default_fps, "max_fps", self.max_fps)
        return self
