"""The oracle of all Python suites: the whole model in one process, by plain autograd.

Stages are numbered; parameters have the logical names that dualpipe.core gives by default, "stage2.weight".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class WholeStep:
    """Of one step: the loss of each micro-batch, and every gradient by logical name."""

    losses: list[Tensor]
    gradients: dict[str, Tensor]
    outputs: list[Tensor]


def named_gradients(stages: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Of a list of stages, by logical name; those that have one."""
    return {
        f"stage{s}.{name}": parameter.grad.clone()
        for s, stage in enumerate(stages)
        for name, parameter in stage.named_parameters()
        if parameter.grad is not None
    }


def whole_step(
    stages: Sequence[nn.Module], inputs: Sequence[Tensor], labels: Sequence[Tensor], loss: Loss, scale: float
) -> WholeStep:
    """Forward and backward of sum_k scale * loss_k through all stages; leaves no gradient behind."""
    losses, outputs = [], []
    for x, y in zip(inputs, labels, strict=True):
        for stage in stages:
            x = stage(x)
        losses.append(loss(x, y))
        outputs.append(x.detach())
        (scale * losses[-1]).backward()
    gradients = named_gradients(stages)
    for stage in stages:
        stage.zero_grad()
    return WholeStep([value.detach() for value in losses], gradients, outputs)


def relative_error(value: Tensor, wanted: Tensor) -> float:
    """|value - wanted| / |wanted|, of the norms."""
    scale = wanted.norm().item()
    return (value - wanted).norm().item() / (scale or 1.0)


def worst_error(gradients: Mapping[str, Tensor], wanted: Mapping[str, Tensor], names: Sequence[str]) -> float:
    """The largest relative error of the named gradients; infinite where one is missing."""
    return max(relative_error(gradients[name], wanted[name]) if name in gradients else float("inf") for name in names)
