"""JSON schemas from clients that bind what the model may write: bounded before vLLM compiles them.

vLLM turns such a schema into a grammar, whose cost is the client's choice unless it is limited.
"""

import json
from typing import Any

from server.errors import InvalidRequest

MAX_SCHEMA_CHARACTERS = 16_000
MAX_SCHEMA_DEPTH = 32
MAX_REPETITIONS = 10_000
MAX_NUMBER = 2**53
"""Beyond it a JSON number is not exact; vLLM sends no integer above 64 bits to its engine."""

_REGEX_KEYS = ("pattern", "patternProperties")
_REPETITION_KEYS = (
    *("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)


def check_schema(schema: Any, param: str) -> None:
    """Returns if a grammar can be made of ``schema`` at a bounded cost.

    Raises:
        InvalidRequest: it is too large or deep, repeats too much, or holds a regular expression.
    """
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARACTERS:
        raise InvalidRequest(
            f"{param} is larger than {MAX_SCHEMA_CHARACTERS} characters. Send a smaller schema.",
            param=param,
        )
    _check_references(schema, param)
    level = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        if not level:
            return
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                _check_keywords(item, param)
                deeper += item.values()
            elif isinstance(item, list):
                deeper += item
            elif isinstance(item, int | float) and abs(item) > MAX_NUMBER:
                raise InvalidRequest(
                    f"{param} holds a number beyond 2**53. Use a smaller one.", param=param
                )
        level = deeper
    raise InvalidRequest(f"{param} is nested deeper than {MAX_SCHEMA_DEPTH} levels.", param=param)


def _check_references(schema: Any, param: str) -> None:
    """Refuse a reference that leads to itself without anything being written on the way.

    vLLM's grammar compilers accept it and then find no token that may come next.
    """

    def follow(node: Any, seen: frozenset[str]) -> None:
        if not isinstance(node, dict):
            return
        reference = node.get("$ref")
        if isinstance(reference, str):
            if reference in seen:
                raise InvalidRequest(f"{param} has a $ref that leads to itself.", param=param)
            follow(_resolved(schema, reference), seen | {reference})
        for key in ("anyOf", "oneOf", "allOf"):
            for option in node[key] if isinstance(node.get(key), list) else ():
                follow(option, seen)

    follow(schema, frozenset({"#"}))
    for key in ("$defs", "definitions"):
        definitions = schema.get(key) if isinstance(schema, dict) else None
        for name, definition in definitions.items() if isinstance(definitions, dict) else ():
            follow(definition, frozenset({f"#/{key}/{name}"}))


def _resolved(schema: Any, reference: str) -> Any:
    """Returns what a reference within ``schema`` points to, None if it points nowhere."""
    node = schema
    for part in reference.removeprefix("#").split("/")[1:]:
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _check_keywords(item: dict[str, Any], param: str) -> None:
    # A property that is called "pattern" has a schema, not a string, as its value.
    if isinstance(item.get("pattern"), str) or isinstance(item.get("patternProperties"), dict):
        raise InvalidRequest(
            f"{param} uses a regular expression, which this server does not take. Leave out "
            f"{' and '.join(_REGEX_KEYS)}.",
            param=param,
        )
    for key in _REPETITION_KEYS:
        value = item.get(key)
        if isinstance(value, int | float) and value > MAX_REPETITIONS:
            raise InvalidRequest(
                f"{param} has {key} above {MAX_REPETITIONS}. Use a smaller one.", param=param
            )
