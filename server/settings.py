"""The one settings tree: defaults < config file < VIDEO_CHAT_ environment < command line flags.

This module is the only reader of the environment and of config files. Every field has a docstring,
which ``docs/settings.md`` and the error messages use. Unknown keys and wrong values stop the start.
"""

import difflib
import json
import os
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from server.errors import ConfigurationError

ENV_PREFIX = "VIDEO_CHAT_"
_HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?")
_HEADER_TOKEN = re.compile(r"[!-~]{8,}")
EMBEDDED_MODEL = "embedded"
"""Model name that stands for the tiny checkpoint which ``server.demo`` builds locally."""


def _check_api_keys(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    for key in keys:
        if not _HEADER_TOKEN.fullmatch(key.get_secret_value()):
            raise ValueError("a key must have 8 or more visible ASCII characters, and no space")
    return keys


def _check_host_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name of a host; write it in lower case and ASCII, without a port, "
                "or as *.example.com"
            )
    return names


PruningRate = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
HostNames = Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_check_host_names)]
ApiKeys = Annotated[tuple[SecretStr, ...], Field(strict=False), AfterValidator(_check_api_keys)]


def _require_order(low_name: str, low: float, high_name: str, high: float) -> None:
    if low > high:
        raise ValueError(f"{low_name} {low} is above {high_name} {high}")


