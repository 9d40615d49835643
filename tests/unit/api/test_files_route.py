"""``/v1/files`` over real HTTP, by the real ``openai`` client and by ruder ones."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, get_args

import httpx
import openai
import pytest

from server.conversation import UploadSource
from server.files.store import FileStore
from server.meters import UploadOutcome
from server.metrics import Metrics
from server.settings import FileSettings, HttpSettings, Settings
from tests.unit.api.stubs import StubPipeline, build_app, serving, until

ME, YOU = "my-secret-key", "your-secret-key"
BODY = os.urandom(300_000)
FILES = "/v1/files"
FORM = {"purpose": "vision"}
Client = openai.AsyncOpenAI

pytestmark = pytest.mark.anyio


@pytest.fixture
async def start(tmp_path: Path, pipeline: StubPipeline) -> AsyncIterator[Callable[..., Any]]:
    """Returns a function that serves an application with the settings given."""
    async with AsyncExitStack() as running:

        async def run(
            *, keys: tuple[str, ...] = (), metrics: Metrics | None = None, **files: Any
        ) -> str:
            settings = Settings(
                http=HttpSettings.model_validate({"api_keys": list(keys)}),
                files=FileSettings(**{"directory": str(tmp_path), **files}),
            )
            store = FileStore(settings.files, metrics=metrics)
            await store.start()
            running.push_async_callback(store.stop)
            app = build_app(pipeline, settings=settings, files=store, metrics=metrics)
            return await running.enter_async_context(serving(app))

        yield run
    assert os.listdir(tmp_path) == []


@pytest.fixture
async def url(start: Callable[..., Any]) -> str:
    return str(await start(keys=(ME, YOU)))


@pytest.fixture
async def me(url: str) -> AsyncIterator[Client]:
    async with Client(base_url=f"{url}/v1", api_key=ME, max_retries=0) as client:
        yield client


@pytest.fixture
async def you(url: str) -> AsyncIterator[Client]:
    async with Client(base_url=f"{url}/v1", api_key=YOU, max_retries=0) as client:
        yield client


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {ME}"}
    async with httpx.AsyncClient(base_url=url, headers=headers) as client:
        yield client


def on_disk(tmp_path: Path) -> list[Path]:
    return [path for run in tmp_path.iterdir() for path in run.iterdir()]


async def test_a_file_lives_through_the_openai_client(me: Client, tmp_path: Path) -> None:
    before = int(time.time())
    file = await me.files.create(
        file=("clip.mp4", BODY),
        purpose="vision",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (file.object, file.bytes, file.filename) == ("file", len(BODY), "clip.mp4")
    assert (file.purpose, file.status) == ("vision", "processed")
    assert before <= file.created_at <= int(time.time())
    assert file.expires_at == file.created_at + 3600

    assert await me.files.retrieve(file.id) == file
    assert [found async for found in me.files.list()] == [file]
    assert (await me.files.content(file.id)).content == BODY

    deleted = await me.files.delete(file.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (file.id, "file", True)
    with pytest.raises(openai.NotFoundError) as caught:
        await me.files.retrieve(file.id)
    assert (caught.value.code, caught.value.type) == ("file_not_found", "invalid_request_error")
    assert on_disk(tmp_path) == []


async def test_a_path_and_a_stream_can_be_uploaded(me: Client, tmp_path: Path) -> None:
    here = Path(__file__)
    with open(here, "rb") as stream:  # noqa: ASYNC230
        streamed = await me.files.create(file=stream, purpose="user_data")
    path = await me.files.create(file=here, purpose="user_data")
    assert streamed.filename == path.filename == here.name
    first, second = [await me.files.content(file.id) for file in (streamed, path)]
    assert first.content == second.content
    assert first.content.startswith(b'"""``/v1/files`` over real HTTP')
    assert path.expires_at == path.created_at + FileSettings().default_expiry_seconds


