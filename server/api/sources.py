"""Where a content part says that its video is, in the shapes that clients of many servers send.

::

    {"type": "video_url",   "video_url":   {"url": ...} | "..."}
    {"type": "video",       "video":       "..." | ["...", ...]}
    {"type": "input_video", "input_video": {"url": ...} | {"data": ...} | "..."}
    {"type": "input_video", "video_url":   {"url": ...} | "..."}
    {"type": "file",        "file":        {"file_data": ..., "filename": ...} | {"file_id": ...}}
    {"type": "video_url",   "video_url":   {"file_id": ...}}
    {"type": "video_url",   "file_id":     ...}
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from server.api.dialects import HINT_FIELDS, IDLE_FIELDS, Place
from server.api.validation import as_string, check_keys, shown, wrong_type
from server.conversation import (
    Base64Source,
    FrameListSource,
    MediaSource,
    SamplingWish,
    UploadSource,
    UrlSource,
)
from server.engine.base import JsonObject
from server.errors import InvalidRequest
from server.settings import VideoSettings

_HOLDERS: Mapping[str, tuple[str, ...]] = {
    "video_url": ("video_url", "file_id"),
    "video": ("video",),
    "input_video": ("input_video", "video_url"),
    "file": ("file",),
}
"""Per type of part the fields of which one holds the video."""
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "video_url": ("url", "file_id"),
    "video": ("url",),
    "input_video": ("url", "data"),
    "file": ("file_id", "file_data"),
}
"""Per field, if its value is an object, the keys of which one says where the video is."""
_VALUES: Mapping[str, str] = {
    "video_url": "a string or an object",
    "video": "a string, an object or a list of strings",
    "input_video": "a string or an object",
    "file": "an object",
}
"""Per field what its value may be."""
_COMMON_KEYS = frozenset({"type", "uuid", *HINT_FIELDS, *IDLE_FIELDS})
_MAX_UUID_CHARACTERS = 256
_MAX_LIST_HEADER_CHARACTERS = 256
_LIST_HEADER = re.compile(r"data:\s*video/jpeg\s*(;[^,]*)?;\s*base64\s*,", re.IGNORECASE)
"""How a data: URL begins that holds not a file but frames, each in base64, with commas between."""
_MIN_LIST_FPS = 1e-5
"""About one frame a day."""

VIDEO_PART_TYPES = tuple(_HOLDERS)
"""Values of ``type`` that announce a video."""


@dataclass(frozen=True, slots=True)
class FoundSource:
    """What a part says about its video."""

    source: MediaSource
    """Where the video is."""
    param: str
    """JSON path of that."""
    places: tuple[Place, ...]
    """Where hints for the video may lie, innermost first."""


class SourceFinder:
    """Finds the sources of one request's videos."""

    def __init__(self, settings: VideoSettings, *, owner: str) -> None:
        self._owner = owner
        self._max_pictures = settings.max_list_frames
        self._default_fps = settings.default_fps

    def find(self, part: JsonObject, kind: str, param: str) -> FoundSource:
        """Returns the source in a part.

        Args:
            part: as the client sent it.
            kind: its type, one of ``VIDEO_PART_TYPES``.
            param: its JSON path.

        Raises:
            InvalidRequest: the part names no source, several, or one that is malformed.
        """
        holders = _HOLDERS[kind]
        check_keys(part, _COMMON_KEYS.union(holders), param)
        _check_uuid(part, param)
        field, field_param = _only(part, holders, param)
        value = part[field]
        if field == "video" and isinstance(value, list):
            return FoundSource(self._by_urls(value, field_param), field_param, ((part, param),))
        if field == "file_id":
            return FoundSource(self._by_id(value, field_param), field_param, ((part, param),))
        if isinstance(value, str) and field != "file":
            return FoundSource(self._by_url(value, field_param), field_param, ((part, param),))
        if not isinstance(value, dict):
            raise wrong_type(value, _VALUES[field], field_param)
        holder: JsonObject = value
        return FoundSource(
            *self._in(holder, field, field_param), ((holder, field_param), (part, param))
        )

    def _in(self, holder: JsonObject, field: str, param: str) -> tuple[MediaSource, str]:
        """Returns the source in an object, and its path."""
        options = _OPTIONS[field]
        ignored = {"filename"} if field == "file" else set()
        check_keys(holder, {*options, *ignored, *HINT_FIELDS, *IDLE_FIELDS}, param)
        option, option_param = _only(holder, options, param)
        text = as_string(holder[option], option_param)
        readers = {"url": self._by_url, "file_id": self._by_id}
        return readers.get(option, self._by_data)(text, option_param), option_param

    def _by_id(self, file_id: Any, param: str) -> MediaSource:
        _require_text(as_string(file_id, param), param)
        return UploadSource(file_id, self._owner)

    def _by_url(self, url: str, param: str) -> MediaSource:
        _require_text(url, param)
        comma = url.find(",", 0, _MAX_LIST_HEADER_CHARACTERS)
        if _LIST_HEADER.fullmatch(url[: comma + 1]):
            self._check_count(url.count(",", comma + 1) + 1, param)
            texts = url[comma + 1 :].split(",")
            if not all(texts):
                raise InvalidRequest(f"{param} has an empty frame. Leave it out.", param=param)
            return self._frames(tuple(map(Base64Source, texts)))
        return UrlSource(url)

    def _by_data(self, text: str, param: str) -> MediaSource:
        """Returns the source for what may be a data: URL or base64 alone."""
        _require_text(text, param)
        is_url = text[:5].lower() == "data:"
        return self._by_url(text, param) if is_url else Base64Source(text)

    def _by_urls(self, urls: list[Any], param: str) -> MediaSource:
        self._check_count(len(urls), param)
        for index, url in enumerate(urls):
            _require_text(as_string(url, f"{param}[{index}]"), f"{param}[{index}]")
        return self._frames(tuple(map(UrlSource, urls)))

    def _check_count(self, count: int, param: str) -> None:
        if not 1 <= count <= self._max_pictures:
            cure = "Send fewer, or a video file." if count else "Send a URL for each."
            raise InvalidRequest(
                f"{param} has {count} frames; it must have 1 to {self._max_pictures}. {cure}",
                param=param,
            )

    def _frames(self, pictures: tuple[UrlSource | Base64Source, ...]) -> FrameListSource:
        return FrameListSource(pictures, self._default_fps)


