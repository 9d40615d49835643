"""Pools for the tests of this folder, on one fork host."""

from collections.abc import Callable

import av
import pytest

from server.media.forking import ForkHost
from server.media.workers import DecoderPool
from server.settings import VideoSettings

av.logging.set_level(av.logging.PANIC)


@pytest.fixture
def make_pool(fork_host: ForkHost) -> Callable[..., DecoderPool]:
    """Returns a started pool with the settings given."""
    return lambda **settings: DecoderPool(VideoSettings(**settings), host=fork_host)