async def test_pages_follow_each_other(me: Client) -> None:
    files = [
        await me.files.create(file=(f"{n}.mp4", b"x"), purpose="vision" if n % 2 else "user_data")
        for n in range(7)
    ]
    ids = [file.id for file in files]
    assert [file.id async for file in me.files.list(limit=2)] == ids[::-1]
    assert [file.id async for file in me.files.list(limit=3, order="asc")] == ids
    vision = [file.id async for file in me.files.list(limit=2, purpose="vision", order="asc")]
    assert vision == ids[1::2]
    page = await me.files.list(limit=2, after=ids[5])
    assert [file.id for file in page.data] == [ids[4], ids[3]]
    assert page.has_more
    assert page.model_extra is not None
    assert (page.model_extra["first_id"], page.model_extra["last_id"]) == (ids[4], ids[3])
    assert not (await me.files.list(limit=2, after=ids[2])).has_more


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("limit=10001", "limit"),
        ("limit=x", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("order=up", "order"),
        ("after=file-0", "after"),
        ("after=", "after"),
        ("before=file-0", "before"),
    ],
)
async def test_a_wrong_parameter_of_the_list_is_named(
    http: httpx.AsyncClient, query: str, param: str
) -> None:
    response = await http.get(f"{FILES}?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_what_others_own_is_not_there(me: Client, you: Client) -> None:
    file = await me.files.create(file=("a.mp4", BODY), purpose="vision")
    for action in (you.files.retrieve, you.files.content, you.files.delete):
        with pytest.raises(openai.NotFoundError) as foreign:
            await action(file.id)
        with pytest.raises(openai.NotFoundError) as missing:
            await action("file-" + "0" * 32)
        assert foreign.value.body == missing.value.body
    assert [found async for found in you.files.list()] == []
    with pytest.raises(openai.BadRequestError):
        await you.files.list(after=file.id)
    assert (await me.files.retrieve(file.id)) == file


@pytest.mark.parametrize(
    "file_id",
    ["file-0", "..%2f..%2fetc%2fpasswd", "%2e%2e%2f", "file-%00", "x" * 10_000, "%ff", "ü"],
    ids=range(7),
)
async def test_strange_ids_are_not_found(http: httpx.AsyncClient, file_id: str) -> None:
    for response in (
        await http.get(f"{FILES}/{file_id}"),
        await http.delete(f"{FILES}/{file_id}"),
        await http.get(f"{FILES}/{file_id}/content"),
    ):
        assert response.status_code == 404
        assert response.json()["error"]["code"] in ("file_not_found", "unknown_url")
        assert len(response.content) < 1000


@pytest.mark.parametrize(
    "name", ["../../x.m3u8", "/etc/passwd", "CON", "x" * 60_000, 'a"b.mp4', "ü🎬.mp4", "; rm -rf"]
)
async def test_a_clients_name_is_only_shown(
    http: httpx.AsyncClient, tmp_path: Path, name: str
) -> None:
    response = await http.post(FILES, data=FORM, files={"file": (name, b"x")})
    if response.status_code == 400:  # a header of a part this long is none
        assert len(name) > 1000
        return
    file = response.json()
    (stored,) = on_disk(tmp_path)
    assert len(stored.name) == 32
    assert stored.name not in response.text
    assert len(file["filename"]) <= 255
    download = await http.get(f"{FILES}/{file['id']}/content")
    assert download.headers["content-disposition"].isascii()
    assert download.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")


async def test_a_download_is_no_page_and_may_be_a_part(http: httpx.AsyncClient) -> None:
    page = b"<script>alert(1)</script>" * 20_000
    upload = await http.post(FILES, data=FORM, files={"file": ("a.html", page, "text/html")})
    path = f"{FILES}/{upload.json()['id']}/content"
    whole = await http.get(path)
    assert (whole.status_code, whole.content) == (200, page)
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert whole.headers["accept-ranges"] == "bytes"
    part = await http.get(path, headers={"range": "bytes=100000-399999"})
    assert (part.status_code, part.content) == (206, page[100_000:400_000])
    assert part.headers["content-range"] == f"bytes 100000-399999/{len(page)}"
    several = await http.get(path, headers={"range": "bytes=0-1,5-6"})
    assert (several.status_code, several.content) == (200, page)
    dated = await http.get(path, headers={"range": "bytes=0-1", "if-range": '"x"'})
    assert dated.status_code == 200
    beyond = await http.get(path, headers={"range": "bytes=9999999-"})
    assert beyond.status_code == 416
    assert beyond.headers["content-range"] == f"bytes */{len(page)}"
    assert beyond.json()["error"]["code"] == "range_not_satisfiable"


@pytest.mark.parametrize(
    ("form", "param", "code"),
    [
        ({}, "purpose", "missing_field"),
        ({"purpose": "assistants"}, "purpose", "invalid_value"),
        ({"purpose": ""}, "purpose", "invalid_value"),
        ({**FORM, "media_type": "video"}, "media_type", "unknown_field"),
        ({**FORM, "expires_after[seconds]": "60"}, "expires_after[anchor]", "invalid_value"),
        ({**FORM, "expires_after[anchor]": "created_at"}, "expires_after[seconds]", None),
        (
            {**FORM, "expires_after[anchor]": "created_at", "expires_after[seconds]": "0"},
            "expires_after[seconds]",
            None,
        ),
        (
            {**FORM, "expires_after[anchor]": "created_at", "expires_after[seconds]": "2592001"},
            "expires_after[seconds]",
            None,
        ),
        (
            {**FORM, "expires_after[anchor]": "now", "expires_after[seconds]": "60"},
            "expires_after[anchor]",
            None,
        ),
    ],
    ids=range(9),
)
async def test_a_wrong_field_is_named_and_nothing_kept(
    http: httpx.AsyncClient, tmp_path: Path, form: dict[str, str], param: str, code: str | None
) -> None:
    response = await http.post(FILES, data=form, files={"file": ("a.mp4", BODY)})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code or "invalid_value")
    assert on_disk(tmp_path) == []


