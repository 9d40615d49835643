"""The parts of a message's content: texts, and videos with their hints."""

from collections.abc import Sequence
from typing import Any

from server.api.dialects import HINT_FIELDS, IDLE_FIELDS
from server.api.hints import HintReader, VideoHints
from server.api.texts import TextGate
from server.api.validation import as_list, as_object, as_string, check_keys, shown, wrong_type
from server.conversation import VideoRequest
from server.engine.base import CLIP_URL_SCHEME, JsonObject
from server.errors import InvalidRequest

MAX_PARTS = 1024
"""Parts in one message."""
_TEXT_KEYS = frozenset({"type", "text"})
_VIDEO_KEYS = frozenset({"type", "video_url", *HINT_FIELDS, *IDLE_FIELDS})
_URL_KEYS = frozenset({"url", *HINT_FIELDS, *IDLE_FIELDS})


class PartReader:
    """Reads the content of one request's messages and collects its videos."""

    def __init__(
        self, *, gate: TextGate, hints: HintReader, request_hints: VideoHints, max_videos: int
    ) -> None:
        self._gate = gate
        self._hints = hints
        self._request_hints = request_hints
        self._max_videos = max_videos
        self.videos: list[VideoRequest] = []
        """The videos read so far, in order."""

    def read(self, content: Any, param: str, *, may_hold_videos: bool) -> str | list[JsonObject]:
        """Returns a message's content for the engine: a text, or parts with ``clip:`` URLs.

        Raises:
            InvalidRequest: the content is malformed, or has a part that is not served here.
        """
        if isinstance(content, str):
            return self._gate.admit(content, param)
        if not isinstance(content, list):
            raise wrong_type(content, "a string or a list of parts", param)
        if not 1 <= len(content) <= MAX_PARTS:
            raise InvalidRequest(
                f"{param} has {len(content)} parts; it must have 1 to {MAX_PARTS}.", param=param
            )
        parts = [
            self._part(as_object(part, f"{param}[{index}]"), f"{param}[{index}]", may_hold_videos)
            for index, part in enumerate(as_list(content, param))
        ]
        self._check_seams(parts, param)
        return parts

    def _part(self, part: JsonObject, param: str, may_hold_videos: bool) -> JsonObject:
        # vLLM's clients may leave the type of a video part out.
        kind = part.get("type", "video_url" if "video_url" in part else None)
        if kind == "text":
            check_keys(part, _TEXT_KEYS, param)
            text = as_string(part.get("text"), f"{param}.text")
            return {"type": "text", "text": self._gate.admit(text, f"{param}.text")}
        if kind != "video_url":
            raise InvalidRequest(
                f"{param}.type is {shown(kind)}; this server takes parts of type text and "
                "video_url.",
                param=f"{param}.type",
                code="unsupported_content_part",
            )
        if not may_hold_videos:
            raise InvalidRequest(
                f"{param} is a video; videos belong into messages of role user.", param=param
            )
        return self._video(part, param)

    def _video(self, part: JsonObject, param: str) -> JsonObject:
        check_keys(part, _VIDEO_KEYS, param)
        holder, holder_param = part.get("video_url"), f"{param}.video_url"
        if isinstance(holder, str):
            url, url_param, places = holder, holder_param, [(part, param)]
        else:
            holder = as_object(holder, holder_param)
            check_keys(holder, _URL_KEYS, holder_param)
            url_param = f"{holder_param}.url"
            url = as_string(holder.get("url"), url_param)
            places = [(holder, holder_param), (part, param)]
        if not url:
            raise InvalidRequest(f"{url_param} is empty.", param=url_param)
        if len(self.videos) >= self._max_videos:
            raise InvalidRequest(
                f"The request has more than {self._max_videos} videos. Send fewer.",
                param=param,
                code="too_many_videos",
            )
        wishes = self._hints.settle(self._hints.read(places).over(self._request_hints))
        self.videos.append(
            VideoRequest(
                url=url,
                param=url_param,
                sampling=wishes.sampling,
                pixels=wishes.pixels,
                token_budget=wishes.token_budget,
                pruning_rate=wishes.pruning_rate,
                pruning_method=wishes.pruning_method,
                hint_params=wishes.hint_params,
            )
        )
        return {
            "type": "video_url",
            "video_url": {"url": f"{CLIP_URL_SCHEME}{len(self.videos) - 1}"},
        }

    def _check_seams(self, parts: Sequence[JsonObject], param: str) -> None:
        """Refuse a reserved token that lies across text parts with no video between them."""
        run: list[str] = []
        for part in (*parts, {}):
            if part.get("type") == "text":
                run.append(part["text"])
            else:
                self._gate.check_seams(run, param)
                run = []
