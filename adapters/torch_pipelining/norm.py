"""The norm of all gradients of a pipelined model, for clipping and for the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.distributed.tensor import DTensor

from .stage_adapter import bare_module


@torch.no_grad()
def norm_of_stages(stages: Sequence[_PipelineStageBase], holders: Mapping[int, int] | None = None) -> float:
    """From the gradients that the ranks of the pipeline group hold. Collective over it and the meshes of DTensors.

    ``holders``: by ``id()`` of a parameter, how many ranks hold it, with equal gradients. Default: one.
    """
    parameters = {id(p): p for stage in stages for p in bare_module(stage).parameters() if p.grad is not None}
    device = stages[0].device
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for key, parameter in parameters.items():
        squares += _square(parameter.grad).to(device) / (holders or {}).get(key, 1)
    dist.all_reduce(squares, group=stages[0].group)
    return squares.sqrt().item()


def _square(gradient: Tensor) -> Tensor:
    if isinstance(gradient, DTensor):
        return torch.linalg.vector_norm(gradient.double()).full_tensor().square()
    return gradient.double().square().sum()


def gradient_norm(schedule: Any) -> float:
    """Of the last ``step()`` of our schedules or torch's, the same on every rank, before clipping. Collective.

    Raises ``ValueError`` under ``reduce_mirrors=False``, where no rank holds whole gradients.
    """
    if hasattr(schedule, "gradient_norm"):
        return schedule.gradient_norm()
    return norm_of_stages(stages_of_schedule(schedule))


def stages_of_schedule(schedule: Any) -> list[_PipelineStageBase]:
    """This rank's stages, whether torch's class takes one or several."""
    return list(schedule._stages) if hasattr(schedule, "_stages") else [schedule._stage]


@torch.no_grad()
def clip_grad_norm_(schedule: Any, max_norm: float) -> float:
    """As ``torch.nn.utils.clip_grad_norm_`` for a pipelined model: gives the norm before clipping. Collective."""
    norm = gradient_norm(schedule)
    scale = max_norm / (norm + 1e-6)
    if scale < 1:
        for parameter in {id(p): p for s in stages_of_schedule(schedule) for p in s.submod.parameters()}.values():
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
    return norm