async def test_bodies_that_are_no_upload_are_refused(http: httpx.AsyncClient) -> None:
    empty = await http.post(FILES, data=FORM, files={"file": ("a.mp4", b"")})
    assert (empty.status_code, empty.json()["error"]["param"]) == (400, "file")
    none = await http.post(FILES, data=FORM, files={"other": ("a.mp4", b"x")})
    assert (none.status_code, none.json()["error"]["code"]) == (400, "unknown_field")
    as_json = await http.post(FILES, json=FORM)
    assert (as_json.status_code, as_json.json()["error"]["code"]) == (415, "unsupported_media_type")
    headers = {"content-type": "multipart/form-data; boundary=x"}
    cut = await http.post(FILES, content=b"--x\r\nContent-Disp", headers=headers)
    assert (cut.status_code, cut.json()["error"]["code"]) == (400, "invalid_multipart")


async def test_a_file_that_is_not_there_is_told_by_its_parameter(http: httpx.AsyncClient) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
        response = await http.request(method, f"{FILES}/file-none{path}")
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (404, "file_id")


async def test_a_purpose_that_no_file_can_have_is_not_an_empty_list(
    http: httpx.AsyncClient,
) -> None:
    response = await http.get(FILES, params={"purpose": "fun"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "purpose")
    assert (await http.get(FILES, params={"purpose": "vision"})).json()["data"] == []


async def test_head_is_get_without_the_body(http: httpx.AsyncClient) -> None:
    file = (await http.post(FILES, data=FORM, files={"file": ("a.mp4", BODY)})).json()
    content = f"{FILES}/{file['id']}/content"
    for path in (FILES, f"{FILES}/{file['id']}", content):
        head, get = await http.head(path), await http.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == get.headers["content-length"]
    part = await http.head(content, headers={"range": "bytes=0-9"})
    assert (part.status_code, part.headers["content-length"]) == (206, "10")
    assert (await http.get(content)).content == BODY


async def test_limits_have_their_status(start: Callable[..., Any], tmp_path: Path) -> None:
    url = await start(max_file_bytes=1000, max_owner_bytes=1500, max_total_bytes=1500)
    async with httpx.AsyncClient(base_url=url) as http:

        async def send(num_bytes: int) -> httpx.Response:
            return await http.post(FILES, data=FORM, files={"file": ("a", bytes(num_bytes))})

        assert (await send(1000)).status_code == 200
        large, over_quota = await send(1001), await send(501)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
        assert over_quota.status_code == 413
        assert over_quota.json()["error"]["code"] == "file_quota_exceeded"
        assert len(on_disk(tmp_path)) == 1


async def test_a_full_server_is_a_507_that_is_not_repeated(start: Callable[..., Any]) -> None:
    url = await start(max_total_bytes=1000)
    async with Client(base_url=f"{url}/v1", api_key="any") as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.files.create(file=("a.mp4", bytes(1001)), purpose="vision")
    assert caught.value.status_code == 507
    assert caught.value.code == "insufficient_storage"
    assert caught.value.response.headers["x-should-retry"] == "false"


async def test_an_upload_has_a_limit_of_its_own_while_it_flows(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(100):
            yield bytes(65_536)

    url = await start(max_file_bytes=3_000_000)
    headers = {"content-type": "multipart/form-data; boundary=x"}
    async with httpx.AsyncClient(base_url=url) as http:
        response = await http.post(FILES, content=body(), headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert on_disk(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "limit"),
    [(FILES, FileSettings().max_file_bytes + 65_536), ("/v1/x", HttpSettings().max_body_bytes)],
)
async def test_a_declared_length_is_held_to_the_limit_of_its_path(
    start: Callable[..., Any], path: str, limit: int
) -> None:
    url = await start()
    host, port = url.removeprefix("http://").split(":")
    for length, refused in ((limit, False), (limit + 1, True)):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        status = await reader.readline()
        assert (b" 413 " in status) is refused
        if refused:
            answer = await reader.read()
            assert (b'"param":"file"' in answer) is (path == FILES)
            assert (b"data: URL" in answer) is (path != FILES)
        writer.close()


async def test_an_upload_without_a_key_leaves_nothing(url: str, tmp_path: Path) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        response = await http.post(FILES, data=FORM, files={"file": ("a.mp4", BODY)})
    assert response.status_code == 401
    assert on_disk(tmp_path) == []


async def test_a_client_that_leaves_in_mid_upload_leaves_nothing(url: str, tmp_path: Path) -> None:
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {FILES} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ME}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 50000000\r\n\r\n"
        '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
    )
    writer.write(bytes(3_000_000))
    await writer.drain()
    await until(lambda: bool(on_disk(tmp_path)))
    writer.transport.abort()
    await until(lambda: not on_disk(tmp_path))


