"""What the OpenAPI document says about chats and files; ``docs/api.md`` says more."""

from typing import Any, get_args

from pydantic import BaseModel

from server.conversation import FrameAlignment
from server.evs.arithmetic import METHODS


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


CHAT_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A chat.completion object, or with stream: true chat.completion.chunk "
        "events that end with [DONE].",
        "content": {"application/json": {}, "text/event-stream": {}},
    },
    400: {"model": ErrorBody, "description": "A field is wrong, or a video can not be used."},
    401: {"model": ErrorBody, "description": "The API key is missing or wrong."},
    404: {"model": ErrorBody, "description": "The model or file named is not here."},
    408: {"model": ErrorBody, "description": "The body arrives too slowly."},
    413: {"model": ErrorBody, "description": "The body or a video is larger than the limit."},
    415: {"model": ErrorBody, "description": "The body is not plain JSON."},
    500: {"model": ErrorBody, "description": "A fault of the server."},
    503: {"model": ErrorBody, "description": "Overloaded, loading or stopping; see Retry-After."},
}

COUNT_RESPONSES: dict[int | str, dict[str, Any]] = {
    **CHAT_RESPONSES,
    200: {
        "description": "The number of tokens of the prompt, and of each video.",
        "content": {"application/json": {}},
    },
}

CHAT_REQUEST: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["messages"],
                "properties": {
                    "model": {"type": "string"},
                    "messages": {"type": "array", "items": {"type": "object"}, "minItems": 1},
                    "stream": {"type": "boolean"},
                    "max_completion_tokens": {"type": "integer", "minimum": 1},
                    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
                    "fps": {"type": "number", "exclusiveMinimum": 0},
                    "num_frames": {"type": "integer", "minimum": 1},
                    "min_frames": {"type": "integer", "minimum": 1},
                    "max_frames": {"type": "integer", "minimum": 1},
                    "min_pixels": {"type": "integer", "minimum": 1},
                    "max_pixels": {"type": "integer", "minimum": 1},
                    "total_pixels": {"type": "integer", "minimum": 1},
                    "start_offset": {"type": ["number", "string"], "minimum": 0},
                    "end_offset": {"type": ["number", "string"], "minimum": 0},
                    "frame_alignment": {"type": "string", "enum": list(get_args(FrameAlignment))},
                    "video_token_budget": {"type": "integer", "minimum": 1},
                    "video_pruning_rate": {
                        "type": "number",
                        "minimum": 0,
                        "exclusiveMaximum": 1,
                    },
                    "video_pruning_method": {"type": "string", "enum": list(METHODS)},
                },
            },
            "example": {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "video_url",
                                "video_url": {"url": "data:video/mp4;base64,AAAAIGZ0eXA..."},
                            },
                            {"type": "text", "text": "What happens in this video?"},
                        ],
                    }
                ],
                "video_pruning_rate": 0.75,
            },
        }
    },
}

PURPOSES = ("user_data", "vision")
"""What a file may be uploaded for."""

FILE_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "A field or parameter is wrong."},
    401: {"model": ErrorBody, "description": "The API key is missing or wrong."},
    404: {"model": ErrorBody, "description": "There is no such file of yours."},
    413: {"model": ErrorBody, "description": "The file, or all of them, are above a limit."},
    507: {"model": ErrorBody, "description": "There is no room for more files."},
}

FILE_UPLOAD: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"type": "string", "enum": list(PURPOSES)},
                    "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                    "expires_after[seconds]": {"type": "integer", "minimum": 1},
                },
            }
        }
    },
}