def dated(
    source: MediaSource, sampling: SamplingWish, param: str
) -> tuple[MediaSource, SamplingWish]:
    """Returns the source and the wish, so that ``fps`` dates the frames of a list.

    All of its frames are wanted then, unless the client names a number. Other sources stay as they
    are.

    Raises:
        InvalidRequest: the frames of the list would be years apart; names ``param``, the path of
            what dates them.
    """
    if not isinstance(source, FrameListSource):
        return source, sampling
    fps = source.fps if sampling.fps is None else sampling.fps
    if fps < _MIN_LIST_FPS:
        raise InvalidRequest(
            f"fps must be at least {_MIN_LIST_FPS:.5f} for a list of frames: it says how many of "
            "them there are in a second.",
            param=param,
        )
    count = len(source.pictures)
    wish = replace(sampling, fps=None, num_frames=min(sampling.num_frames or count, count))
    return replace(source, fps=fps), wish


def _check_uuid(part: JsonObject, param: str) -> None:
    """Check the name by which vLLM's clients would find a video again; it means nothing here.

    As a cache key it would let one client choose what another one's video is.
    """
    uuid = part.get("uuid")
    if uuid is not None and len(as_string(uuid, f"{param}.uuid")) > _MAX_UUID_CHARACTERS:
        raise InvalidRequest(
            f"{param}.uuid has more than {_MAX_UUID_CHARACTERS} characters. Leave it out.",
            param=f"{param}.uuid",
        )


def _only(holder: JsonObject, keys: Collection[str], param: str) -> tuple[str, str]:
    """Returns the one of ``keys`` that is given, and its path."""
    given = [key for key in keys if holder.get(key) is not None]
    if len(given) > 1:
        raise InvalidRequest(
            f"{param} has {' and '.join(given)}; give one of them.", param=f"{param}.{given[1]}"
        )
    if not given:
        # The one that is there and null is the one that the client means.
        first, *others = sorted(keys, key=lambda key: key not in holder)
        instead = "".join(f", or give {other}" for other in others)
        raise wrong_type(None, f"where the video is{instead}", f"{param}.{first}")
    return given[0], f"{param}.{given[0]}"


def _require_text(text: str, param: str) -> None:
    if not text:
        raise InvalidRequest(f"{param} is empty.", param=param)


def type_of(part: JsonObject) -> Any:
    """Returns the type of a part. vLLM's clients may leave that of a video out."""
    return part.get("type", "video_url" if "video_url" in part else None)


def unsupported(kind: object, param: str) -> InvalidRequest:
    """Returns the error for a part of a type that is not served."""
    return InvalidRequest(
        f"{param}.type is {shown(kind)}; this server takes parts of type text, "
        f"{', '.join(VIDEO_PART_TYPES[:-1])} and {VIDEO_PART_TYPES[-1]}.",
        param=f"{param}.type",
        code="unsupported_content_part",
    )