async def test_a_slow_upload_ends(start: Callable[..., Any], tmp_path: Path) -> None:
    url = await start(upload_timeout_seconds=0.2)

    async def slowly() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        await asyncio.sleep(0.5)
        yield b"x\r\n--x--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=x"}
    async with httpx.AsyncClient(base_url=url) as http:
        response = await http.post(FILES, content=slowly(), headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "upload_too_slow")
    assert on_disk(tmp_path) == []


async def test_a_download_goes_on_when_its_file_is_deleted(http: httpx.AsyncClient) -> None:
    body = os.urandom(8_000_000)
    upload = await http.post(FILES, data=FORM, files={"file": ("a.mp4", body)})
    path = f"{FILES}/{upload.json()['id']}"
    received = bytearray()
    async with http.stream("GET", f"{path}/content") as response:
        async for chunk in response.aiter_bytes():
            if not received:
                assert (await http.delete(path)).status_code == 200
            received += chunk
    assert received == body
    assert (await http.get(f"{path}/content")).status_code == 404


async def test_a_client_that_leaves_in_mid_download_closes_the_file(
    http: httpx.AsyncClient,
) -> None:
    upload = await http.post(FILES, data=FORM, files={"file": ("a.mp4", bytes(50_000_000))})
    path = f"{FILES}/{upload.json()['id']}/content"

    def open_files() -> int:
        links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
        return sum("/run-" in os.readlink(link) for link in links if os.path.islink(link))

    idle = open_files()
    async with http.stream("GET", path) as response:
        await anext(response.aiter_bytes())
        assert open_files() == idle + 1
    await until(lambda: open_files() == idle)


