"""Where a content part says that its video is, in the shapes that clients of many servers send.

::

    {"type": "video_url",   "video_url":   {"url": ...} | "..."}
    {"type": "video",       "video":       "..."}
    {"type": "input_video", "input_video": {"url": ...} | {"data": ...} | "..."}
    {"type": "input_video", "video_url":   {"url": ...} | "..."}
    {"type": "file",        "file":        {"file_data": ..., "filename": ...}}
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from server.api.hints import HINT_FIELDS, Place
from server.api.validation import as_object, as_string, check_keys, shown, wrong_type
from server.conversation import Base64Source, MediaSource, UrlSource
from server.engine.base import JsonObject
from server.errors import InvalidRequest

_HOLDERS: Mapping[str, tuple[str, ...]] = {
    "video_url": ("video_url",),
    "video": ("video",),
    "input_video": ("input_video", "video_url"),
    "file": ("file",),
}
"""Per type of part the fields of which one holds the video."""
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "video_url": ("url",),
    "video": ("url",),
    "input_video": ("url", "data"),
    "file": ("file_data",),
}
"""Per field, if its value is an object, the keys of which one says where the video is."""
_COMMON_KEYS = frozenset({"type", "uuid", *HINT_FIELDS})
_MAX_UUID_CHARACTERS = 256

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


def find_source(part: JsonObject, kind: str, param: str) -> FoundSource:
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
    field, param_of_field = _only(part, holders, param)
    value = part[field]
    if isinstance(value, str) and field != "file":
        return FoundSource(_by_url(value, param_of_field), param_of_field, ((part, param),))
    holder = as_object(value, param_of_field)
    options = _OPTIONS[field]
    ignored = {"filename"} if field == "file" else set()
    check_keys(holder, {*options, *ignored, *HINT_FIELDS}, param_of_field)
    option, param_of_option = _only(holder, options, param_of_field)
    text = as_string(holder[option], param_of_option)
    read = _by_url if option == "url" else _by_data
    return FoundSource(
        read(text, param_of_option), param_of_option, ((holder, param_of_field), (part, param))
    )


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
        first, *others = keys
        instead = "".join(f", or give {other}" for other in others)
        raise wrong_type(None, f"where the video is{instead}", f"{param}.{first}")
    return given[0], f"{param}.{given[0]}"


def _by_url(url: str, param: str) -> MediaSource:
    _require_text(url, param)
    return UrlSource(url)


def _by_data(text: str, param: str) -> MediaSource:
    """Returns the source for what may be a data: URL or base64 alone."""
    _require_text(text, param)
    return UrlSource(text) if text[:5].lower() == "data:" else Base64Source(text)


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
