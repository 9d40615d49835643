"""The gate that every text on its way into the prompt passes."""

from collections.abc import Sequence
from typing import Any

from server.api.validation import shown
from server.errors import InvalidRequest

MAX_TEXT_CHARACTERS = 1_000_000
"""Text of one request in all: messages, tool calls and tool descriptions."""
MAX_DEPTH = 64


class TextGate:
    """Admits the texts of one request: bounded in all, and free of the model's special tokens.

    A special token in a text would be read as the structure of the prompt: another speaker's turn,
    or the place of a video that is not there.
    """

    def __init__(self, reserved_texts: frozenset[str]) -> None:
        self._reserved_texts = sorted(reserved_texts)
        self._characters_left = MAX_TEXT_CHARACTERS

    def admit(self, text: str, param: str) -> str:
        """Returns ``text``.

        Raises:
            InvalidRequest: it holds a reserved token, or the request has too much text.
        """
        self._characters_left -= len(text)
        if self._characters_left < 0:
            raise InvalidRequest(
                f"The texts of the request have more than {MAX_TEXT_CHARACTERS} characters in all. "
                "Send a shorter conversation.",
                param=param,
            )
        self._refuse_reserved(text, param)
        return text

    def check_seams(self, texts: Sequence[str], param: str) -> None:
        """Returns if no reserved token lies across texts that the prompt has side by side.

        Raises:
            InvalidRequest: one does.
        """
        if len(texts) > 1:
            self._refuse_reserved("".join(texts), param)

    def admit_json(self, value: Any, param: str) -> None:
        """Returns if every string in ``value`` may be admitted.

        Raises:
            InvalidRequest: as for ``admit``, or it is too deep, or a number in it is infinite.
        """
        level: list[Any] = [value]
        for _ in range(MAX_DEPTH):
            if not level:
                return
            deeper: list[Any] = []
            for item in level:
                match item:
                    case str():
                        self.admit(item, param)
                    case dict():
                        deeper += [*item.keys(), *item.values()]
                    case list():
                        deeper += item
                    case float() if item in (float("inf"), float("-inf")):
                        raise InvalidRequest(f"{param} holds an infinite number.", param=param)
            level = deeper
        raise InvalidRequest(f"{param} is nested deeper than {MAX_DEPTH} levels.", param=param)

    def _refuse_reserved(self, text: str, param: str) -> None:
        for token in self._reserved_texts:
            if token in text:
                raise InvalidRequest(
                    f"{param} contains {shown(token)}, which is a control token of this model. "
                    "Take it out of the text, or put a space into it.",
                    param=param,
                    code="reserved_token",
                )
