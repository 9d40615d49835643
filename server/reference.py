"""The settings tree as a document: rows for ``docs/settings.md``, a file with every default."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from server.settings import ENV_PREFIX, Settings


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting, ready to print."""

    path: str
    """Dotted path in the tree, such as ``http.port``."""
    kind: str
    """Type and bounds in words."""
    default: Any
    """Value when nobody gives one."""
    description: str
    """The field's docstring, on one line."""

    @property
    def variable(self) -> str:
        """Environment variable that sets it."""
        return ENV_PREFIX + self.path.replace(".", "__").upper()


def setting_rows() -> Iterator[SettingRow]:
    """Yields every setting that takes a value, in the order of the tree."""
    for key, field in Settings.model_fields.items():
        group = _group(field)
        if group is None:
            yield _row(key, field)
        else:
            yield from (_row(f"{key}.{name}", inner) for name, inner in group.model_fields.items())


def settings_as_markdown() -> str:
    """Returns the text of ``docs/settings.md``."""
    lines = [
        "# Settings",
        "",
        "Made by `make docs` from `server/settings`. Later sources win: defaults, the YAML file",
        "(`--config`), environment variables, flags. A wrong key or value stops the start.",
        "",
        "Environment variables are the path in capitals after `VIDEO_CHAT_`, with `__` between the",
        "levels: `VIDEO_CHAT_HTTP__PORT=9000`, `VIDEO_CHAT_ENGINE__MAX_MODEL_LEN=4096`. A variable",
        'may also hold a section as JSON or YAML: `VIDEO_CHAT_ENGINE=\'{"dtype": "float32"}\'`.',
        "",
        "| setting | value | default | meaning |",
        "|---|---|---|---|",
    ]
    for row in setting_rows():
        cells = (
            f"`{row.path}`",
            row.kind,
            f"`{_scalar(row.default)}`",
            row.description.replace("``", "`"),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def settings_as_yaml() -> str:
    """Returns the text of ``config/server.yaml``: every default under its description."""
    lines = [
        "# Every setting with its default, made by `make docs` from server/settings.",
        "# Copy what you change into a file of your own; what is left out keeps its default.",
    ]
    for key, field in Settings.model_fields.items():
        group = _group(field)
        lines += ["", *_yaml_lines(_row(key, field), indent="", is_group=group is not None)]
        if group is not None:
            for name, inner in group.model_fields.items():
                lines += _yaml_lines(_row(name, inner), indent="  ", is_group=False)
    return "\n".join(lines) + "\n"


def _yaml_lines(row: SettingRow, *, indent: str, is_group: bool) -> list[str]:
    kind = "" if is_group else f" ({row.kind})"
    value = "" if is_group else f" {_scalar(row.default)}"
    description = row.description.replace("``", "")
    return [f"{indent}# {description}{kind}", f"{indent}{row.path}:{value}"]


def _row(path: str, field: FieldInfo) -> SettingRow:
    default = field.get_default(call_default_factory=True, validated_data={})
    return SettingRow(path, _kind(field), default, " ".join((field.description or "").split()))


def _group(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _kind(field: FieldInfo) -> str:
    if get_origin(field.annotation) is tuple:
        return "list of texts"
    if get_origin(field.annotation) is Literal:
        return "one of " + ", ".join(get_args(field.annotation))
    words: dict[Any, str] = {bool: "true or false", int: "integer", float: "number", str: "text"}
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    kind = kinds[0] if kinds and get_origin(field.annotation) is not dict else field.annotation
    return ", ".join([words.get(kind, "mapping"), *_bounds(field)])


def _bounds(field: FieldInfo) -> Iterator[str]:
    for rule in field.metadata:
        match rule:
            case Ge(ge=bound):
                yield f"at least {bound}"
            case Gt(gt=bound):
                yield f"above {bound}"
            case Le(le=bound):
                yield f"at most {bound}"
            case Lt(lt=bound):
                yield f"below {bound}"


def _scalar(value: Any) -> str:
    if isinstance(value, Mapping) and not value:
        return "{}"
    if isinstance(value, tuple):
        value = list(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("...\n").strip()
