"""Settings of the listening side."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from server.settings.groups import Group, require_order

_HEADER_TOKEN = re.compile(r"[!-~]{8,}")


def _check_api_keys(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    for key in keys:
        if not _HEADER_TOKEN.fullmatch(key.get_secret_value()):
            raise ValueError("a key must have 8 or more visible ASCII characters, and no space")
    return keys


ApiKeys = Annotated[tuple[SecretStr, ...], Field(strict=False), AfterValidator(_check_api_keys)]


class HttpSettings(Group):
    """Where to listen, and what a request may cost before it is looked at."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to bind. 0.0.0.0 listens on every interface."""
    port: int = Field(default=8000, ge=0, le=65535)
    """TCP port to bind; 0 lets the system choose one."""
    api_keys: ApiKeys = ()
    """Keys of which a request must have one, in Authorization: Bearer; none means open to all."""
    max_body_bytes: int = Field(default=140_000_000, ge=1)
    """Largest request body accepted; base64 makes a video a third larger. Above it: 413."""
    max_bodies_bytes: int = Field(default=1_000_000_000, ge=1)
    """Memory for the bodies of all chat requests in flight. Above it: 503 with Retry-After, before
    the body is read where its length is given."""
    body_timeout_seconds: float = Field(default=30.0, gt=0)
    """How long a body may take beyond what it takes at 100 kB a second. Above it: 408."""
    header_timeout_seconds: float = Field(default=30.0, gt=0)
    """How long the headers of a request may take, and the first byte on a new connection. Above it:
    408, or the connection is closed where nothing has come."""
    write_timeout_seconds: float = Field(default=60.0, gt=0)
    """How long a client may leave unread what waits for it. Above it the connection is cut and the
    request cancelled."""
    max_concurrent_requests: int = Field(default=256, ge=1)
    """Chat requests in flight at once. Above it: 503 with Retry-After, before the body is read."""
    keep_alive_comment_seconds: float = Field(default=10.0, gt=0)
    """Silence on a stream after which a comment line is sent, so that proxies do not cut it."""
    shutdown_grace_seconds: float = Field(default=20.0, ge=0)
    """How long running answers may go on after SIGTERM."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        require_order(
            "max_body_bytes", self.max_body_bytes, "max_bodies_bytes", self.max_bodies_bytes
        )
        return self
