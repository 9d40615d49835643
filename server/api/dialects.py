"""How the clients of other servers spell a hint, and in which object they put it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from server.api.quantities import MAX_COUNT
from server.api.validation import as_object, check_keys

Place = tuple[Mapping[str, Any], str]
"""An object that may hold hints, and its JSON path; empty for the request itself."""
Tier = tuple[Place, ...]
"""Places of which none goes before another, so that they must not contradict each other."""

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "fps": ("fps", "sample_fps"),
    "num_frames": ("num_frames", "nframes"),
    "min_frames": ("min_frames",),
    "max_frames": ("max_frames",),
    "min_pixels": ("min_pixels", "shortest_edge"),
    "max_pixels": ("max_pixels", "longest_edge"),
    "total_pixels": ("total_pixels",),
    "spatial_limit": ("spatial_limit",),
    "detail": ("detail",),
    "start_offset": ("start_offset", "startOffset"),
    "end_offset": ("end_offset", "endOffset"),
    "frame_alignment": ("frame_alignment",),
    "video_token_budget": ("video_token_budget",),
    "video_pruning_rate": ("video_pruning_rate",),
    "video_pruning_method": ("video_pruning_method",),
}
"""Every hint by its name here, and how it may be written, the name itself first."""

_METADATA_FIELDS = ("video_metadata", "videoMetadata")
_METADATA_KEYS = frozenset({"fps", *SPELLINGS["start_offset"], *SPELLINGS["end_offset"]})
_MEDIA_IO_KEYS = frozenset({"fps", "num_frames", "min_frames", "max_frames"})
_PROCESSOR_KEYS = frozenset(
    {"fps", "min_pixels", "max_pixels", "size", "video_pruning_rate", "video_pruning_method"}
)
_LIST_KEYS = ("video_pruning_rate", "video_pruning_method")
"""Of these, what may be a list with one entry for each video."""
_SIZE_KEYS = frozenset({"shortest_edge", "longest_edge"})
_VIDEO_CONFIG_KEYS = frozenset(
    {
        *("fps", "nframes", "num_frames", "min_frames", "max_frames"),
        *("min_pixels", "max_pixels", "total_pixels"),
    }
)
SIZE_PATH = "mm_processor_kwargs.size"
"""Where clients of vLLM put the limits of a Hugging Face processor."""
_ALL_FRAMES = -1
"""What clients of vLLM send in ``media_io_kwargs`` as ``num_frames``."""

HINT_FIELDS = (
    *(
        spelling
        for spellings in SPELLINGS.values()
        for spelling in spellings
        if spelling not in _SIZE_KEYS
    ),
    *_METADATA_FIELDS,
)
"""Fields that may stand on a request, on a video part, and in what the part holds."""
IDLE_FIELDS = ("processing", "cache_control")
"""Fields that clients put on a video and that change nothing here."""
REQUEST_FIELDS = ("media_io_kwargs", "mm_processor_kwargs", "video_config")
"""Objects on the request that hold hints for all of its videos."""


def video_tiers(places: Sequence[Place]) -> Iterator[Tier]:
    """Yields each place of a video, and after it the ``video_metadata`` that it holds.

    Raises:
        InvalidRequest: that is no object, or has a key that is not known.
    """
    for place in places:
        yield (place,)
        yield tuple(_metadata(*place))


def request_tiers(payload: Mapping[str, Any]) -> Iterator[Tier]:
    """Yields the places for hints on a request: itself, then the objects of other servers.

    Raises:
        InvalidRequest: one of them is no object, or has a key that is not known; names the key.
    """
    yield ((payload, ""),)
    yield (*_metadata(payload, ""), *_request_objects(payload))


def _metadata(holder: Mapping[str, Any], path: str) -> Iterator[Place]:
    for field in _METADATA_FIELDS:
        yield from _inner(holder, path, field, _METADATA_KEYS)


def _request_objects(payload: Mapping[str, Any]) -> Iterator[Place]:
    for media, path in _inner(payload, "", "media_io_kwargs", frozenset({"video"})):
        for video, video_path in _inner(media, path, "video", _MEDIA_IO_KEYS):
            asks_for_all = video.get("num_frames") == _ALL_FRAMES
            yield {**video, "num_frames": MAX_COUNT} if asks_for_all else video, video_path
    for kwargs, path in _inner(payload, "", "mm_processor_kwargs", _PROCESSOR_KEYS):
        yield {key: value for key, value in kwargs.items() if not _is_list(key, value)}, path
        yield from _inner(kwargs, path, "size", _SIZE_KEYS)
    yield from _inner(payload, "", "video_config", _VIDEO_CONFIG_KEYS)


def request_lists(payload: Mapping[str, Any]) -> Iterator[tuple[str, list[Any], str]]:
    """Yields (hint, entries, JSON path) where a request has a hint for each of its videos.

    Raises:
        InvalidRequest: as for ``request_tiers``.
    """
    for kwargs, path in _inner(payload, "", "mm_processor_kwargs", _PROCESSOR_KEYS):
        for key, value in kwargs.items():
            if _is_list(key, value):
                yield key, value, f"{path}.{key}"


def _is_list(key: str, value: Any) -> bool:
    return key in _LIST_KEYS and isinstance(value, list)


def _inner(
    holder: Mapping[str, Any], path: str, field: str, keys: frozenset[str]
) -> Iterator[Place]:
    """Yields the object in a field of ``holder``, if there is one."""
    if holder.get(field) is not None:
        inner_path = f"{path}.{field}" if path else field
        inner = as_object(holder[field], inner_path)
        check_keys(inner, keys, inner_path)
        yield inner, inner_path