async def test_where_files_are_off_the_answer_says_so(
    start: Callable[..., Any], pipeline: StubPipeline
) -> None:
    url = await start(enabled=False)
    async with httpx.AsyncClient(base_url=url) as http:
        answers = [
            await http.post(FILES, data=FORM, files={"file": ("a.mp4", b"x")}),
            await http.get(FILES),
            await http.get(f"{FILES}/file-0"),
            await http.get(f"{FILES}/file-0/content"),
            await http.delete(f"{FILES}/file-0"),
        ]
    assert {answer.status_code for answer in answers} == {404}
    assert {answer.json()["error"]["code"] for answer in answers} == {"files_unavailable"}


async def test_a_chat_names_a_file_as_its_sender(
    me: Client, you: Client, pipeline: StubPipeline
) -> None:
    parts: list[Any] = [
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "video_url", "video_url": {"file_id": "file-1"}},
        {"type": "video_url", "file_id": "file-1"},
    ]
    for client in (me, you):
        await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": parts}]
        )
    mine, yours = ([video.source for video in asked.videos] for asked in pipeline.requests)
    assert [type(source) for source in mine] == [UploadSource] * 3
    assert len({*mine, *yours}) == 2


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def uploads(metrics: Metrics) -> dict[str, float | None]:
    """Returns how many uploads ended in which way, but for ways in which none did."""
    name = "videochat_file_uploads_total"
    counts = {kind: sample(metrics, name, outcome=kind) for kind in get_args(UploadOutcome)}
    return {kind: count for kind, count in counts.items() if count}


async def test_uploads_are_counted_by_how_they_end(start: Callable[..., Any]) -> None:
    metrics = Metrics()
    limits = {"max_file_bytes": 1000, "max_owner_bytes": 1500, "max_total_bytes": 2200}
    url = await start(metrics=metrics, keys=(ME, YOU), **limits)
    async with httpx.AsyncClient(base_url=url) as http:

        async def send(num_bytes: int, key: str = ME, **form: str) -> None:
            headers = {"authorization": f"Bearer {key}"}
            sent = {"file": ("a", bytes(num_bytes))}
            await http.post(FILES, data={**FORM, **form}, files=sent, headers=headers)

        await send(1000)
        await send(1001)
        await send(501)
        await send(1_000_000)  # refused unread
        await send(1000, YOU)
        await send(201, YOU)
        await send(1, purpose="other")
        await send(0)
    assert uploads(metrics) == {
        "success": 2,
        "too_large": 2,
        "over_quota": 1,
        "storage_full": 1,
        "invalid": 2,
    }
    assert sample(metrics, "videochat_files") == 2
    assert sample(metrics, "videochat_files_bytes") == 2000


async def test_an_upload_given_up_and_one_too_many_are_counted(start: Callable[..., Any]) -> None:
    metrics = Metrics()
    url = await start(metrics=metrics, max_concurrent_uploads=1)
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {FILES} HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        "Content-Length: 5000000\r\n\r\n"
        '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
    )
    writer.write(bytes(10_000))
    await until(lambda: (sample(metrics, "videochat_files_bytes") or 0) > 9000)
    async with httpx.AsyncClient(base_url=url) as http:
        refused = await http.post(FILES, data=FORM, files={"file": ("a", b"x")})
    assert refused.status_code == 503
    writer.transport.abort()
    await until(lambda: "cancelled" in uploads(metrics))
    assert uploads(metrics) == {"overloaded": 1, "cancelled": 1}
    assert sample(metrics, "videochat_files") == 0
    assert sample(metrics, "videochat_files_bytes") == 0
