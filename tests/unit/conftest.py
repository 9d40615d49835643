"""Fork hosts whose decoders misbehave when the source asks for it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from server.media.forking import ForkHost


@contextmanager
def _running_host() -> Iterator[ForkHost]:
    host = ForkHost("tests.unit.media.misbehaviour:decode_or_misbehave")
    asyncio.run(host.start())
    yield host
    asyncio.run(host.stop())


@pytest.fixture(scope="session")
def fork_host() -> Iterator[ForkHost]:
    """One for all tests that only decode; each has its own pool on it."""
    with _running_host() as host:
        yield host


@pytest.fixture(scope="module")
def host() -> Iterator[ForkHost]:
    """One for the tests of a module, which may count its processes."""
    with _running_host() as host:
        yield host
