"""The tree of all settings, and what is at a path in it."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from server.settings.files import FileSettings
from server.settings.groups import Group, require_order
from server.settings.http import HttpSettings
from server.settings.video import VideoSettings

EMBEDDED_MODEL = "embedded"
"""Model name that stands for the tiny checkpoint which ``server.demo`` builds locally."""

KeyPath = tuple[str, ...]
"""Keys from the root of the tree to one of its places."""

PruningRate = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class PruningSettings(Group):
    """Which share of a video's tokens is dropped before the model, and by which method."""

    default_rate: PruningRate = 0.0
    """Rate for requests that do not give ``video_pruning_rate``. 0 removes nothing."""
    default_method: Literal["evs", "vidcom2"] = "evs"
    """Method for requests that do not give ``video_pruning_method``; one that the model has."""
    max_rate: PruningRate = 0.99
    """Highest rate a request may ask for. Above it: 400."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        require_order("default_rate", self.default_rate, "max_rate", self.max_rate)
        return self


class LogSettings(Group):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written."""
    format: Literal["text", "json"] = "text"
    """One readable line per event, or one JSON object per event."""


class Settings(BaseSettings):
    """Everything the server can be told."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),  # allows the name ``model``
    )

    model: str = Field(default=EMBEDDED_MODEL, min_length=1)
    """Directory or name of the model, as vLLM takes it; ``embedded`` builds the tiny demo model."""
    served_model_name: str | None = Field(default=None, min_length=1)
    """Name under which clients address the model; by default the value of ``model``."""
    http: HttpSettings = HttpSettings()
    """The listening side."""
    video: VideoSettings = VideoSettings()
    """From bytes to frames."""
    files: FileSettings = FileSettings()
    """Uploaded files."""
    pruning: PruningSettings = PruningSettings()
    """From frames to fewer tokens."""
    log: LogSettings = LogSettings()
    """Log output."""
    engine: dict[str, Any] = {}
    """Arguments of vLLM's AsyncEngineArgs by their vLLM names, such as ``max_model_len``."""

    @property
    def public_model_name(self) -> str:
        """The model name that clients use."""
        return self.served_model_name or self.model

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Leave one source: ``load_settings`` has merged file, environment and flags already."""
        return (init_settings,)


def field_at(path: KeyPath) -> FieldInfo | None:
    """Returns the tree's field at ``path``, None if there is none."""
    fields, field = Settings.model_fields, None
    for key in path:
        field = fields.get(key)
        if field is None:
            return None
        fields = fields_of(field)
    return field


def fields_of(field: FieldInfo) -> dict[str, FieldInfo]:
    """Returns the fields below one, by key; none if it is no section."""
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_fields
    return {}


def is_section(key: str) -> bool:
    """Returns whether the tree has a mapping at ``key``."""
    field = Settings.model_fields.get(key)
    return field is not None and (key == "engine" or bool(fields_of(field)))
