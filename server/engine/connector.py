"""The media connector that keeps vLLM from ever fetching or decoding what a client named.

vLLM resolves media URLs through a registry of connectors. Ours knows one kind of URL, ``clip:<i>``,
and answers with the i-th clip that the pipeline has prepared for the request being rendered.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector, MediaWithBytes

from server.engine.base import CLIP_URL_SCHEME
from server.engine.environment import CONNECTOR_NAME
from server.media.clip import VideoClip

_clips: ContextVar[Sequence[VideoClip]] = ContextVar("clips", default=())

_CLOCK_HZ = 1000
"""Frames are numbered in milliseconds, so that the processor's ``index / fps`` gives their times
and ``len(indices) / total * fps`` gives the rate at which they were sampled, for any frame rate."""


@contextmanager
def offering(clips: Sequence[VideoClip]) -> Iterator[None]:
    """Let ``clip:<i>`` URLs of the request rendered inside stand for ``clips``."""
    token = _clips.set(clips)
    try:
        yield
    finally:
        _clips.reset(token)


@MEDIA_CONNECTOR_REGISTRY.register(CONNECTOR_NAME)
class ClipConnector(MediaConnector):
    """Hands over prepared clips; has no way to reach a network or a file."""

    def fetch_video(self, video_url: str, **_: Any) -> MediaWithBytes[Any]:
        """Returns frames and metadata, with the clip's content key as what vLLM hashes."""
        clips = _clips.get()
        index = video_url.removeprefix(CLIP_URL_SCHEME)
        if not video_url.startswith(CLIP_URL_SCHEME) or not index.isdecimal():
            raise VLLMValidationError("only prepared clips are accepted", parameter="messages")
        clip = clips[int(index)]
        return MediaWithBytes((clip.frames, _metadata(clip)), clip.content_key)

    async def fetch_video_async(self, video_url: str, **_: Any) -> MediaWithBytes[Any]:
        """As ``fetch_video``; nothing in it waits."""
        return self.fetch_video(video_url)

    def load_from_url(self, url: str, *_: Any, **__: Any) -> Any:
        """Refuse: every other kind of media."""
        raise VLLMValidationError("only videos are accepted", parameter="messages")

    async def load_from_url_async(self, url: str, *_: Any, **__: Any) -> Any:
        """Refuse: every other kind of media."""
        return self.load_from_url(url)


def _metadata(clip: VideoClip) -> dict[str, Any]:
    return {
        "fps": float(_CLOCK_HZ),
        "duration": clip.duration_seconds,
        "total_num_frames": max(1, round(clip.duration_seconds * _CLOCK_HZ)),
        "frames_indices": [round(t * _CLOCK_HZ) for t in clip.timestamps_seconds],
        "video_backend": "pyav",
        "do_sample_frames": False,
    }
