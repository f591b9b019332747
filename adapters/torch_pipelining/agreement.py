"""What the ranks of a pipeline tell each other of their stages before the engine is made.

A rank may hold DTensors where others hold none, and a parameter may live on several ranks. Both decide what is summed
how, and every rank has to decide alike.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .stage_adapter import StageAdapter, bare_module


@dataclass(frozen=True)
class Holding:
    """One parameter of one rank's stage."""

    name: str  # Logical.
    stage: int
    local_name: str
    is_sharded: bool


@dataclass(frozen=True)
class Agreement:
    """The same on every rank.

    Attributes:
        any_sharded: some rank of the pipeline holds DTensors.
        holders: how many ranks hold a parameter, by its logical name.
    """

    any_sharded: bool
    holders: Counter[str]


def holdings_of(adapters: Sequence[StageAdapter]) -> list[Holding]:
    """All parameters of this rank's stages, DTensors among them."""
    return [Holding(adapter.logical_name(adapter.stage.stage_index, name), adapter.stage.stage_index, name,
                    isinstance(parameter, DTensor))
            for adapter in adapters for name, parameter in bare_module(adapter.stage).named_parameters()]


def agree(
    origin: str, group: dist.ProcessGroup, adapters: Sequence[StageAdapter], check: Callable[[], object]
) -> Agreement:
    """Collective over the pipeline group, and the first thing that is.

    Raises what ``check`` raises here, and ``ValueError`` where another rank's check failed or where a logical name of
    several parameters is held by a DTensor.
    """
    mistake: Exception | None = None
    try:
        check()
    except Exception as error:
        mistake = error
    told: list[tuple[str, list[Holding]] | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, ("" if mistake is None else str(mistake), holdings_of(adapters)), group=group)
    if mistake is not None:
        raise mistake
    for rank, (message, _) in enumerate(told):
        if message:
            raise ValueError(f"[{origin}] rank {rank} of the pipeline cannot start: {message}")
    by_rank = [holdings for _, holdings in told]
    _refuse_sharded_ties(origin, [holding for holdings in by_rank for holding in holdings])
    return Agreement(any(holding.is_sharded for holdings in by_rank for holding in holdings),
                     Counter(name for holdings in by_rank for name in {holding.name for holding in holdings}))


def _refuse_sharded_ties(origin: str, holdings: Sequence[Holding]) -> None:
    places: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for holding in holdings:
        places[holding.name].add((holding.stage, holding.local_name))
    for name in sorted({holding.name for holding in holdings if holding.is_sharded}):
        if len(places[name]) > 1:
            held = " and ".join(f"{local} of stage {stage}" for stage, local in sorted(places[name]))
            raise ValueError(f"[{origin}] tied weights must be plain tensors, got a DTensor (fully_shard, tensor "
                             f"parallel) among {held}, which are one parameter, {name}: its own hooks reduce it, and "
                             "nobody would add the copies up; use DistributedDataParallel, or leave them untied")
