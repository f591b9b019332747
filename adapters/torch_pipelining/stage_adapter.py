"""A torch ``PipelineStage`` as a stage of the engine.

Torch's stage is taken apart: its module, its index, the forward context that may be registered on it. Its buffers,
sends and backward stay unused. Values that are no tensors (flags, masks, nested structures) never reach the engine:
they wait here by micro-batch, and the engine carries the tensors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining.stage import PipelineStageInfo, _PipelineStageBase
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from dualpipe.core import Stage

LogicalName = Callable[[int, str], str]


class Structure:
    """A structure without its tensors."""

    def __init__(self, leaves: list[Any], places: list[int], spec: TreeSpec) -> None:
        self._leaves, self._places, self._spec = leaves, places, spec

    def fill(self, tensors: Sequence[Tensor | None]) -> Any:
        """The structure with these tensors in their places."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        return tree_unflatten(leaves, self._spec)


def take_apart(value: Any) -> tuple[tuple[Tensor, ...], Structure]:
    """The tensors of a nested structure, in order, and what is left."""
    leaves, spec = tree_flatten(value)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = tuple(leaves[i] for i in places)
    return tensors, Structure([None if isinstance(leaf, Tensor) else leaf for leaf in leaves], places, spec)


@dataclass
class StepValues:
    """What one call of ``step()`` or ``eval()`` hands to every stage of the rank, by micro-batch."""

    arg_mbs: Sequence[tuple[Any, ...]] = ()
    kwarg_mbs: Sequence[dict[str, Any]] = ()
    target_mbs: Sequence[Any] | None = None
    loss_kwargs: dict[str, Any] = field(default_factory=dict)
    output_structures: dict[int, Structure] = field(default_factory=dict)
    losses: dict[int, Tensor] = field(default_factory=dict)

    def output_of(self, k: int, tensors: Tensor | Sequence[Tensor]) -> Any:
        """What the last stage returned for micro-batch k; of an overlapped pair's own function one tensor or all."""
        if k in self.output_structures:
            return self.output_structures[k].fill(tensors)
        return tensors if isinstance(tensors, Tensor) else tensors[0] if len(tensors) == 1 else tuple(tensors)


def bare_module(stage: _PipelineStageBase) -> torch.nn.Module:
    """The stage's module without DDP around it."""
    module = stage.submod
    return module.module if isinstance(module, DistributedDataParallel) else module


def is_fully_sharded(stage: _PipelineStageBase) -> bool:
    """Whether ``fully_shard`` or ``replicate`` was applied to the stage's module."""
    return isinstance(stage.submod, FSDPModule)


