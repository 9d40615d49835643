"""``POST /v1/chat/completions``, and what a request to it would cost."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.api.disconnect import until_disconnect
from server.api.documentation import CHAT_REQUEST, CHAT_RESPONSES, COUNT_RESPONSES
from server.api.errors import JsonResponse
from server.api.middleware import CHAT_PATH, COUNT_PATH
from server.api.payload import require_json
from server.api.protocol import first_byte_at
from server.api.sse import ChunkFeed, EventStream
from server.api.state import engine_of, owner_of, pipeline_of, require_running, settings_of
from server.api.wire import parse_chat_request
from server.conversation import ChatRequest
from server.pieces import joined
from server.timing import Stopwatch

router = APIRouter()


@router.post(
    CHAT_PATH,
    response_class=Response,
    responses=CHAT_RESPONSES,
    openapi_extra={"requestBody": CHAT_REQUEST},
)
async def create_chat_completion(request: Request) -> Response:
    """Answers a conversation about videos, as one JSON object or as server-sent events."""
    watch = Stopwatch(first_byte_at(request.scope))
    chat = await _received(request, watch)
    if chat.stream:
        return await _stream(request, chat, watch)
    answer = await until_disconnect(request.receive, pipeline_of(request).complete(chat, watch))
    return JsonResponse(answer)


@router.post(
    COUNT_PATH,
    response_class=Response,
    responses=COUNT_RESPONSES,
    openapi_extra={"requestBody": CHAT_REQUEST},
)
async def count_input_tokens(request: Request) -> Response:
    """Returns how many tokens the prompt of a chat request would have, without running it."""
    watch = Stopwatch(first_byte_at(request.scope))
    chat = await _received(request, watch)
    answer = await until_disconnect(request.receive, pipeline_of(request).count(chat))
    return JsonResponse(answer)


async def _received(request: Request, watch: Stopwatch) -> ChatRequest:
    """Returns the request's body, checked. The bytes are not kept: they may hold a video."""
    require_running(request)
    require_json(request.headers)
    facts = engine_of(request).facts
    raw = await joined([chunk async for chunk in request.stream()])
    watch.end("receive")
    return parse_chat_request(raw, settings_of(request), facts, owner=owner_of(request))


async def _stream(request: Request, chat: ChatRequest, watch: Stopwatch) -> Response:
    """Returns the response once the stream has begun well, or has been silent for long.

    Until then an error still gets its own HTTP status.
    """
    comment_seconds = settings_of(request).http.keep_alive_comment_seconds
    feed = ChunkFeed(pipeline_of(request).stream(chat, watch))
    try:
        first: Any = await until_disconnect(request.receive, feed.next(comment_seconds))
    except BaseException:
        await feed.aclose()
        raise
    return EventStream(feed, first=first, comment_seconds=comment_seconds)
