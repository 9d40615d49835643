"""The fields beside the messages: sampling, tools, output format. Types and ranges only.

What they mean, and how they go together, is vLLM's own affair; it answers with its own 400s.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from server.api.schemas import check_schema
from server.api.validation import as_object, first_fault, wrong_type
from server.engine.base import JsonObject
from server.errors import InvalidRequest

_MAX_TOKENS = 2**31 - 1
_MAX_FIELDS = 64
_MAX_BIASES = 1024


class _Wire(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _check_size(cls, value: Any) -> Any:
        return _bounded(value, _MAX_FIELDS)


def _bounded(value: Any, max_entries: int) -> Any:
    """Returns ``value``, an object of few entries: pydantic would describe every wrong one."""
    if isinstance(value, dict) and len(value) > max_entries:
        raise ValueError(f"It should have at most {max_entries} entries")
    return value


def _bounded_biases(value: Any) -> Any:
    return _bounded(value, _MAX_BIASES)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenCount = Annotated[int, Field(ge=1, le=_MAX_TOKENS)]
TokenId = Annotated[int, Field(ge=0, le=_MAX_TOKENS)]
TokenIdText = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
StopText = Annotated[str, Field(min_length=1, max_length=64)]
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class StreamOptions(_Wire):
    """What a stream holds beside the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = Field(default=None, exclude=True)
    """Of OpenAI; chunks are not padded here."""


class Function(_Wire):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(default=None, exclude=True)
    """Of OpenAI; what binds the output here is ``tool_choice``."""


class Tool(_Wire):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class NamedFunction(_Wire):
    """The function that the model has to call."""

    name: FunctionName


class NamedToolChoice(_Wire):
    """The tool that the model has to call."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(_Wire):
    """A named JSON schema."""

    name: str = Field(min_length=1, max_length=64)
    description: str | None = Field(default=None, max_length=1000)
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(_Wire):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def _tool_choice(value: Any) -> Any:
    """Returns a checked ``tool_choice``, whose type no union of pydantic's would name clearly."""
    if value is None or value in ("none", "auto", "required"):
        return value
    if isinstance(value, dict):
        try:
            return NamedToolChoice.model_validate(value).model_dump()
        except ValidationError as error:
            raise first_fault(error, "tool_choice") from error
    raise wrong_type(value, "none, auto, required or an object that names a tool", "tool_choice")


class ChatOptions(_Wire):
    """Every field that goes to the engine as it came, apart from the model and the messages."""

    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    logit_bias: (
        Annotated[
            dict[TokenIdText, Annotated[float, Field(ge=-100, le=100)]],
            BeforeValidator(_bounded_biases),
        ]
        | None
    ) = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    min_tokens: Annotated[int, Field(ge=0, le=_MAX_TOKENS)] | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Annotated[list[StopText], Field(max_length=4), BeforeValidator(_as_list)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Annotated[Any, BeforeValidator(_tool_choice)] = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    include_reasoning: bool | None = None

    @classmethod
    def of(cls, fields: JsonObject) -> Self:
        """Returns the options in ``fields``.

        Raises:
            InvalidRequest: one of them has a wrong type or is out of its range.
        """
        try:
            return cls.model_validate(as_object(fields, "body"))
        except ValidationError as error:
            raise first_fault(error) from error

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        # Not ValueError, so that pydantic lets it pass with its own param.
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream: true.", param="stream_options")
        self._check_schemas()
        return self

    def _check_schemas(self) -> None:
        """Check what vLLM makes a grammar of: an output format, or the tools it has to call."""
        form = self.response_format
        if form is not None and form.type == "json_schema":
            if form.json_schema is None:
                raise wrong_type(None, "an object", "response_format.json_schema")
            check_schema(form.json_schema.schema_, "response_format.json_schema.schema")
        if self.tools and self.tool_choice not in (None, "none", "auto"):
            for index, tool in enumerate(self.tools):
                check_schema(tool.function.parameters, f"tools[{index}].function.parameters")

    def forwarded(self) -> JsonObject:
        """Returns the options that were given, in the form in which the engine takes them."""
        return self.model_dump(exclude_none=True, by_alias=True)


FORWARDED_FIELDS = frozenset(ChatOptions.model_fields)