def engine_parameters(stage: _PipelineStageBase) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Parameters whose gradients the engine sums over mirrors and replicas: plain tensors, by their local names."""
    for name, parameter in bare_module(stage).named_parameters():
        if not isinstance(parameter, DTensor):
            yield name, parameter


def sharded_parameters(stage: _PipelineStageBase) -> list[torch.nn.Parameter]:
    """DTensor parameters (``fully_shard``, tensor parallel) that train: their own hooks reduce them."""
    return [p for p in bare_module(stage).parameters() if isinstance(p, DTensor) and p.requires_grad]


class StageAdapter(Stage):
    """One ``PipelineStage`` under the engine.

    ``values`` is replaced by the schedule before every step. Inputs are those of the stage before, in their order, or
    the tensors of ``arg_mbs[k]`` in the first stage; outputs are a tensor or a flat tuple of tensors, of the last stage
    any structure.
    """

    def __init__(self, stage: _PipelineStageBase, logical_name: LogicalName | None) -> None:
        self.stage = stage
        self.values = StepValues()
        self._logical_name = logical_name
        self._micro_batch = 0

    def begin_micro_batch(self, micro_batch: int) -> None:
        self._micro_batch = micro_batch

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return engine_parameters(self.stage)

    def logical_name(self, stage: int, local_name: str) -> str:
        if self._logical_name is None:
            return f"stage{stage}.{local_name}"
        return self._logical_name(stage, local_name)

    def forward(self, inputs: tuple[Tensor | None, ...]) -> Tensor | tuple[Tensor | None, ...]:
        k = self._micro_batch
        args = take_apart(self.values.arg_mbs[k])[1].fill(inputs) if self.stage.is_first else inputs
        output = self._call(k, args, self.values.kwarg_mbs[k])
        return self._keep_structure(k, output) if self.stage.is_last else self._flat(output)

    def _call(self, k: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stage = self.stage
        if is_fully_sharded(stage) and torch.is_grad_enabled():
            stage.submod.set_manual_backward_finalization(True)
        if not stage._forward_contexts:
            return stage.forward_maybe_with_nosync(*args, **kwargs)
        info = PipelineStageInfo(stage_index=stage.stage_index, microbatch_index=k)
        return stage._call_with_forward_context(info, stage.forward_maybe_with_nosync, *args, **kwargs)

    def _keep_structure(self, k: int, output: Any) -> tuple[Tensor, ...]:
        tensors, self.values.output_structures[k] = take_apart(output)
        for tensor in tensors:
            self._require_plain(tensor)
        return tensors

    def _flat(self, output: Any) -> tuple[Tensor, ...]:
        outputs = tuple(output) if isinstance(output, (tuple, list)) else (output,)
        for value in outputs:
            self._require_plain(value)
        return outputs

    def refuse_what_a_pair_lacks(self) -> None:
        """What ``overlapped_forward_backward`` has no place for. Raises ``ValueError``."""
        where = f"[dualpipe.pipelining] stage {self.stage.stage_index} has an overlapped_forward_backward, which"
        names = sorted(self.values.kwarg_mbs[self._micro_batch])
        if names:
            raise ValueError(f"{where} takes positional tensors alone, got keyword arguments {', '.join(names)}; pass "
                             "them as tensors from the first stage on")
        args = self.values.arg_mbs[self._micro_batch] if self.stage.is_first else ()
        kinds = sorted({type(arg).__name__ for arg in args if not isinstance(arg, Tensor)})
        if kinds:
            raise ValueError(f"{where} takes positional tensors alone, got arguments of type {', '.join(kinds)}; pass "
                             "their tensors one by one")
        if self.stage._forward_contexts:
            raise ValueError(f"{where} runs a pair as a whole, got {len(self.stage._forward_contexts)} of "
                             "register_forward_context, which are for one forward; enter them in the function itself")

    def _require_plain(self, value: Any) -> None:
        where = f"[dualpipe.pipelining] stage {self.stage.stage_index} must return a tensor or a flat tuple of tensors"
        if isinstance(value, DTensor):
            raise TypeError(f"{where} that are no DTensors, got one of placements {value.placements}; "
                            "return .to_local() and make the next stage's input with DTensor.from_local()")
        if not isinstance(value, Tensor):
            raise TypeError(f"{where}, got a {type(value).__name__}; pass what is no tensor through keyword arguments")


def make_adapters(stages: Sequence[_PipelineStageBase], logical_name: LogicalName | None) -> dict[int, StageAdapter]:
    """An adapter for each stage, by its index. Stages whose modules are of one class that has
    ``overlapped_forward_backward`` get one kind of adapter that has it too."""
    kinds: dict[type, type[StageAdapter]] = {}
    adapters = {}
    for stage in stages:
        module_class = type(bare_module(stage))
        hook = None if is_fully_sharded(stage) else getattr(module_class, "overlapped_forward_backward", None)
        kind = StageAdapter if hook is None else kinds.setdefault(module_class, _overlapping_kind(hook))
        adapters[stage.stage_index] = kind(stage, logical_name)
    return adapters


def _overlapping_kind(hook: Callable[..., Any]) -> type[StageAdapter]:
    class OverlappingAdapter(StageAdapter):
        @classmethod
        def overlapped_forward_backward(cls, stage0: StageAdapter, inputs0: Any, criterion0: Any, labels0: Any,
                                        stage1: StageAdapter, *backward: Any) -> Any:
            stage0.refuse_what_a_pair_lacks()
            return hook(bare_module(stage0.stage), inputs0, criterion0, labels0, bare_module(stage1.stage), *backward)

    return OverlappingAdapter
