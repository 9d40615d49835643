"""Who a request comes from, for what is shared fairly between clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_client: ContextVar[str] = ContextVar("client", default="")


def current_client() -> str:
    """Returns the key of the client whose request is served in this context; "" outside of one.

    Equal keys mean the same client. It says nothing that may not be kept: an API key is in it as a
    digest only.
    """
    return _client.get()


@contextmanager
def client_bound(key: str) -> Iterator[None]:
    """Work begun inside the ``with`` block is done for the client ``key``."""
    token = _client.set(key)
    try:
        yield
    finally:
        _client.reset(token)
