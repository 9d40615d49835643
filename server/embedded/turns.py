"""The token ids and positions of a prompt: one video, and questions that do not see each other."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.embedded.figures import COLOURS, SHAPES
from server.embedded.views import LABELS, NO_LABEL
from server.evs.walks import Skeleton, interleaved_walk

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Opening:
    """What comes before the first question: the message's head and the video, unpruned."""

    token_ids: Ints
    """Shape (N,)."""
    is_video: NDArray[np.bool_]
    """Shape (N,)."""
    positions: Ints
    """Shape (N, 3)."""

    @property
    def extent(self) -> int:
        """The position of what follows."""
        return int(self.positions.max()) + 1


@dataclass(frozen=True, slots=True)
class Turns:
    """Questions and answers about one video, one after another."""

    token_ids: Ints
    """Shape (M,)."""
    labels: Ints
    """The token that should follow each one; NO_LABEL outside of answers. Shape (M,)."""
    offsets: Ints
    """Positions, counted from the opening's extent. Shape (M,)."""
    question: Ints
    """Which of the questions a token belongs to, from 1. Shape (M,)."""
    pointed: Ints
    """The shape in LABELS that a question names its object by, at the token before the answer.

    0 elsewhere, and where an object is named by its colour. Shape (M,)."""


class Prompts:
    """Lays out prompts in the tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
        self._video_token_id: int = tokenizer.convert_tokens_to_ids("<|video_pad|>")
        self._known: dict[str, list[int]] = {}
        self._colours = {self._encode(f" {colour}")[0] for colour in COLOURS}
        self._shapes = {self._encode(f" {s}")[0]: LABELS["shape"].index(s) for s in SHAPES}

    def opening(
        self, timestamps: list[float], rows: int, columns: int, *, system: str | None = None
    ) -> Opening:
        """Returns the start of a prompt whose grids have ``rows`` x ``columns`` tokens."""
        head = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
        # The processor keeps the marks around the placeholder, and adds others around each grid.
        head_ids = self._ids(f"{head}<|im_start|>user\n<|vision_start|>")
        end_ids = self._ids("<|vision_end|>")
        parts = [
            self._ids(f"<{seconds:.1f} seconds>")
            + self._ids("<|vision_start|><|video_pad|><|vision_end|>")
            for seconds in timestamps
        ]
        skeleton = Skeleton.of(
            np.array([token for part in parts for token in part]),
            video_token_id=self._video_token_id,
        )
        walk = interleaved_walk(skeleton, rows, columns)
        whole = skeleton.placeholder(
            tokens_per_grid=rows * columns, num_retained=rows * columns * len(timestamps)
        )
        before = np.arange(len(head_ids))[:, None].repeat(3, axis=1)
        after = np.full((1, 3), len(head_ids) + walk.extent)
        return Opening(
            np.array(head_ids + whole + end_ids),
            np.concatenate([np.zeros(len(head_ids), np.bool_), walk.is_video, [False]]),
            np.concatenate([before, walk.relative + len(head_ids), after]),
        )

    def turns(self, pairs: list[tuple[str, str]], *, is_dialogue: bool) -> Turns:
        """Returns (question, answer) pairs, either as one dialogue or each as the first turn."""
        token_ids: list[int] = []
        labels: list[int] = []
        offsets: list[int] = []
        question: list[int] = []
        pointed: list[int] = []
        at = 0
        for number, (asked, answered) in enumerate(pairs, 1):
            follows = is_dialogue and number > 1
            start = self._ids("\n<|im_start|>user\n") if follows else []
            asked_ids = (
                start + self._encode(asked) + self._ids("<|im_end|>\n<|im_start|>assistant\n")
            )
            answer_ids = self._ids(f"{answered}<|im_end|>")
            ids = asked_ids + answer_ids
            token_ids += ids
            labels += [NO_LABEL] * (len(asked_ids) - 1) + answer_ids + [NO_LABEL]
            first = at if is_dialogue else 0
            offsets += range(first, first + len(ids))
            question += [1 if is_dialogue else number] * len(ids)
            shape = self._named_shape(asked_ids)
            pointed += [0] * (len(asked_ids) - 1) + [shape] + [0] * len(answer_ids)
            at += len(ids)
        columns = (token_ids, labels, offsets, question, pointed)
        return Turns(*(np.array(values) for values in columns))

    def _named_shape(self, asked_ids: list[int]) -> int:
        """Returns the shape that a question names without a colour, as in LABELS; 0 if none."""
        named = [self._shapes[token] for token in asked_ids if token in self._shapes]
        has_colour = any(token in self._colours for token in asked_ids)
        return named[0] if len(named) == 1 and not has_colour else 0

    def _ids(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._encode(text)
        return self._known[text]