class _Group(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # `port: yes` is a mistake, not port 1
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class HttpSettings(_Group):
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
    max_concurrent_requests: int = Field(default=256, ge=1)
    """Chat requests in flight at once. Above it: 503 with Retry-After, before the body is read."""
    keep_alive_comment_seconds: float = Field(default=10.0, gt=0)
    """Silence on a stream after which a comment line is sent, so that proxies do not cut it."""
    shutdown_grace_seconds: float = Field(default=20.0, ge=0)
    """How long running answers may go on after SIGTERM."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        _require_order(
            "max_body_bytes", self.max_body_bytes, "max_bodies_bytes", self.max_bodies_bytes
        )
        return self


class VideoSettings(_Group):
    """How a video is fetched, sampled and decoded. Clients choose within the caps given here."""

    default_fps: float = Field(default=2.0, gt=0, le=60)
    """Frames per second sampled when the request says nothing."""
    max_fps: float = Field(default=30.0, gt=0, le=240)
    """Highest sampling rate a request may ask for; more is clamped to it."""
    min_frames: int = Field(default=4, ge=1)
    """Fewest frames sampled at a rate, where there are as many; num_frames may ask for fewer."""
    max_frames: int = Field(default=256, ge=1)
    """Most frames sampled from one video, whatever the request asks for."""
    max_model_pixels_per_frame: int | None = Field(default=None, ge=1)
    """Most pixels (width x height) of a frame as the model gets it, as far as the model allows so
    few; null leaves it to the model. More is clamped to it."""
    max_model_pixels_per_video: int | None = Field(default=None, ge=1)
    """The same for all frames of a video together."""
    max_videos: int = Field(default=4, ge=1)
    """Videos in one request. Above it: 400."""
    max_video_bytes: int = Field(default=100_000_000, ge=1)
    """Largest encoded video. Above it: 413."""
    max_list_frames: int = Field(default=1024, ge=1)
    """Frames in a video that is sent as a list of pictures. Above it: 400."""
    max_picture_bytes: int = Field(default=20_000_000, ge=1)
    """Largest picture in such a list, all of which together are a video. Above it: 413."""
    max_pixels_per_frame: int = Field(default=16_777_216, ge=1)
    """Largest picture (width x height) that is decoded. Above it: 400."""
    max_source_frames: int = Field(default=108_000, ge=1)
    """Longest video, in frames (108 000 is an hour at 30 fps). Above it: 400."""
    allow_urls: bool = True
    """Whether http(s) URLs are fetched. data: URLs always work."""
    allow_private_addresses: bool = False
    """Whether URLs may lead to loopback, private or special addresses and to any port."""
    allowed_hosts: HostNames = ()
    """Hosts that URLs may lead to, redirects included, also as *.example.com; none means any."""
    local_directory: str | None = Field(default=None, pattern="^/")
    """Directory below which file: URLs are read; without it they are refused. Absolute."""
    fetch_timeout_seconds: float = Field(default=30.0, gt=0)
    """Total time to retrieve one URL, redirects included."""
    decode_timeout_seconds: float = Field(default=60.0, gt=0)
    """Wall clock for one video in its decoder process, which is killed after it."""
    decode_memory_bytes: int = Field(default=2_000_000_000, ge=100_000_000)
    """Memory one decoder process may add to what it starts with."""
    max_concurrent_decodes: int = Field(default=0, ge=0)
    """Decoder processes at once; 0 means one per CPU core."""
    max_queued_decodes: int = Field(default=64, ge=0)
    """Videos that may wait for a decoder process. Above it: 503 with Retry-After, before the body
    of a request is read; clients that send many make room for those that send few."""
    queue_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long a video may wait for a decoder process. After it: 503 with Retry-After."""
    download_cache_bytes: int = Field(default=256_000_000, ge=0)
    """Memory for videos of URLs, used again after their origin has said that they still hold; 0 is
    none. What an origin calls private or no-store is not kept."""
    clip_cache_bytes: int = Field(default=512_000_000, ge=0)
    """Memory for decoded clips, so that the next question about one is not decoded; 0 is none."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        _require_order("min_frames", self.min_frames, "max_frames", self.max_frames)
        _require_order("default_fps", self.default_fps, "max_fps", self.max_fps)
        return self


class FileSettings(_Group):
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
        _require_order(
            "default_expiry_seconds",
            self.default_expiry_seconds,
            "max_expiry_seconds",
            self.max_expiry_seconds,
        )
        return self


class PruningSettings(_Group):
    """Which share of a video's tokens is dropped before the model, and by which method."""

    default_rate: PruningRate = 0.0
    """Rate for requests that do not give ``video_pruning_rate``. 0 removes nothing."""
    default_method: Literal["evs", "vidcom2"] = "evs"
    """Method for requests that do not give ``video_pruning_method``; one that the model has."""
    max_rate: PruningRate = 0.99
    """Highest rate a request may ask for. Above it: 400."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        _require_order("default_rate", self.default_rate, "max_rate", self.max_rate)
        return self


class LogSettings(_Group):
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


def load_settings(
    config_path: Path | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Returns the settings from a YAML file, the environment and flags, later ones winning.

    Args:
        config_path: YAML file with the same tree as ``Settings``; None means no file.
        flags: nested mapping from the command line; None values are left out.
        environ: environment to read; the process's own by default.

    Raises:
        ConfigurationError: a file can not be read, or a key or value is wrong. One line.
    """
    environ = os.environ if environ is None else environ
    assignments = [
        *(_file_assignments(config_path) if config_path else ()),
        *_environment_assignments(environ),
        *_flag_assignments(flags or {}),
    ]
    try:
        return Settings(**_merge(assignments))
    except ValidationError as error:
        raise ConfigurationError(_one_line(error, assignments)) from error


KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Assignment:
    """One value that somebody gave, and who."""

    path: KeyPath
    value: Any
    origin: str


def _file_assignments(path: Path) -> Iterator[_Assignment]:
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except OSError as error:
        raise ConfigurationError(f"can not read {path}: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigurationError(f"{path} line {line}: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"{path} is not valid YAML in UTF-8") from error
    if not isinstance(tree, dict | None):
        raise ConfigurationError(f"{path} holds {_shown(tree)}; expected a mapping of settings")
    for key, value in (tree or {}).items():
        # A section whose lines are all commented out reads as null.
        if value is not None or not _is_section(str(key)):
            yield from _leaves((str(key),), value, str(path))


def _environment_assignments(environ: Mapping[str, str]) -> Iterator[_Assignment]:
    # Sorted: a whole section (VIDEO_CHAT_HTTP) comes before one key of it (VIDEO_CHAT_HTTP__PORT).
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX):
            path = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
            origin = f"environment variable {name}"
            yield from _leaves(path, _parse_variable(path, environ[name], origin), origin)


def _flag_assignments(flags: Mapping[str, Any]) -> Iterator[_Assignment]:
    for assignment in _leaves((), flags, "command line"):
        if assignment.value is not None:
            yield assignment


def _leaves(path: KeyPath, value: Any, origin: str) -> Iterator[_Assignment]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves((*path, str(key)), inner, origin)
    elif path:
        yield _Assignment(path, value, origin)


