"""The real ``openai`` client against real HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from server.errors import EngineUnavailable, InvalidVideo, VideoUnreachable
from tests.unit.api.stubs import StubPipeline, build_app, serving

VIDEO: Any = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
MESSAGES: Any = [{"role": "user", "content": [VIDEO, {"type": "text", "text": "What?"}]}]


@pytest.fixture
async def client(pipeline: StubPipeline) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serving(build_app(pipeline)) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.anyio
async def test_completion(client: openai.AsyncOpenAI, pipeline: StubPipeline) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, extra_body={"video_pruning_rate": 0.5}
    )

    assert answer.choices[0].message.content == "a red circle"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 6
    assert answer.model_extra == {"metrics": {"videos": []}}
    assert pipeline.requests[0].videos[0].pruning_rate == 0.5


@pytest.mark.anyio
async def test_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "a red circle"
    assert chunks[-1].model_extra == {"metrics": {"videos": []}}


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_wrong_rate_is_a_bad_request_that_names_it(
    client: openai.AsyncOpenAI, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=stream, extra_body={"video_pruning_rate": 1.0}
        )
    error = caught.value
    assert (error.param, error.code) == ("video_pruning_rate", "invalid_value")
    assert error.type == "invalid_request_error"
    assert error.request_id is not None
    assert error.request_id.startswith("req-")


@pytest.mark.anyio
async def test_unknown_model_is_not_found(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="gpt-5", messages=MESSAGES)
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


@pytest.mark.anyio
async def test_video_error_names_the_video(
    client: openai.AsyncOpenAI, pipeline: StubPipeline
) -> None:
    pipeline.error = VideoUnreachable("No.", param="messages[0].content[0].video_url.url")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    assert caught.value.param == "messages[0].content[0].video_url.url"


@pytest.mark.anyio
async def test_dead_engine_is_a_server_error(
    client: openai.AsyncOpenAI, pipeline: StubPipeline
) -> None:
    pipeline.error = EngineUnavailable("Dead.")
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert caught.value.status_code == 503
    assert caught.value.code == "engine_unavailable"


@pytest.mark.anyio
async def test_late_error_raises_in_the_stream(
    client: openai.AsyncOpenAI, pipeline: StubPipeline
) -> None:
    pipeline.late_error = InvalidVideo("It broke.")
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    words = [(await anext(stream)).choices[0].delta.content for _ in range(3)]
    assert words == ["a", " red", " circle"]
    with pytest.raises(openai.APIError, match=r"It broke\."):
        await anext(stream)


@pytest.mark.anyio
async def test_answer_can_be_sent_back(client: openai.AsyncOpenAI, pipeline: StubPipeline) -> None:
    first = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    message: Any = first.choices[0].message
    await client.chat.completions.create(
        model="tiny", messages=[*MESSAGES, message, {"role": "user", "content": "And?"}]
    )
    assert pipeline.requests[1].body["messages"][1]["content"] == "a red circle"


@pytest.mark.anyio
async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    models = [model async for model in client.models.list()]
    assert [model.id for model in models] == ["tiny"]
    assert (await client.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")
