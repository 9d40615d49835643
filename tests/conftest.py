"""Fixtures for every kind of test."""

from pathlib import Path

import hypothesis
import pytest

# The same examples in every run, and none that fails because the machine is busy.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

SHARED_VIDEOS = Path(__file__).parents[2] / "shared" / "videos"


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of ``@pytest.mark.anyio`` tests: asyncio, which the server runs on."""
    return "asyncio"


@pytest.fixture(scope="session")
def shared_videos() -> Path:
    """The folder of recorded videos beside the repository; skips where there is none."""
    if not SHARED_VIDEOS.is_dir():
        pytest.skip(f"no recorded videos at {SHARED_VIDEOS}")
    return SHARED_VIDEOS
