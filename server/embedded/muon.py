"""Muon for a CPU: momentum whose singular values are made equal, in float32.

Several times fewer steps than AdamW for the matrices of a small transformer. ``torch.optim.Muon``
computes in bfloat16, which without hardware for it takes longer than the rest of a step.
"""

from collections.abc import Iterable
from typing import Any

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic that drives singular values towards 1."""
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised steps, for matrices; of kernels, each output is a row."""

    def __init__(
        self,
        parameters: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Change each matrix by a step of 0.2 times the learning rate, root mean square."""
        for group in self.param_groups:
            by_shape: dict[Any, list[Any]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.flatten(1).shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                moved = torch.stack(
                    [self._moved(p, group["momentum"]).flatten(1) for p in parameters]
                )
                steps = orthogonalised(moved)
                size = group["lr"] * 0.2 * max(shape) ** 0.5
                for parameter, step in zip(parameters, steps, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(step.reshape(parameter.shape), alpha=-size)

    def _moved(self, parameter: Any, momentum: float) -> torch.Tensor:
        state = self.state[parameter]
        if "average" not in state:
            state["average"] = torch.zeros_like(parameter)
        average = state["average"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(average, momentum)


def orthogonalised(matrices: torch.Tensor) -> torch.Tensor:
    """Returns matrices with the same singular vectors, and singular values of about 1.

    Args:
        matrices: shape (n, rows, columns).
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    found = matrices.mT if is_tall else matrices
    found = found / (found.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = found @ found.mT
        found = a * found + (b * gram + c * gram @ gram) @ found
    return found.mT if is_tall else found
