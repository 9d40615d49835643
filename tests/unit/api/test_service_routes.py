"""Models, health, version and metrics."""

from pathlib import Path

import httpx
import pytest
from prometheus_client import REGISTRY

from server.errors import EngineUnavailable
from server.files.store import FileStore
from server.settings import FileSettings, PruningSettings, Settings, VideoSettings
from tests.unit.api.stubs import (
    StubEngine,
    StubPipeline,
    build_app,
    client_of,
    model_facts,
    serving,
)


@pytest.mark.anyio
async def test_models_tell_what_can_be_asked(pipeline: StubPipeline) -> None:
    settings = Settings(
        video=VideoSettings(max_frames=32, max_videos=2), pruning=PruningSettings(max_rate=0.9)
    )
    async with client_of(build_app(pipeline, settings=settings)) as client:
        listing = (await client.get("/v1/models")).json()
        one = (await client.get("/v1/models/tiny")).json()

    assert listing == {"object": "list", "data": [one]}
    assert one["id"] == "tiny"
    assert one["architecture"] == {
        "input_modalities": ["text", "video"],
        "output_modalities": ["text"],
    }
    assert one["video"]["pruning"] is True
    assert one["video"]["max_frames"] == 32
    assert one["video"]["max_videos"] == 2
    assert one["video"]["max_pruning_rate"] == 0.9
    assert one["video"]["pruning_methods"] == ["evs", "vidcom2"]
    assert one["video"]["default_pruning_method"] == "evs"


@pytest.mark.anyio
async def test_models_tell_what_is_accepted_as_a_video(
    pipeline: StubPipeline, tmp_path: Path
) -> None:
    settings = Settings(
        video=VideoSettings(
            containers=("mp4", "matroska"),
            codecs=("h264",),
            default_fps=1.5,
            max_fps=12.0,
            min_frames=2,
            max_frames=64,
            max_video_bytes=1234,
            max_source_frames=777,
            max_model_pixels_per_frame=50_000,
            allow_urls=False,
            local_directory="/srv/videos",
        ),
        files=FileSettings(directory=str(tmp_path), max_file_bytes=999),
    )
    files = FileStore(settings.files)
    async with client_of(build_app(pipeline, settings=settings, files=files)) as client:
        before = (await client.get("/v1/models/tiny")).json()["video"]
        await files.start()
        video = (await client.get("/v1/models/tiny")).json()["video"]
        await files.stop()

    assert (before["uploads"], before["max_upload_bytes"]) == (False, None)
    expected = {
        "default_fps": 1.5,
        "max_fps": 12.0,
        "min_frames": 2,
        "max_frames": 64,
        "frame_alignments": ["exact", "keyframe"],
        "max_model_pixels_per_frame": 50_000,
        "max_model_pixels_per_video": None,
        "max_videos": 4,
        "max_video_bytes": 1234,
        "range_threshold_bytes": 16_777_216,
        "max_ranged_video_bytes": 10_000_000_000,
        "max_source_frames": 777,
        "max_pixels_per_frame": 16_777_216,
        "max_list_frames": 1024,
        "max_picture_bytes": 20_000_000,
        "containers": ["mp4", "matroska"],
        "codecs": ["h264"],
        "urls": False,
        "file_urls": True,
        "uploads": True,
        "max_upload_bytes": 999,
    }
    assert {name: video[name] for name in expected} == expected
    assert {name for name in video if "prun" not in name} == set(expected)


@pytest.mark.anyio
async def test_the_reference_names_all_that_models_tell(pipeline: StubPipeline) -> None:
    reference = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
    async with client_of(build_app(pipeline)) as client:
        video = (await client.get("/v1/models/tiny")).json()["video"]
    assert [name for name in video if f'"{name}":' not in reference] == []


@pytest.mark.anyio
async def test_model_that_can_not_prune_says_so(pipeline: StubPipeline) -> None:
    engine = StubEngine(facts=model_facts(pruning_methods=()))
    async with client_of(build_app(pipeline, engine=engine)) as client:
        video = (await client.get("/v1/models/tiny")).json()["video"]
    assert (video["pruning"], video["max_pruning_rate"]) == (False, 0.0)
    assert (video["pruning_methods"], video["default_pruning_method"]) == ([], None)


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["other", "org/other", "%F0%9F%92%A9", "tiny/"])
async def test_other_model_is_not_found(pipeline: StubPipeline, name: str) -> None:
    async with client_of(build_app(pipeline)) as client:
        response = await client.get(f"/v1/models/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/health", "/health/ready"])
async def test_ready_follows_the_engine_and_live_does_not(
    pipeline: StubPipeline, path: str
) -> None:
    engine = StubEngine(sickness=EngineUnavailable("The engine is loading."))
    app = build_app(pipeline, engine=engine)
    async with client_of(app) as client:
        loading, live = await client.get(path), await client.get("/health/live")
        engine.sickness = None
        ready = await client.get(path)
        app.state.draining = True
        draining = await client.get(path)

    assert loading.status_code == 503
    assert loading.headers["retry-after"]
    assert loading.json()["error"] == {
        "message": "The engine is loading.",
        "type": "server_error",
        "param": None,
        "code": "engine_unavailable",
    }
    assert live.status_code == 200
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert draining.status_code == 503


@pytest.mark.anyio
async def test_version_tells_both_versions(pipeline: StubPipeline) -> None:
    async with client_of(build_app(pipeline)) as client:
        answer = (await client.get("/version")).json()
    assert set(answer) == {"version", "vllm"}


@pytest.mark.anyio
async def test_metrics_hold_the_default_registry_and_our_own(pipeline: StubPipeline) -> None:
    async with client_of(build_app(pipeline)) as client:
        response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert "videochat_requests_in_flight 0.0" in response.text
    assert "python_info" in response.text


@pytest.mark.anyio
async def test_shared_registry_is_not_told_twice(pipeline: StubPipeline) -> None:
    app = build_app(pipeline)
    app.state.metrics.registry = REGISTRY
    async with client_of(app) as client:
        text = (await client.get("/metrics")).text
    assert text.count("# TYPE python_info gauge") == 1


@pytest.mark.anyio
async def test_no_request_adds_a_time_series(pipeline: StubPipeline) -> None:
    app = build_app(pipeline)
    async with client_of(app) as client:
        await client.get("/metrics")
        before = await _series(client)
        for index in range(50):
            await client.request(f"FOO{index}", f"/path{index}")
            await client.post("/v1/chat/completions", json={"model": f"m{index}", "messages": 1})
        after = await _series(client)
    # Refused requests appear in the duration of their outcome, once.
    assert after - before <= 40


async def _series(client) -> int:  # type: ignore[no-untyped-def]
    text = (await client.get("/metrics")).text
    return len([line for line in text.splitlines() if line.startswith("videochat_")])


@pytest.mark.anyio
@pytest.mark.parametrize("is_sick", [False, True])
async def test_head_is_answered_as_get_is(pipeline: StubPipeline, is_sick: bool) -> None:
    sickness = EngineUnavailable("Loading.") if is_sick else None
    app = build_app(pipeline, engine=StubEngine(sickness=sickness))
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as client:
        for path in ("/health", "/health/live", "/health/ready", "/version", "/v1/models"):
            head, get = await client.head(path), await client.get(path)
            assert (head.status_code, head.content) == (get.status_code, b"")
            assert head.headers["content-length"] == get.headers["content-length"]
