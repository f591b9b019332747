"""Stages whose parameters are DTensors: ``fully_shard`` (FSDP2) and ``replicate``, tensor parallelism.

Their gradients come out of their own hooks, so the engine does not see these parameters. As in torch's schedules,
nothing is synchronized or resharded before the last backward, and reduction is finished after it. Under DualPipe the
two mirrors then add their shards, which both hold alike: rank r and P-1-r of one data rank have the same coordinates in
the mesh of the stage.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.distributed.tensor import DTensor

from .links import Link
from .stage_adapter import bare_module, is_fully_sharded, sharded_parameters


class ShardedStages:
    """The stages of a rank, in ascending order of their index, and the link to the mirror (``None``: no mirror)."""

    def __init__(self, origin: str, stages: Sequence[_PipelineStageBase], mirror: Link | None) -> None:
        self._origin = origin
        self._stages = [stage for stage in stages if is_fully_sharded(stage)]
        self._parameters = [p for stage in stages for p in sharded_parameters(stage)]
        self._mirror = mirror
        self._earlier: list[Tensor | None] = []

    def begin_step(self) -> None:
        """Before the first forward of a training step."""
        for stage in self._stages:
            stage.submod.set_reshard_after_backward(False)
            stage.submod.set_requires_gradient_sync(False)
        if self._mirror is not None and not self._earlier:
            self._earlier = [p.grad for p in self._parameters]
            for parameter in self._parameters:
                parameter.grad = None

    def finish_step(self, finalize: bool) -> None:
        """Behind the last W. Without ``finalize`` gradients stay unsharded, for a later step to finish."""
        if not finalize and self._stages:
            return
        for stage in self._stages:
            stage.perform_reduce_grad(1)
        if self._mirror is not None:
            self._add_mirror()

    def _add_mirror(self) -> None:
        has_grad = torch.tensor([p.grad is not None for p in self._parameters], dtype=torch.int32)
        mine = [_local(p if p.grad is None else p.grad) for p in self._parameters]
        mine = [torch.zeros_like(g) if p.grad is None else g for g, p in zip(mine, self._parameters, strict=True)]
        if not mine:
            return
        flags, *theirs = self._mirror.swap([has_grad.to(mine[0].device), *mine])
        for parameter, own, other, given in zip(self._parameters, mine, theirs, flags.tolist(), strict=True):
            self._set_sum(parameter, own, other, bool(given))
        self._add_earlier()

    def _set_sum(self, parameter: torch.nn.Parameter, own: Tensor, other: Tensor, other_given: bool) -> None:
        if parameter.grad is None and not other_given:
            return
        total = own + other if self._mirror.is_lower else other + own
        if parameter.grad is None:
            parameter.grad = DTensor.from_local(total, parameter.device_mesh, parameter.placements, run_check=False,
                                                shape=parameter.shape, stride=parameter.stride())
        else:
            own.copy_(total)

    def _add_earlier(self) -> None:
        for parameter, earlier in zip(self._parameters, self._earlier, strict=True):
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else earlier.add_(parameter.grad)
        self._earlier = []

    def compare_copies(self) -> None:
        """Before the first step. Collective over mirrors. Raises ``ValueError`` where they hold different shards."""
        if self._mirror is None or not self._parameters:
            return
        with torch.no_grad():
            mine = torch.stack([_fingerprint(p) for p in self._parameters])
        (theirs,) = self._mirror.swap([mine])
        if not torch.equal(mine, theirs):
            raise ValueError(f"[{self._origin}] mirrors must start with equal parameters, got different shards on this "
                             f"rank and on rank {self._mirror.peer} of the pipeline; initialize a stage from a seed "
                             "that depends on its index alone")


def reshard(stages: Sequence[_PipelineStageBase]) -> None:
    """Frees what an evaluation left unsharded, as torch's schedules do at their end."""
    for stage in stages:
        for module in stage.submod.modules() if is_fully_sharded(stage) else ():
            if isinstance(module, FSDPModule):
                module.reshard()


@torch.no_grad()
def send_own_stage(own: _PipelineStageBase, other: _PipelineStageBase, mirror: Link) -> None:
    """Collective over mirrors: each stage's parameters become those of the rank of its number."""
    outgoing = [_local(p.detach()) for p in bare_module(own).parameters()]
    targets = [_local(p.detach()) for p in bare_module(other).parameters()]
    incoming = [torch.empty_like(target, memory_format=torch.contiguous_format) for target in targets]
    mirror.exchange(outgoing, incoming)
    for target, values in zip(targets, incoming, strict=True):
        target.copy_(values)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _fingerprint(parameter: Tensor) -> Tensor:
    values = _local(parameter.detach()).double()
    return torch.stack([values.sum(), values.square().sum()])