def _merge(assignments: Iterable[_Assignment]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for assignment in assignments:
        *groups, last = assignment.path
        node = tree
        for key in groups:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        if assignment.value != {} or last not in node:  # an empty mapping adds nothing
            node[last] = assignment.value
    return tree


def _parse_variable(path: KeyPath, text: str, origin: str) -> Any:
    """Returns the value that a variable's text stands for; the text itself if it makes no sense."""
    field = _field(path)
    if field is not None and get_origin(field.annotation) is tuple:
        value = _parse_scalar(text)
        return value if isinstance(value, list) else text.split(",")
    if (
        field is not None
        and field.annotation is not None
        and not (len(path) == 1 and _is_section(path[0]))
    ):
        try:
            return TypeAdapter[Any](field.annotation).validate_strings(text)
        except ValidationError:
            return text  # the tree's own check names the rule
    value = _parse_scalar(text)
    if len(path) == 1 and _is_section(path[0]) and not isinstance(value, dict):
        raise ConfigurationError(f"{path[0]}: {_shown(text)} ({origin}) must be a mapping")
    return value


def _parse_scalar(text: str) -> Any:
    try:
        return json.loads(text)  # first, because YAML takes 1e-3 for a string
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _field(path: KeyPath) -> FieldInfo | None:
    """Returns the tree's field at ``path``, None if there is none."""
    fields, field = Settings.model_fields, None
    for key in path:
        field = fields.get(key)
        if field is None:
            return None
        fields = _fields_of(field)
    return field


def _fields_of(field: FieldInfo) -> dict[str, FieldInfo]:
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_fields
    return {}


def _is_section(key: str) -> bool:
    field = Settings.model_fields.get(key)
    return field is not None and (key == "engine" or bool(_fields_of(field)))


def _one_line(error: ValidationError, assignments: list[_Assignment]) -> str:
    """Returns the first fault: key, value, where it came from, and the rule or the likely key."""
    first, *others = error.errors(include_url=False)
    path = tuple(str(key) for key in first["loc"])
    origin = _origin(path, assignments)
    if first["type"] == "extra_forbidden":
        message = (
            f"unknown key {'.'.join(path)} = {_shown(first['input'], path)} ({origin}); "
            f"{_hint(path)}"
        )
    elif first["type"] == "value_error":
        message = f"{'.'.join(path)}: {first['ctx']['error']} ({origin})"
    else:
        is_section = first["type"] in ("model_type", "dict_type")
        rule = "must be a mapping" if is_section else _rule(first["msg"])
        message = f"{'.'.join(path)}: {_shown(first['input'], path)} ({origin}) {rule}"
    message += f"; {len(others)} more" if others else ""
    return " ".join(message.splitlines())


def _rule(message: str) -> str:
    """Returns pydantic's ``Input should be ...`` as the end of a sentence about the value."""
    return message.replace("Input should", "must", 1).replace("String should", "must", 1)


def _origin(path: KeyPath, assignments: list[_Assignment]) -> str:
    """Returns who gave the value at ``path``, or the values below it, without repetition."""
    last_word = {given.path: given.origin for given in assignments}
    # A fault may also lie within a value, such as one of a list.
    origins = [
        origin
        for given, origin in last_word.items()
        if given[: len(path)] == path or path[: len(given)] == given
    ]
    return ", ".join(dict.fromkeys(origins)) or "default"


def _hint(path: KeyPath) -> str:
    *groups, wrong = path
    parent = _field(tuple(groups)) if groups else None
    valid = list(_fields_of(parent) if parent else Settings.model_fields)
    near = difflib.get_close_matches(wrong, valid, n=1)
    if near:
        return f"did you mean {'.'.join((*groups, near[0]))}?"
    return f"valid keys are {', '.join(valid)}"


def _shown(value: Any, path: KeyPath = ()) -> str:
    """Returns a value for a message, unless it may be or hold an API key."""
    text = repr(value)
    if "key" in f"{text} {' '.join(path)}".lower():
        return "a value that is not shown"
    return text if len(text) <= 80 else f"{text[:77]}..."


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a repeated key is an error; plain YAML drops the first of two sections."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                problem = f"key {key.value} appears twice or is no text"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


__all__ = [
    "EMBEDDED_MODEL",
    "ENV_PREFIX",
    "FileSettings",
    "HttpSettings",
    "LogSettings",
    "PruningSettings",
    "Settings",
    "VideoSettings",
    "load_settings",
]
