"""One question to a server that speaks OpenAI's API, and what came of it and when."""

import asyncio
import base64
import mimetypes
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import openai
from pydantic import BaseModel, ConfigDict, ValidationError

from server.evaluation.answers import Answer
from server.evaluation.questions import Item, QuestionSet
from server.evaluation.scoring import is_right

MAX_RETRIES = 8
"""Of a request that a busy server sends away."""
MAX_CONNECTION_RETRIES = 4
MAX_WAIT_SECONDS = 60.0

_BUSY = (429, 502, 503, 504)
_NONCE_BYTES = 16


class ServerGone(Exception):
    """Nobody answers at the server's address (any more)."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How questions are asked."""

    model: str
    max_tokens: int = 64
    is_cold: bool = True
    """Whether each request gets a copy of its MP4 that no cache can know."""


class _VideoMetrics(BaseModel):
    model_config = ConfigDict(extra="ignore")

    tokens_before: int | None = None
    tokens_after: int | None = None


class _Metrics(BaseModel):
    """What this server says beside an answer."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    time_to_first_token_ms: float
    stages_ms: dict[str, float] = {}
    videos: list[_VideoMetrics] = []


@dataclass(slots=True)
class _Stream:
    """What has come of a streamed answer."""

    text: str = ""
    first_text_at: float | None = None
    is_finished: bool = False
    usage: Any = None
    metrics: Any = None

    def take(self, chunk: Any) -> None:
        for choice in chunk.choices:
            delta = choice.delta
            thought = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
            if self.first_text_at is None and (delta.content or thought):
                self.first_text_at = time.monotonic()
            self.text += delta.content or ""
            self.is_finished |= choice.finish_reason is not None
        self.usage = chunk.usage or self.usage
        self.metrics = getattr(chunk, "metrics", None) or self.metrics


@dataclass(slots=True)
class Asker:
    """Asks the questions of a set, one request each; repeats those that a busy server sends away.

    A context manager that owns the client's connections.
    """

    client: openai.AsyncOpenAI
    questions: QuestionSet
    asking: Asking
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def ask(self, item: Item, rate: float | None) -> Answer:
        """Returns the answer, or the error that came instead.

        Args:
            item: what to ask.
            rate: sent as ``video_pruning_rate``; None sends none.

        Raises:
            ServerGone: nobody answers at the address.
        """
        for attempt in range(MAX_RETRIES + 1):
            try:
                answer = await self._once(item, rate)
                return answer.model_copy(update={"num_retries": attempt})
            except openai.APITimeoutError:
                return _failed(item, rate, "no answer came in time")
            except (openai.APIConnectionError, openai.APIStatusError) as error:
                wait_seconds = _wait_seconds(error, attempt)
                if wait_seconds is not None:
                    await self.sleep(wait_seconds)
                elif isinstance(error, openai.APIStatusError):
                    told = _failed(item, rate, error.message, error.status_code)
                    return told.model_copy(update={"num_retries": attempt})
                else:
                    raise ServerGone(str(error.__cause__ or error)) from error
            except OSError as error:
                return _failed(item, rate, f"can not read the video: {error}")
            except (openai.APIError, ValueError, TypeError, AttributeError) as error:
                return _failed(item, rate, f"the answer is none of OpenAI's API: {error}")
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, item: Item, rate: float | None) -> Answer:
        url, is_cold = video_url(item, self.questions, is_cold=self.asking.is_cold)
        content: Any = [
            {"type": "video_url", "video_url": {"url": url}},
            {"type": "text", "text": item.question},
        ]
        messages: Any = [{"role": "user", "content": content}]
        sent_at = time.monotonic()
        chunks = await self.client.chat.completions.create(
            model=self.asking.model,
            messages=messages,
            max_tokens=self.asking.max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=None if rate is None else {"video_pruning_rate": rate},
        )
        stream = _Stream()
        try:
            async with chunks:
                async for chunk in chunks:
                    stream.take(chunk)
        except openai.APITimeoutError:
            raise
        except openai.APIError as error:
            # Not raised on: a stream that breaks is this answer's fault, not the end of the server.
            return _failed(item, rate, f"the answer broke off: {error.message}")
        if not stream.is_finished:
            return _failed(item, rate, "the answer broke off: the stream ended before it did")
        return _answer(item, rate, stream, sent_at).model_copy(update={"is_cold": is_cold})


def video_url(item: Item, questions: QuestionSet, *, is_cold: bool) -> tuple[str, bool]:
    """Returns the URL to send for an item's video, and whether no cache can know its bytes."""
    path = questions.video_path(item)
    if path is None:
        return item.video, False
    content = path.read_bytes()
    is_cold = is_cold and content[4:8] == b"ftyp"
    if is_cold:
        content += free_box(secrets.token_bytes(_NONCE_BYTES))
    return f"data:{_media_type(path)};base64,{base64.b64encode(content).decode()}", is_cold


def free_box(payload: bytes) -> bytes:
    """Returns a box of an MP4 file that every reader skips."""
    return (8 + len(payload)).to_bytes(4, "big") + b"free" + payload


def _media_type(path: Path) -> str:
    return mimetypes.guess_type(path.name)[0] or "video/mp4"


def _answer(item: Item, rate: float | None, stream: _Stream, sent_at: float) -> Answer:
    details = getattr(stream.usage, "prompt_tokens_details", None)
    metrics = _server_metrics(stream.metrics)
    videos = metrics.videos if metrics else []
    first_text_at = stream.first_text_at
    return Answer(
        id=item.id,
        rate=rate,
        kind=item.kind,
        text=stream.text,
        is_right=is_right(item, stream.text),
        time_to_first_token_ms=metrics.time_to_first_token_ms if metrics else None,
        stages_ms=metrics.stages_ms if metrics else {},
        client_time_to_first_token_ms=None
        if first_text_at is None
        else 1000 * (first_text_at - sent_at),
        prompt_tokens=getattr(stream.usage, "prompt_tokens", None),
        cached_tokens=getattr(details, "cached_tokens", None),
        video_tokens=_total([video.tokens_after for video in videos])
        or getattr(details, "video_tokens", None),
        video_tokens_before=_total([video.tokens_before for video in videos]),
    )


def _server_metrics(told: Any) -> _Metrics | None:
    try:
        return _Metrics.model_validate(told)
    except ValidationError:
        return None  # another server's, which mean something else


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _failed(item: Item, rate: float | None, error: str, status: int | None = None) -> Answer:
    return Answer(id=item.id, rate=rate, kind=item.kind, error=error, status=status)


def _wait_seconds(error: openai.APIError, attempt: int) -> float | None:
    """Returns how long to wait before asking again, None if there is no use in it."""
    backoff = min(MAX_WAIT_SECONDS, 0.5 * (1 << attempt))
    if not isinstance(error, openai.APIStatusError):
        return backoff if attempt < MAX_CONNECTION_RETRIES else None
    headers = error.response.headers
    is_lasting = error.status_code not in _BUSY or headers.get("x-should-retry") == "false"
    if is_lasting or attempt == MAX_RETRIES:
        return None
    try:
        return min(MAX_WAIT_SECONDS, max(0.0, float(headers["retry-after"])))
    except (KeyError, ValueError):
        return backoff
