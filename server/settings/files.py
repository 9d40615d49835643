"""Settings of uploaded files."""

from typing import Self

from pydantic import Field, model_validator

from server.settings.groups import Group, require_order


class FileSettings(Group):
    """Files that clients upload to refer to them later. They are gone when the server ends."""

    enabled: bool = True
    """Whether clients may upload files at all."""
    directory: str | None = Field(default=None, pattern="^/")
    """Where they are kept, in a private directory per server; by default below ~/.cache."""
    max_file_bytes: int = Field(default=100_000_000, ge=1)
    """Largest file; what is read as a video also keeps to ``video.max_video_bytes``. Else: 413."""
    max_owner_bytes: int = Field(default=2_000_000_000, ge=1)
    """All files of one owner: of an API key, or of everybody if there are none. Above it: 413."""
    max_total_bytes: int = Field(default=10_000_000_000, ge=1)
    """All files. Above it: 507."""
    max_files: int = Field(default=1000, ge=1)
    """Number of files in all. Above it: 507."""
    max_concurrent_uploads: int = Field(default=16, ge=1)
    """Files being uploaded at once. Above it: 503 with Retry-After."""
    upload_timeout_seconds: float = Field(default=600.0, gt=0)
    """Total time to receive one file."""
    default_expiry_seconds: int = Field(default=86_400, ge=1)
    """How long a file is kept if its upload does not say."""
    max_expiry_seconds: int = Field(default=2_592_000, ge=1)
    """Longest time for which a client may have a file kept."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        require_order(
            "default_expiry_seconds",
            self.default_expiry_seconds,
            "max_expiry_seconds",
            self.max_expiry_seconds,
        )
        return self
