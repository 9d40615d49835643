"""What handlers take from the application and leave in the request, typed.

``create_app`` sets ``app.state.settings``, ``engine``, ``pipeline``, ``files`` and ``metrics``, and
while the server stops ``draining = True``.
"""

from typing import Any, cast

from starlette.requests import Request
from starlette.types import Scope

from server.engine.base import ChatEngine
from server.errors import EngineUnavailable
from server.files.store import FileStore
from server.metrics import Metrics, Outcome
from server.pipeline import ChatPipeline
from server.settings import Settings

_OUTCOME = "videochat.outcome"
_OWNER = "videochat.owner"
ANYONE = ""
"""Owner of everything on a server without API keys."""


def settings_of(request: Request) -> Settings:
    """Returns the settings of the application that serves ``request``."""
    return cast(Settings, request.app.state.settings)


def engine_of(request: Request) -> ChatEngine:
    """Returns the engine of the application that serves ``request``."""
    return cast(ChatEngine, request.app.state.engine)


def pipeline_of(request: Request) -> ChatPipeline:
    """Returns the pipeline of the application that serves ``request``."""
    return cast(ChatPipeline, request.app.state.pipeline)


def files_of(request: Request) -> FileStore:
    """Returns the uploaded files of the application that serves ``request``."""
    return cast(FileStore, request.app.state.files)


def metrics_of(request: Request) -> Metrics:
    """Returns the metrics of the application that serves ``request``."""
    return cast(Metrics, request.app.state.metrics)


def is_draining(request: Request) -> bool:
    """Returns whether the server is about to stop and takes no new work."""
    return bool(getattr(request.app.state, "draining", False))


def require_running(request: Request) -> None:
    """Returns if new work is taken. Raises EngineUnavailable if the server is about to stop."""
    if is_draining(request):
        raise EngineUnavailable("The server is shutting down. Try again later.")


def note_outcome(scope: Scope, outcome: Outcome) -> None:
    """Note how the request ends, for the log line and the counters. The first note counts."""
    _request_state(scope).setdefault(_OUTCOME, outcome)


def noted_outcome(scope: Scope) -> Outcome | None:
    """Returns what ``note_outcome`` noted, None if it was not called."""
    return cast(Outcome | None, _request_state(scope).get(_OUTCOME))


def note_owner(scope: Scope, owner: str) -> None:
    """Note whose request it is: a digest of the API key."""
    _request_state(scope)[_OWNER] = owner


def owner_in(scope: Scope) -> str:
    """Returns whose request it is, ``ANYONE`` on a server without API keys."""
    return cast(str, _request_state(scope).get(_OWNER, ANYONE))


def owner_of(request: Request) -> str:
    """Returns whose request it is, ``ANYONE`` on a server without API keys."""
    return owner_in(request.scope)


def _request_state(scope: Scope) -> dict[str, Any]:
    return cast(dict[str, Any], scope.setdefault("state", {}))
