"""A video that is uploaded once and asked about by its id, through the whole application."""

import pytest

from server.demo.clip import CLIP_PATH

CHAT = "/v1/chat/completions"
pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path):
    return {
        "files": {"directory": str(tmp_path)},
        "http": {"api_keys": ["my-secret-key", "your-secret-key"]},
    }


def as_owner(service, key):
    http = service.http()
    http.headers["authorization"] = f"Bearer {key}"
    return http


def about(body, part):
    content = [part, *body["messages"][0]["content"][1:]]
    return {**body, "messages": [{"role": "user", "content": content}]}


async def upload(http):
    with CLIP_PATH.open("rb") as clip:
        sent = await http.post("/v1/files", data={"purpose": "vision"}, files={"file": clip})
    assert sent.status_code == 200
    return sent.json()["id"]


async def test_an_uploaded_video_is_the_same_as_one_in_the_request(serve, body, settings, tmp_path):
    async with serve(settings=settings) as service, as_owner(service, "my-secret-key") as http:
        file_id = await upload(http)
        in_request = (await http.post(CHAT, json=body)).json()
        for part in (
            {"type": "file", "file": {"file_id": file_id}},
            {"type": "video_url", "video_url": {"file_id": file_id}},
        ):
            answer = await http.post(CHAT, json=about(body, part))
            assert answer.status_code == 200
            assert answer.json()["metrics"]["videos"] == in_request["metrics"]["videos"]
            assert answer.json()["choices"] == in_request["choices"]
        assert len(list(tmp_path.rglob("*/*"))) == 1
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_is_not_yours_or_gone_is_a_404_that_names_the_part(serve, body, settings):
    async with (
        serve(settings=settings) as service,
        as_owner(service, "my-secret-key") as mine,
        as_owner(service, "your-secret-key") as yours,
    ):
        file_id = await upload(mine)
        asked = about(body, {"type": "file", "file": {"file_id": file_id}})
        foreign = await yours.post(CHAT, json=asked)
        await mine.delete(f"/v1/files/{file_id}")
        deleted = await mine.post(CHAT, json={**asked, "stream": True})
    for response in (foreign, deleted):
        assert response.status_code == 404
        error = response.json()["error"]
        assert error["code"] == "file_not_found"
        assert error["param"] == "messages[0].content[0].file.file_id"


async def test_an_upload_larger_than_a_video_may_be_is_not_read_as_one(serve, body, settings):
    settings["video"] = {"max_video_bytes": 1000}
    async with serve(settings=settings) as service, as_owner(service, "my-secret-key") as http:
        file_id = await upload(http)
        part = {"type": "file", "file": {"file_id": file_id}}
        answer = await http.post(CHAT, json=about(body, part))
    assert answer.status_code == 413
    assert answer.json()["error"]["param"] == "messages[0].content[0].file.file_id"
