"""One step of training: losses of a batch, optimisers, and what is kept to go on later.

Language loss alone leaves shapes and directions on a plateau for tens of thousands of clips. So
linear heads on the vision tokens are asked for the object under each of them; they are dropped
afterwards.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from server.embedded import passes, pointing, views
from server.embedded.architecture import HIDDEN_SIZE
from server.embedded.batches import Batch
from server.embedded.muon import Muon
from server.embedded.reading import read
from server.embedded.views import CHANGE_LABELS, LABELS, NO_LABEL

HEADS_WEIGHT = 1.5
_HEAD_WEIGHTS = {"colour": 1.0, "shape": 2.0, "direction": 1.0, "change": 2.0, "second": 1.0}
"""Shapes come last."""
_COOLDOWN = 0.3
"""Part of the steps over which the learning rate goes down."""
_CHANGES_LAYER = 1
"""The layer of the language model after which it is asked for changes."""
_NOTHING_WEIGHT = 0.15
"""Of tokens without an object, which are most."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Learning rates at their highest."""

    matrices: float = 3e-3
    """Of Muon, for the hidden layers' matrices; scaled so that AdamW's would be alike."""
    rest: float = 1.5e-3
    """Of AdamW, for embeddings, output layer, heads, norms and biases."""


class Heads(nn.Module):
    """What vision tokens are asked for during training."""

    def __init__(self, labels: dict[str, tuple[str, ...]]) -> None:
        super().__init__()
        self._sizes = {head: len(names) for head, names in labels.items()}
        self.linear = nn.Linear(HIDDEN_SIZE, sum(self._sizes.values()))

    def loss(
        self, merged: torch.Tensor, labels: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Returns the sum of the heads' losses, and how often each is right about objects."""
        # Normalised, so that longer vectors gain nothing and drown no text.
        evened = functional.rms_norm(merged, merged.shape[-1:])
        logits = self.linear(evened).split(list(self._sizes.values()), dim=-1)
        total, right = merged.new_zeros(()), {}
        for scores, head in zip(logits, self._sizes, strict=True):
            target = labels[head].flatten()
            weights = torch.ones(scores.shape[-1])
            weights[0] = _NOTHING_WEIGHT
            flat = scores.flatten(0, 1)
            total = total + _HEAD_WEIGHTS[head] * functional.cross_entropy(
                flat, target, weight=weights, ignore_index=NO_LABEL
            )
            is_object = target > 0
            hits = flat[is_object].argmax(dim=-1) == target[is_object]
            right[head] = float(hits.float().mean()) if len(hits) else 1.0
        return total, right


def both_heads() -> nn.ModuleDict:
    """Returns the heads on the vision tower and on the language model half way up."""
    return nn.ModuleDict({"seen": Heads(LABELS), "changes": Heads(CHANGE_LABELS)})


def losses(
    model: Any, heads: Any, batch: Batch, *, finds_shapes: bool = False
) -> tuple[torch.Tensor, dict[str, float]]:
    """Returns the loss of a batch, and figures to show."""
    tokens = passes.video_tokens(model, views.normalised(batch.patches), batch.grid)
    seen_loss, figures = heads["seen"].loss(tokens.merged, batch.token_labels)
    reading = read(model, batch, tokens)
    states, kept = reading.turns, reading.kept
    changes = {head: labels.gather(1, kept) for head, labels in batch.change_labels.items()}
    changes_loss, known = heads["changes"].loss(reading.watched(_CHANGES_LAYER), changes)
    heads_loss = seen_loss + changes_loss
    if finds_shapes:
        missed, figures["found"] = pointing.loss(model, batch, reading)
        heads_loss = heads_loss + missed
    figures |= {head: known[head] for head in ("change", "second")}
    answered = batch.labels != NO_LABEL
    logits = model.lm_head(states[answered])
    target = batch.labels[answered]
    wrong = functional.cross_entropy(logits, target, reduction="sum")
    num_answers = int((target == model.generation_config.eos_token_id).sum())
    language_loss = wrong / num_answers
    figures["answers"] = _right_answers(logits.argmax(-1) == target, batch)
    figures["language"] = float(language_loss.detach())
    figures["heads"] = float(heads_loss.detach())
    return language_loss + HEADS_WEIGHT * heads_loss, figures


def _right_answers(hits: torch.Tensor, batch: Batch) -> float:
    """Returns the part of answers in which every token would have been chosen."""
    ends = batch.labels[batch.labels != NO_LABEL] == batch.labels.max()
    answer = torch.cat([torch.zeros(1, dtype=torch.long), ends.long().cumsum(0)[:-1]])
    misses = torch.zeros(int(answer[-1]) + 1).index_add_(0, answer, (~hits).float())
    return float((misses == 0).float().mean())


def share_gradients(parameters: Iterable[Any]) -> None:
    """Replace each gradient by its mean over all processes."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    together = torch.cat([gradient.flatten() for gradient in gradients])
    torch.distributed.all_reduce(together)
    together /= torch.distributed.get_world_size()
    parts = together.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


class Optimisers:
    """Muon for the matrices of hidden layers, AdamW for all else, with one schedule."""

    def __init__(self, model: Any, heads: Any, *, rates: Rates, steps: int, warmup: int) -> None:
        matrices: list[Any] = []
        rest: list[Any] = []
        for name, parameter in model.named_parameters():
            is_matrix = parameter.ndim >= 2 and "embed_tokens" not in name
            is_table = "pos_embed" in name or "lm_head" in name
            (matrices if is_matrix and not is_table else rest).append(parameter)
        self._both = [
            Muon(matrices, lr=rates.matrices, weight_decay=0.02),
            torch.optim.AdamW(
                [*rest, *heads.parameters()],
                lr=rates.rest,
                betas=(0.9, 0.98),
                weight_decay=0.0,
            ),
        ]
        self._highest = (rates.matrices, rates.rest)
        self._parameters = [*matrices, *rest, *heads.parameters()]
        self._steps, self._warmup = steps, warmup

    def step(self, number: int) -> None:
        """Change the parameters by their gradients, and forget those."""
        nn.utils.clip_grad_norm_(self._parameters, 2.0)
        scale = schedule(number, steps=self._steps, warmup=self._warmup)
        for optimiser, highest in zip(self._both, self._highest, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = highest * scale
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state(self) -> list[Any]:
        """Returns what ``load`` takes."""
        return [optimiser.state_dict() for optimiser in self._both]

    def load(self, state: list[Any]) -> None:
        """Go on from a state."""
        for optimiser, part in zip(self._both, state, strict=True):
            optimiser.load_state_dict(part)


class Average:
    """The mean of a model's weights over its last steps, which answers better than they do."""

    def __init__(self, model: Any, *, steps: int = 100) -> None:
        self._parameters = list(model.parameters())
        self._mean = [parameter.detach().clone() for parameter in self._parameters]
        self._share = 1 / steps

    @torch.no_grad()
    def follow(self) -> None:
        """Move towards the weights as they are now."""
        torch._foreach_lerp_(self._mean, self._parameters, self._share)

    def averaged(self, model: Any) -> Any:
        """Returns a copy of ``model`` with the mean for weights."""
        copied = copy.deepcopy(model)
        with torch.no_grad():
            for parameter, mean in zip(copied.parameters(), self._mean, strict=True):
                parameter.copy_(mean)
        return copied

    def state(self) -> list[torch.Tensor]:
        """Returns what ``load`` takes."""
        return self._mean

    def load(self, state: list[torch.Tensor]) -> None:
        """Go on from a state."""
        self._mean = state


def schedule(number: int, *, steps: int, warmup: int) -> float:
    """Returns the part of the highest learning rate at a step.

    Up in a line, level, and down in a line over the last part, so that a training that goes well
    can be made longer before it goes down.
    """
    left = (steps - number) / (steps * _COOLDOWN)
    return min(1.0, (number + 1) / warmup, max(0.01, left))


def save_state(path: Path, **state: Any) -> None:
    """Write what a training needs to go on, whole or not at all."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)
