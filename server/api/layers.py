"""What goes around every request, put together."""

from collections.abc import Callable
from functools import partial

from starlette.middleware import Middleware

from server.api.bodies import BodyLimit
from server.api.keys import ApiKeyGate
from server.api.middleware import FORM_BYTES, ChatAdmission, RequestLog
from server.metrics import Metrics
from server.settings import Settings


def middleware(
    settings: Settings, metrics: Metrics, *, is_full_for: Callable[[str], bool]
) -> list[Middleware]:
    """Returns what goes around every request, outermost first.

    Args:
        settings: limits and keys.
        metrics: counts requests.
        is_full_for: whether a video of this client would be refused now.
    """
    http = settings.http
    return [
        Middleware(RequestLog),
        Middleware(ApiKeyGate, keys=http.api_keys),
        Middleware(
            ChatAdmission,
            metrics=metrics,
            max_requests=http.max_concurrent_requests,
            is_full_for=is_full_for,
        ),
        Middleware(
            BodyLimit,
            max_body_bytes=http.max_body_bytes,
            max_upload_bytes=settings.files.max_file_bytes + FORM_BYTES,
            max_bodies_bytes=http.max_bodies_bytes,
            timeout_seconds=http.body_timeout_seconds,
            on_large_upload=partial(metrics.files.upload_ended, "too_large"),
        ),
    ]
