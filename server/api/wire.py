"""From the body of ``POST /v1/chat/completions`` to a ``ChatRequest``: an allow-list.

Nothing that the client sent reaches the engine by reference or by default. A field is forwarded
because it is named in ``server.api.options``, ``messages`` or ``parts``.
"""

from typing import Any

from server.api.fields import check_fields
from server.api.hints import HintReader
from server.api.messages import MessageReader
from server.api.options import FORWARDED_FIELDS, ChatOptions
from server.api.parts import PartReader
from server.api.payload import parsed_object
from server.api.sources import SourceFinder
from server.api.state import ANYONE
from server.api.texts import TextGate
from server.api.validation import as_string, shown
from server.conversation import ChatRequest
from server.engine.base import ModelFacts
from server.errors import ModelNotFound
from server.settings import Settings


def parse_chat_request(
    raw: bytes, settings: Settings, facts: ModelFacts, *, owner: str = ANYONE
) -> ChatRequest:
    """Returns the chat request in the JSON body ``raw``.

    Args:
        raw: as the client sent it.
        settings: what the operator allows.
        facts: the served model.
        owner: whose request it is, and so whose uploaded files it may name.

    Raises:
        InvalidRequest: something in it is wrong; says what, where, and how to cure it.
        ModelNotFound: it names a model that is not served here.
    """
    payload = parsed_object(raw)
    check_fields(payload)
    _check_model(payload.get("model"), facts)
    options = ChatOptions.of({k: v for k, v in payload.items() if k in FORWARDED_FIELDS})
    gate = TextGate(facts.reserved_texts)
    gate.admit_json(payload.get("tools"), "tools")
    hints = HintReader(settings, facts)
    request_hints = hints.read_request(payload)
    parts = PartReader(
        gate=gate,
        sources=SourceFinder(settings.video, owner=owner),
        hints=hints,
        request_hints=request_hints,
        max_videos=settings.video.max_videos,
    )
    messages = MessageReader(gate, parts).read(payload.get("messages"))
    request_hints.require_count(len(parts.videos))
    stream_options = options.stream_options
    return ChatRequest(
        body={"model": facts.name, "messages": messages, **options.forwarded()},
        videos=tuple(parts.videos),
        stream=bool(options.stream),
        include_usage=bool(stream_options and stream_options.include_usage),
    )


def _check_model(model: Any, facts: ModelFacts) -> None:
    if model is None or model == "":
        return
    if as_string(model, "model") != facts.name:
        raise ModelNotFound(
            f"The model {shown(model)} is not served here. Use {shown(facts.name)}, or leave it "
            "out.",
            param="model",
        )
