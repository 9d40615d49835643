"""How a request's videos are pruned, on a scripted engine with the embedded model: EVS only."""

import httpx
import pytest

CHAT = "/v1/chat/completions"
pytestmark = pytest.mark.anyio


async def ask(http: httpx.AsyncClient, body, **fields):
    response = await http.post(CHAT, json={**body, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def test_the_answer_names_the_method_and_naming_the_default_changes_nothing(serve, body):
    async with serve() as service, service.http() as http:
        silent = await ask(http, body)
        named = await ask(http, body, video_pruning_method="evs")
        null = await ask(http, body, video_pruning_method=None)

    (report,) = silent["metrics"]["videos"]
    assert (report["pruning_method"], report["pruning_rate"]) == ("evs", 0.5)
    assert report["tokens_after"] == report["tokens_before"] // 2
    assert named["metrics"]["videos"] == null["metrics"]["videos"] == [report]


async def test_a_method_that_the_model_lacks_is_a_400_that_names_those_it_has(serve, body):
    part = body["messages"][0]["content"][0]
    part["video_url"]["video_pruning_method"] = "vidcom2"
    async with serve() as service, service.http() as http:
        refused = await http.post(CHAT, json=body)
        models = await http.get("/v1/models")

    error = refused.json()["error"]
    assert refused.status_code == 400
    assert error["code"] == "pruning_unsupported"
    assert error["param"] == "messages[0].content[0].video_url.video_pruning_method"
    assert "Send evs" in error["message"]
    video = models.json()["data"][0]["video"]
    assert (video["pruning_methods"], video["default_pruning_method"]) == (["evs"], "evs")
