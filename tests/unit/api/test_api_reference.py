"""``docs/api.md`` names everything there is."""

import re
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry

from server.api.fields import KNOWN_FIELDS
from server.media.faults import VIDEO_FAULTS
from server.meters import DeletionReason, UploadOutcome
from server.metrics import Metrics, Outcome, PruningBucket, VideoOutcome
from server.timing import STAGES
from tests.unit.api.stubs import StubEngine, StubPipeline, build_app, client_of

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def codes_in_the_source() -> set[str]:
    codes = set()
    for path in (*(ROOT / "server" / "api").glob("*.py"), *(ROOT / "server/media").glob("*.py")):
        codes.update(re.findall(r'code="([a-z_]+)"', path.read_text(encoding="utf-8")))
    source = (ROOT / "server" / "errors.py").read_text(encoding="utf-8")
    return codes | set(re.findall(r'code = "([a-z_]+)"', source)) - {"invalid_request"}


@pytest.mark.parametrize(
    "name",
    sorted(
        KNOWN_FIELDS
        | codes_in_the_source()
        | set(VIDEO_FAULTS)
        | set(get_args(Outcome) + get_args(VideoOutcome) + get_args(PruningBucket) + STAGES)
        | set(get_args(UploadOutcome) + get_args(DeletionReason))
    ),
)
def test_name_is_in_the_reference(name: str) -> None:
    assert f"`{name}`" in REFERENCE


def test_every_metric_is_in_the_reference() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    names = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in registry.collect()
    }
    assert names == set(re.findall(r"`(videochat_[a-z_]+)`", REFERENCE))


@pytest.mark.anyio
async def test_every_path_is_in_the_reference() -> None:
    async with client_of(build_app(StubPipeline(), engine=StubEngine())) as client:
        document = (await client.get("/openapi.json")).json()
    for path in document["paths"]:
        assert path.replace("{model}", "{id}").replace("{file_id}", "{id}") in REFERENCE
