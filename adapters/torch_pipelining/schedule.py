"""What the schedules of this package share: torch's ``step()`` and ``eval()`` outside, the C++ engine inside.

``PipelineScheduleMulti`` splits batches, checks arguments and merges outputs as in torch; ``_step_microbatches``, which
it calls in between, is replaced. The engine is made at the first step, collectively over the pipeline group, so that
stages may be wrapped, moved and initialized until then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining.microbatch import TensorChunkSpec
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, _Action
from torch.distributed.pipelining.stage import _PipelineStageBase

import dualpipe
from dualpipe.core import GradientNorm, Pipeline
from dualpipe.plans import stages_of

from .agreement import Agreement, agree
from .data_parallel import find_data_group, ignored_names, replica_groups
from .links import Link
from .norm import norm_of_stages
from .seams import SCHEDULE, STAGE, check_object
from .sharded import ShardedStages, reshard, send_own_stage
from .stage_adapter import (
    LogicalName,
    StageAdapter,
    StepValues,
    bare_module,
    engine_parameters,
    is_fully_sharded,
    make_adapters,
    take_apart,
)


class EngineSchedule(PipelineScheduleMulti):
    """Base of the schedules that the engine runs. Subclasses name the schedule and the stages of a rank.

    Args:
        stages: This rank's ``PipelineStage`` objects, in any order; one alone may be given without a list.
        n_microbatches: Micro-batches of a step, M, over both directions.
        loss_fn: ``loss_fn(output, target, **loss_kwargs)`` of one micro-batch, a scalar. Without it ``step()`` is
            forward only.
        args_chunk_spec, kwargs_chunk_spec, output_merge_spec: As in torch.
        scale_grads: As in torch. ``True`` divides what a step adds to gradients by M, for losses that are means;
            ``False`` leaves the plain sum over micro-batches. Gradients of earlier steps are not divided again.
        backward_requires_autograd: Must be ``True``.
        variable_seq_lengths: Shapes may differ between micro-batches and steps.
        logical_name: ``(stage, local name) -> name`` of a parameter. Two parameters of one name are one (tied weights
            on two ranks). Default: ``"stage3.<local name>"``.
        timeout: Of one wait for another rank. Default: 30 minutes.

    ``step()`` and ``eval()`` take what torch's take, ``arg_mbs``, ``kwarg_mbs``, ``target_mbs``, ``loss_kwargs``,
    ``losses``, ``return_outputs`` and ``finalize_gradients`` included. Exceptions of a stage or loss come out with
    their own type and a note that names rank, stage and micro-batch; so do those for arguments that do not fit, and
    the other ranks are told of either. Gradients are final when ``step()`` returns.

    Raises:
        ValueError: At construction, for stages or a number of micro-batches that the schedule does not take; at the
            first step, on every rank, for DDP or tied weights that cannot be combined.
    """

    schedule_name = ""  # As the engine knows it.
    _mirrored = False

    def __init__(
        self,
        stages: list[_PipelineStageBase] | _PipelineStageBase,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        args_chunk_spec: tuple[TensorChunkSpec, ...] | None = None,
        kwargs_chunk_spec: dict[str, TensorChunkSpec] | None = None,
        output_merge_spec: dict[str, Any] | tuple[Any] | None = None,
        scale_grads: bool = True,
        backward_requires_autograd: bool = True,
        *,
        variable_seq_lengths: bool = False,
        reduce_mirrors: bool = True,
        broadcast_mirrors: bool = False,
        logical_name: LogicalName | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        given = [stages] if isinstance(stages, _PipelineStageBase) else list(stages)
        self._origin = type(self).__name__
        self._check_stages(given, backward_requires_autograd)
        given.sort(key=lambda stage: stage.stage_index)
        super().__init__(given, n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec,
                         scale_grads=scale_grads)
        check_object(self, SCHEDULE)
        self._set_stage_mapping()
        self._options: dict[str, Any] = {"variable_seq_lengths": variable_seq_lengths}
        if timeout is not None:
            self._options["timeout"] = timeout
        self._reduce_mirrors = reduce_mirrors
        self._broadcast_mirrors = broadcast_mirrors
        self._source = self.schedule_name  # Or a CSV file.
        self._set_order(self._planned_rows())
        self._logical_name = logical_name
        self._adapters: dict[int, StageAdapter] = {}
        self._pipeline: Pipeline | None = None
        self._sharded: ShardedStages | None = None
        self._agreement: Agreement | None = None
        self._is_taken = False  # The arguments of a step are known to fit: what fails now is the engine's to tell.
        self._ends: Link | None = None
        self._norm: GradientNorm | None = None
        self._known_parameters: list[Tensor] = []

    # What subclasses say.

    @classmethod
    def stage_indices(cls, rank: int, size: int) -> tuple[list[int], int]:
        """Stages of a pipeline rank, ascending, and the number of stages of the whole model."""
        raise NotImplementedError

    def _wanted(self, rank: int, size: int) -> tuple[list[int], int]:
        return self.stage_indices(rank, size)

    def _names_stages(self, rank: int, size: int) -> str:
        return f"stage_indices({rank}, {size})"

    def _planned_rows(self) -> list[list[str]]:
        return dualpipe.plan(self.schedule_name, self.pp_group_size, self._n_microbatches)

    # Construction.

    def _check_stages(self, stages: Sequence[_PipelineStageBase], backward_requires_autograd: bool) -> None:
        if not stages:
            raise ValueError(f"[{self._origin}] stages must be this rank's PipelineStage objects, got none")
        for stage in stages:
            check_object(stage, STAGE)
        rank, size = stages[0].group_rank, stages[0].group_size
        wanted, num_stages = self._wanted(rank, size)
        got = sorted(stage.stage_index for stage in stages)
        counts = {stage.num_stages for stage in stages}
        if got != wanted or counts != {num_stages}:
            totals = ", ".join(map(str, sorted(counts)))
            raise ValueError(f"[{self._origin}] rank {rank} of {size} must give stages {wanted} of {num_stages}, got "
                             f"{got} of {totals}; {self._names_stages(rank, size)} names them")
        for stage in stages:
            self._check_stage(stage)
        if not backward_requires_autograd:
            raise ValueError(f"[{self._origin}] backward_requires_autograd must be True, got False: the engine's "
                             "backward is autograd's; torch's own schedules run other backwards")

    def _check_stage(self, stage: _PipelineStageBase) -> None:
        if stage.dw_builder is not None:
            raise ValueError(f"[{self._origin}] stage {stage.stage_index} must have no dw_builder: the engine splits "
                             "every backward itself; a layer that knows a cheaper split calls "
                             "dualpipe.utils.WeightGradStore.put() in its backward")

    def _set_stage_mapping(self) -> None:
        ranks: dict[int, int] = {}
        for rank in range(self.pp_group_size):
            for stage in self._wanted(rank, self.pp_group_size)[0]:
                ranks.setdefault(stage, rank)
        self.stage_index_to_group_rank = ranks
        for stage_object in self._stages:
            stage_object.stage_index_to_group_rank = ranks

    def _set_order(self, rows: Sequence[Sequence[str]]) -> None:
        """``pipeline_order`` for whoever draws or dumps it, as in torch; the engine has its own."""
        self.pipeline_order = {
            rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)
        }

    # The engine.

    @property
    def pipeline(self) -> Pipeline:
        """The engine. Made at the first call, which is collective over the pipeline group (under DDP its replicas)."""
        if self._pipeline is None:
            self._connect()
        return self._pipeline

    @property
    def statistics(self) -> Any:
        """What the last step did on this rank: spans, waits, peaks, overlap (``dualpipe.core``)."""
        return self.pipeline.statistics

    @property
    def output_micro_batches(self) -> list[int]:
        """The micro-batches, ascending, whose outputs ``step()`` and ``eval()`` return on this rank."""
        return list(self.pipeline.loss_micro_batches)

    def _connect(self) -> None:
        group = self._stages[0]._parent_group
        mirror = self.pp_group_size - 1 - self.rank if self._mirrored and self._reduce_mirrors else None
        reshard(self._stages)
        self._adapters = make_adapters(self._stages, self._logical_name)
        self._agreement = agree(self._origin, group, list(self._adapters.values()), self._data_group)
        groups = replica_groups(group, self._data_group(), mirror, any(stage.is_last for stage in self._stages),
                                ignored_names(list(self._adapters.values())))
        order = stages_of(self._source, self.pp_group_size, self._n_microbatches, self.rank)
        link = Link(group, self.pp_group_size - 1 - self.rank) if self._mirrored else None
        if link is not None and self._broadcast_mirrors:
            send_own_stage(self._adapters[self.rank].stage, self._adapters[link.peer].stage, link)
        self._pipeline = Pipeline(
            self._source, group, [self._adapters[index] for index in order], num_microbatches=self._n_microbatches,
            reduce_mirrors=self._reduce_mirrors, device=self._device(group), **groups.options(), **self._options)
        self._sharded = ShardedStages(self._origin, self._stages, None if mirror is None else link)
        self._known_parameters = self._parameters_now()
        self._ends = link if self.rank in (0, self.pp_group_size - 1) else None
        self._pipeline.prepared(self._sharded.compare_copies)

    def _data_group(self) -> dist.ProcessGroup | None:
        data = find_data_group(self._origin, self._stages)
        if data is not None and self._mirrored and not self._reduce_mirrors:
            raise ValueError(f"[{self._origin}] reduce_mirrors must be True under DDP, got False: replicas of mirrors "
                             "would train apart")
        return data

    def _device(self, group: dist.ProcessGroup) -> torch.device | None:
        """Of the stages, where the group has several backends to choose from."""
        return self._stages[0].device if len(group._device_types) > 1 else None

    def _parameters_now(self) -> list[Tensor]:
        return [parameter for stage in self._stages if not is_fully_sharded(stage)
                for _, parameter in engine_parameters(stage)]

    def _check_parameters(self) -> None:
        now = self._parameters_now()
        same = len(now) == len(self._known_parameters)
        if not same or any(a is not b for a, b in zip(now, self._known_parameters, strict=True)):
            raise RuntimeError(f"[{self._origin}] parameters of a stage were replaced after the first step, so their "
                               "gradients would not be summed; load values in place, or make a new schedule")

    # One step.

    @functools.wraps(PipelineScheduleMulti.step)
    def step(self, *args: Any, **options: Any) -> Any:
        # Which eval() calls too. Arguments that do not fit are told to the other ranks, which wait in the engine.
        self._is_taken = False
        try:
            return super().step(*args, **options)
        except Exception as mistake:
            if not self._is_taken:
                self.pipeline.refuse(mistake)
            raise

    def _step_microbatches(
        self,
        arg_mbs: list | None = None,
        kwarg_mbs: list | None = None,
        target_mbs: list | None = None,
        losses: list | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        arg_mbs, kwarg_mbs = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        self._check_target(target_mbs)
        values = StepValues(arg_mbs, kwarg_mbs, target_mbs, loss_kwargs or {})
        self._is_taken = True
        pipeline = self.pipeline
        pipeline.prepared(self._check_parameters)
        for adapter in self._adapters.values():
            adapter.values = values
        try:
            self._run(pipeline, values, return_outputs)
        finally:
            for adapter in self._adapters.values():
                adapter.values = StepValues()
        self._update_losses(self._stages, losses)

    def _check_target(self, target_mbs: list | None) -> None:
        if self._loss_fn is None or target_mbs is not None or not any(stage.is_last for stage in self._stages):
            return
        raise ValueError(f"[{self._origin}] rank {self.rank} computes losses, so step() and eval() need target= or "
                         "target_mbs= there, got neither; without loss_fn no target is needed")

    def _run(self, pipeline: Pipeline, values: StepValues, return_outputs: bool) -> None:
        inputs = [take_apart(values.arg_mbs[k])[0] for k in pipeline.input_micro_batches]
        labels = [(torch.tensor(k),) for k in pipeline.loss_micro_batches]
        if self._has_backward:
            self._sharded.begin_step()
            result = pipeline.step(inputs, labels, self._criterion(values), weight=self._weight(),
                                   return_outputs=return_outputs)
            self._sharded.finish_step(self._finalize_gradients)
        else:
            criterion, weight = (None, None) if self._loss_fn is None else (self._criterion(values), self._weight())
            result = pipeline.evaluate(inputs, labels, criterion, weight=weight, return_outputs=return_outputs)
            reshard(self._stages)
        if return_outputs:
            self._keep_outputs(values, pipeline.loss_micro_batches, result.outputs)
        if self._loss_fn is not None:
            self._internal_losses.extend(self._all_losses(values))

    def _criterion(self, values: StepValues) -> Callable[[tuple, tuple], Tensor]:
        """Labels are the number of the micro-batch: targets may be anything, so they stay here."""

        def criterion(outputs: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> Tensor:
            k = int(labels[0])
            output = values.output_of(k, outputs)
            loss = self._loss_fn(output, values.target_mbs[k], **values.loss_kwargs)
            values.losses[k] = loss.detach()
            return loss

        return criterion

    def _weight(self) -> Callable[[tuple[Tensor, ...]], float]:
        """The engine divides the sum of all losses by the sum of their weights: by M, or by 1 (per replica)."""
        if self.scale_grads:
            return lambda labels: 1.0
        return lambda labels: float(int(labels[0]) == 0)

    def _keep_outputs(
        self, values: StepValues, micro_batches: Sequence[int], outputs: Sequence[Sequence[Tensor]]
    ) -> None:
        for stage in self._stages:
            if stage.is_last:
                stage.output_chunks.extend(values.output_of(k, tensors)
                                           for k, tensors in zip(micro_batches, outputs, strict=True))

    def _all_losses(self, values: StepValues) -> list[Tensor]:
        """In the order of micro-batches; of a bidirectional pipeline both ends get those of both."""
        mine = [values.losses[k] for k in sorted(values.losses)]
        if self._ends is None or not mine:
            return mine
        (theirs,) = self._ends.swap([torch.stack(mine)])
        return [*mine, *theirs.unbind()] if 0 in values.losses else [*theirs.unbind(), *mine]

    def gradient_norm(self) -> float:
        """The norm of all gradients of the model, equal on every rank. Collective over the pipeline and its replicas.

        A parameter that several ranks hold (mirrors, tied weights, shards of one) counts once. After a ``step()``.
        Raises ``ValueError`` under ``reduce_mirrors=False``, where each copy holds its half.
        """
        if self._mirrored and not self._reduce_mirrors:
            raise ValueError(f"[{self._origin}] mirrors must sum their gradients before a norm, got reduce_mirrors = "
                             "False; set reduce_mirrors=True, or sum and clip yourself")
        pipeline = self.pipeline
        if self._agreement.any_sharded:
            return norm_of_stages(self._stages, self._holders())
        if self._norm is None:
            self._norm = GradientNorm(pipeline)
        return self._norm.compute()

    def _holders(self) -> dict[int, int]:
        return {id(p): self._agreement.holders[adapter.logical_name(adapter.stage.stage_index, name)]
                for adapter in self._adapters.values() for name, p in bare_module(adapter.stage).named_parameters()}
