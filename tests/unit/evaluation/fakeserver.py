"""A server of OpenAI's API over real HTTP, whose answers a test writes."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PROMPT_TEXT_TOKENS, VIDEO_TOKENS = 20, 80


@dataclass
class Reply:
    """What one request gets."""

    text: str = "?"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "no"
    ending: str = "whole"
    """``whole``, ``silent`` (the stream just ends), ``error`` (an event says so)."""


@dataclass
class Asked:
    """A chat request that came."""

    question: str
    rate: float | None
    video: str
    """The URL as it came."""

    @property
    def video_bytes(self) -> bytes:
        return base64.b64decode(self.video.partition("base64,")[2])


@dataclass
class FakeServer:
    """Answers chat requests with what ``reply`` returns for them."""

    reply: Callable[[Asked], Reply] = lambda asked: Reply()
    has_metrics: bool = True
    heeds_rates: bool = True
    model: str = "tiny"
    stage_ms: Callable[[float], dict[str, float]] = lambda rate: {
        "decode": 10.0,
        "prefill": 100 * (1 - rate),
    }
    asked: list[Asked] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    base_url: str = ""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ]
        )

    def asked_in_run(self) -> list[Asked]:
        """Returns what was asked after the probes of the rates: the first question at each."""
        return self.asked[1 + len({a.rate for a in self.asked} - {None}) :]

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        video, text = body["messages"][0]["content"]
        rate = body.get("video_pruning_rate")
        asked = Asked(text["text"], rate, video["video_url"]["url"])
        self.asked.append(asked)
        self.bodies.append(body)
        self.keys.add(request.headers["authorization"])
        reply = self.reply(asked)
        if reply.status != 200:
            error = {"message": reply.message, "type": "error", "param": None, "code": None}
            return JSONResponse({"error": error}, reply.status, reply.headers)
        return StreamingResponse(self._events(reply, rate), media_type="text/event-stream")

    async def _events(self, reply: Reply, rate: float | None) -> Any:
        for word in reply.text:
            yield _event(_chunk({"content": word}))
        if reply.ending == "error":
            yield _event({"error": {"message": "it broke", "type": "server_error"}})
            return
        if reply.ending == "whole":
            yield _event({**_chunk({}, finish="stop"), **self._metrics(rate or 0.0)})
            yield _event({**_chunk({}), "choices": [], "usage": self._usage(rate or 0.0)})
            yield b"data: [DONE]\n\n"

    def _metrics(self, rate: float) -> dict[str, Any]:
        if not self.has_metrics:
            return {}
        stages = self.stage_ms(rate)
        video = {"tokens_before": VIDEO_TOKENS, "tokens_after": self._video_tokens(rate)}
        return {
            "metrics": {
                "time_to_first_token_ms": sum(stages.values()),
                "stages_ms": stages,
                "videos": [video],
            }
        }

    def _usage(self, rate: float) -> dict[str, Any]:
        tokens = self._video_tokens(rate)
        prompt = PROMPT_TEXT_TOKENS + tokens
        details = {"cached_tokens": 16 if rate == 0 else 0, "video_tokens": tokens}
        counts = {"prompt_tokens": prompt, "completion_tokens": 1, "total_tokens": prompt + 1}
        return {**counts, "prompt_tokens_details": details}

    def _video_tokens(self, rate: float) -> int:
        return round(VIDEO_TOKENS * (1 - rate)) if self.heeds_rates else VIDEO_TOKENS


@contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """Serve on loopback, in a thread of its own."""
    config = uvicorn.Config(server.app(), port=0, ws="none", lifespan="off", log_config=None)
    uvicorn_server = uvicorn.Server(config)
    thread = threading.Thread(target=uvicorn_server.run)
    thread.start()
    while not uvicorn_server.started:
        time.sleep(0.01)
    port = uvicorn_server.servers[0].sockets[0].getsockname()[1]
    server.base_url = f"http://127.0.0.1:{port}/v1"
    try:
        yield server
    finally:
        uvicorn_server.should_exit = True
        thread.join()


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [choice],
    }


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
