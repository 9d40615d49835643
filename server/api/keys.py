"""API keys: who may use this server, decided before anything of a request is looked at."""

import hashlib
import secrets
from collections.abc import Iterable

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.api.errors import error_outcome, error_response
from server.api.state import note_outcome, note_owner
from server.errors import Unauthenticated

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/version", "/metrics"})
"""What machines that look after this one may ask without a key."""


class ApiKeyGate:
    """Answers 401 to a request without a valid key, and notes whose key it was.

    It goes by the path that the router will go by, and a path that nobody listed needs a key. A
    key's owner is known by a digest of it, so that the key itself is kept nowhere else.
    """

    def __init__(self, app: ASGIApp, *, keys: Iterable[SecretStr]) -> None:
        self.app = app
        self._digests = [_digest(key.get_secret_value().encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it unread."""
        if scope["type"] == "http" and self._digests and scope["path"] not in OPEN_PATHS:
            digest = self._valid_digest(_bearer_token(scope))
            if digest is None:
                error = Unauthenticated()
                note_outcome(scope, error_outcome(error))
                await error_response(error)(scope, receive, send)
                return
            note_owner(scope, digest.hex())
        await self.app(scope, receive, send)

    def _valid_digest(self, token: bytes | None) -> bytes | None:
        """Returns the digest of a valid token; takes as long whichever key it is, or if none."""
        given = _digest(token or b"")
        found = [secrets.compare_digest(given, digest) for digest in self._digests]
        return given if any(found) and token else None


def _bearer_token(scope: Scope) -> bytes | None:
    """Returns what the Authorization header holds, None unless it is one bearer token."""
    values = Headers(scope=scope).getlist("authorization")
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    return token.encode("latin-1") if scheme.lower() == "bearer" else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
