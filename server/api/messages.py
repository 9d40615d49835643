"""The messages of a chat request, rebuilt key by key for the engine."""

import contextlib
import json
from typing import Any

from server.api.dialects import HINT_FIELDS
from server.api.parts import PartReader
from server.api.texts import TextGate
from server.api.validation import (
    as_list,
    as_object,
    as_string,
    check_keys,
    shown,
    wrong_type,
)
from server.engine.base import JsonObject
from server.errors import InvalidRequest

MAX_MESSAGES = 512
MAX_TOOL_CALLS = 128
"""Tool calls in one message."""

_COMMON_KEYS = frozenset({"role", "content", "name"})
# Clients send back the assistant message that they got, whole.
_ECHOED_KEYS = frozenset({"audio", "annotations", "function_call"})
_KEYS_BY_ROLE = {
    "system": _COMMON_KEYS,
    "developer": _COMMON_KEYS,
    "user": _COMMON_KEYS,
    "assistant": _COMMON_KEYS
    | _ECHOED_KEYS
    | {"tool_calls", "reasoning", "reasoning_content", "refusal"},
    "tool": _COMMON_KEYS | {"tool_call_id"},
}


class MessageReader:
    """Reads the messages of one request."""

    def __init__(self, gate: TextGate, parts: PartReader) -> None:
        self._gate = gate
        self._parts = parts

    def read(self, messages: Any) -> list[JsonObject]:
        """Returns new messages that hold only what this server knows.

        Raises:
            InvalidRequest: a message is malformed.
        """
        messages = as_list(messages, "messages")
        if not 1 <= len(messages) <= MAX_MESSAGES:
            raise InvalidRequest(
                f"messages has {len(messages)} entries; it must have 1 to {MAX_MESSAGES}.",
                param="messages",
            )
        return [
            self._message(as_object(message, f"messages[{index}]"), f"messages[{index}]")
            for index, message in enumerate(messages)
        ]

    def _message(self, message: JsonObject, path: str) -> JsonObject:
        role = message.get("role")
        if not isinstance(role, str) or role not in _KEYS_BY_ROLE:
            raise InvalidRequest(
                f"{path}.role is {shown(role)}; it must be one of {', '.join(_KEYS_BY_ROLE)}.",
                param=f"{path}.role",
            )
        check_keys(message, _KEYS_BY_ROLE[role], path, of_videos=HINT_FIELDS)
        rebuilt: JsonObject = {"role": role, **self._texts(message, path, ("name",))}
        if role == "assistant":
            return {**rebuilt, **self._assistant(message, path)}
        if role == "tool":
            call_id = as_string(message.get("tool_call_id"), f"{path}.tool_call_id")
            rebuilt["tool_call_id"] = self._gate.admit(call_id, f"{path}.tool_call_id")
        rebuilt["content"] = self._parts.read(
            message.get("content"), f"{path}.content", may_hold_videos=role == "user"
        )
        return rebuilt

    def _assistant(self, message: JsonObject, path: str) -> JsonObject:
        for key in _ECHOED_KEYS:
            if message.get(key):
                raise InvalidRequest(
                    f"{path}.{key} is not accepted by this server. Leave it out.",
                    param=f"{path}.{key}",
                    code="unsupported_field",
                )
        rebuilt: JsonObject = {}
        said = self._texts(message, path, ("reasoning", "reasoning_content", "refusal"))
        reasoning = said.get("reasoning") or said.get("reasoning_content")
        if reasoning is not None:
            rebuilt["reasoning"] = reasoning
        calls = message.get("tool_calls")
        if calls:
            rebuilt["tool_calls"] = self._tool_calls(calls, f"{path}.tool_calls")
        content = message.get("content")
        if content is not None:
            content = self._parts.read(content, f"{path}.content", may_hold_videos=False)
        elif "refusal" in said:
            content = said["refusal"]
        elif not calls:
            raise wrong_type(content, "a string, as there are no tool_calls", f"{path}.content")
        return {**rebuilt, "content": content}

    def _texts(self, message: JsonObject, path: str, keys: tuple[str, ...]) -> dict[str, str]:
        """Returns those of the optional texts that are there."""
        return {
            key: self._gate.admit(as_string(message[key], f"{path}.{key}"), f"{path}.{key}")
            for key in keys
            if message.get(key) is not None
        }

    def _tool_calls(self, calls: Any, path: str) -> list[JsonObject]:
        if len(as_list(calls, path)) > MAX_TOOL_CALLS:
            raise InvalidRequest(f"{path} has more than {MAX_TOOL_CALLS} entries.", param=path)
        return [self._tool_call(call, f"{path}[{index}]") for index, call in enumerate(calls)]

    def _tool_call(self, call: Any, path: str) -> JsonObject:
        # "index" comes from clients that put a call together out of a stream's chunks.
        check_keys(as_object(call, path), ("id", "type", "function", "index"), path)
        if call.get("type", "function") != "function":
            raise InvalidRequest(f"{path}.type must be function.", param=f"{path}.type")
        function = as_object(call.get("function"), f"{path}.function")
        check_keys(function, ("name", "arguments"), f"{path}.function")
        arguments = self._arguments(function.get("arguments"), f"{path}.function.arguments")
        return {
            "id": self._admitted(call.get("id"), f"{path}.id"),
            "type": "function",
            "function": {
                "name": self._admitted(function.get("name"), f"{path}.function.name"),
                "arguments": arguments,
            },
        }

    def _arguments(self, value: Any, path: str) -> str:
        """Returns a call's arguments, JSON in a string, which the template may see unescaped."""
        arguments = self._admitted("" if value is None else value, path)
        with contextlib.suppress(ValueError, RecursionError):
            self._gate.admit_json(json.loads(arguments), path)
        return arguments

    def _admitted(self, value: Any, param: str) -> str:
        return self._gate.admit(as_string(value, param), param)
