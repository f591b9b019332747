"""Data parallelism beside the pipeline: what DDP around a stage means to the engine.

Torch's stages hold DDP back by ``no_sync()`` and let its reducer run in the last backward. Here it is held back
throughout, and the engine sums gradients over DDP's own process group (under DualPipe over {r, P-1-r} x that group) in
buckets that start at the last W of their stage, behind the rest of the schedule. Loss weights are counted over the
same replicas, so gradients come out as DDP's: the mean over replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.nn.parallel import DistributedDataParallel

from dualpipe.core import GradientGroup

from .seams import DDP, check_object
from .stage_adapter import StageAdapter


@dataclass(frozen=True)
class ReplicaGroups:
    """Groups for ``dualpipe.core.Pipeline``; empty where no stage is wrapped by DDP."""

    gradients: list[GradientGroup] = field(default_factory=list)
    losses: dist.ProcessGroup | None = None
    world: dist.ProcessGroup | None = None
    shard_of: Callable[[str], str] | None = None

    def options(self) -> dict[str, Any]:
        """As arguments of ``Pipeline``."""
        if not self.gradients:
            return {}
        return {"gradient_groups": self.gradients, "losses": self.losses, "world": self.world,
                "shard_of": self.shard_of}


def find_data_group(origin: str, stages: Sequence[_PipelineStageBase]) -> dist.ProcessGroup | None:
    """DDP's process group, which all stages of a rank share. Raises ``ValueError`` for what cannot be combined."""
    wrapped = [stage.submod for stage in stages if isinstance(stage.submod, DistributedDataParallel)]
    if not wrapped:
        return None
    for ddp in wrapped:
        check_object(ddp, DDP)
    if len(wrapped) != len(stages):
        raise ValueError(f"[{origin}] DistributedDataParallel must wrap every stage of a rank or none, got "
                         f"{len(wrapped)} of {len(stages)}; wrap each of them with one process_group")
    members = {tuple(dist.get_process_group_ranks(ddp.process_group)) for ddp in wrapped}
    if len(members) != 1:
        raise ValueError(f"[{origin}] the stages of a rank must be replicated over the same ranks, got DDP over "
                         f"{sorted(map(list, members))}; give both the same process_group")
    for ddp in wrapped:
        _refuse_what_the_reducer_alone_does(origin, ddp)
    return wrapped[0].process_group


def _refuse_what_the_reducer_alone_does(origin: str, ddp: DistributedDataParallel) -> None:
    if ddp._comm_hooks:
        raise ValueError(f"[{origin}] gradients are summed by the engine, which would pass by the communication hook "
                         "that was registered on DDP; register none, or use fully_shard")
    if ddp.mixed_precision is not None:
        raise ValueError(f"[{origin}] DDP's mixed_precision casts in its reducer, which does not run here; use "
                         "torch.autocast in the loop, or fully_shard with a MixedPrecisionPolicy")


def replica_groups(
    pipeline: dist.ProcessGroup, data: dist.ProcessGroup | None, mirror: int | None, computes_losses: bool,
    ignored: frozenset[str] = frozenset()
) -> ReplicaGroups:
    """Collective over all replicas of the pipeline.

    Args:
        data: DDP's group; ``None``: there are no replicas.
        mirror: The rank of ``pipeline`` that holds the same stages.
        computes_losses: Whether this rank does.
        ignored: Logical names of parameters that DDP was told to ignore: they are summed over mirrors alone.
    """
    if data is None:
        return ReplicaGroups()
    here = dist.get_rank(pipeline)
    members: list[list[int]] = [[] for _ in range(dist.get_world_size(pipeline))]
    dist.all_gather_object(members, dist.get_process_group_ranks(data), group=pipeline)
    world = _group_of({rank for ranks in members for rank in ranks})
    mirrored = data if mirror is None else _group_of({*members[mirror], *members[here]})
    gradients = [GradientGroup(mirrored, lambda name: name not in ignored)]
    if mirror is not None and ignored:
        pair = _group_of({dist.get_global_rank(pipeline, rank) for rank in (here, mirror)})
        gradients.append(GradientGroup(pair))
    part = f"of data rank {dist.get_rank(data)}"
    return ReplicaGroups(gradients, mirrored if computes_losses else None, world,
                         lambda name: part if name in ignored else "")


def ignored_names(adapters: Sequence[StageAdapter]) -> frozenset[str]:
    """Logical names of the parameters that DDP around their stages ignores (experts, say)."""
    return frozenset(adapter.logical_name(adapter.stage.stage_index, name)
                     for adapter in adapters if isinstance(adapter.stage.submod, DistributedDataParallel)
                     for name in adapter.stage.submod.parameters_to_ignore)


def _group_of(ranks: set[int]) -> dist.ProcessGroup:
    """The group of these global ranks, of which this one is a member. Called by all of them in one order."""
    if len(ranks) == dist.get_world_size():
        return dist.group.WORLD
    return dist.new_group(sorted(ranks), use_local_synchronization=True)
