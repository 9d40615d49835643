"""vLLM's errors and events, told in this server's words."""

from typing import Any

import pydantic_core
from pydantic import ValidationError
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.v1.engine.exceptions import EngineDeadError

from server.engine.base import JsonObject
from server.errors import (
    ContextLengthExceeded,
    EngineUnavailable,
    InternalFault,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    VideoChatError,
)

_PREFIX = "data: "
_DONE = "[DONE]"


def parsed_event(event: str) -> JsonObject | None:
    """Returns the chunk in one of vLLM's server-sent events, or None for the closing one.

    Raises:
        VideoChatError: the event reports an error.
    """
    data = event.removeprefix(_PREFIX).strip()
    if data == _DONE:
        return None
    chunk: JsonObject = pydantic_core.from_json(data)
    if "error" in chunk:
        raise reported_error(chunk["error"])
    return chunk


def raised_error(error: Exception) -> VideoChatError:
    """Returns this server's error for one that vLLM raised."""
    if isinstance(error, VideoChatError):
        return error
    if isinstance(error, EngineDeadError):
        return EngineUnavailable("The engine has stopped.")
    if isinstance(error.__cause__, OverflowError):
        return InvalidRequest("A number in the request is beyond 64 bits. Use a smaller one.")
    if isinstance(error, ValidationError):
        return _invalid_field(error)
    return reported_error(create_error_response(error).error.model_dump())


def reported_error(error: dict[str, Any]) -> VideoChatError:
    """Returns this server's error for the ``error`` object of a vLLM response."""
    status, message, param = int(error["code"]), str(error["message"]), error.get("param")
    if status == 404:
        return ModelNotFound(message, param="model")
    if status in (429, 503):
        return Overloaded("The engine's queue is full. Try again later.")
    if status >= 500:
        return InternalFault("The engine failed to answer this request.")
    if "context length" in message:
        return ContextLengthExceeded(
            f"{message} Send a shorter conversation, fewer frames (fps, num_frames), or a higher "
            "video_pruning_rate.",
            param="messages",
        )
    if "--tool-call-parser" in message:
        return InvalidRequest(
            "This server runs without a tool call parser, so the model can not be made to call "
            'tools. Leave out tool_choice, or send "none".',
            param="tool_choice",
        )
    return InvalidRequest(message, param=param)


def _invalid_field(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    path = ""
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    message = str(first["msg"]).removeprefix("Value error, ")
    return InvalidRequest(f"{path}: {message}" if path else message, param=path or None)
