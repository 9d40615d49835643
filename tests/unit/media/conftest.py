"""One fork host for all tests of this folder; each test has its own pool on it."""

import asyncio
from collections.abc import Callable, Iterator

import av
import pytest

from server.media.forking import ForkHost
from server.media.workers import DecoderPool
from server.settings import VideoSettings

av.logging.set_level(av.logging.PANIC)


@pytest.fixture(scope="session")
def fork_host() -> Iterator[ForkHost]:
    """A warm fork host whose decoders misbehave when the source asks for it."""
    host = ForkHost("tests.unit.media.misbehaviour:decode_or_misbehave")
    asyncio.run(host.start())
    yield host
    asyncio.run(host.stop())


@pytest.fixture
def make_pool(fork_host: ForkHost) -> Callable[..., DecoderPool]:
    """Returns a started pool with the settings given."""
    return lambda **settings: DecoderPool(VideoSettings(**settings), host=fork_host)
