"""The engine for any schedule: stages, a pipeline of them over a process group, and what a step gives.

    pipeline = Pipeline("dualpipe", group, [module_stage(first), module_stage(second)], num_microbatches=8)
    result = pipeline.step(inputs, labels, lambda outputs, labels: loss(outputs[0], labels[0]))
    optimizer.step()

Which rank gives and gets what (P ranks, M micro-batches over both directions; `input_micro_batches` and
`loss_micro_batches` say it for any schedule, CSV files included):

    schedule            stages of rank r, in order       inputs of              labels, losses and outputs of
    1f1b, zb1p          r                                rank 0: 0..M-1         rank P-1: 0..M-1
    interleaved_1f1b    r, P+r, 2P+r, ...                rank 0: 0..M-1         rank P-1: 0..M-1
    dualpipev           r and 2P-1-r                     rank 0: 0..M-1         rank 0: 0..M-1
    dualpipe            r and P-1-r                      rank 0: 0..M/2-1       rank P-1: 0..M/2-1
                                                         rank P-1: M/2..M-1     rank 0: M/2..M-1

The engine runs without the GIL and takes it around forward, loss and hooks. It splits the backward of any autograd
graph into I and W by itself; a layer that knows how to split puts closures into dualpipe.utils.WeightGradStore.

An exception of Python code ends the pipeline and comes out as it went in, with a note "rank 1, stage 0, micro-batch 3
(0F3)"; the other ranks get dualpipe.PipelineError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Optional, TypeVar, Union

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, Store

from dualpipe import _core
from dualpipe._core import StepResult, StepStatistics
from dualpipe._optimizer import GradientNorm, OptimizerStep, optimizer_step, register_optimizer
from dualpipe.errors import PipelineError, ScheduleError
from dualpipe.plans import plan, read_csv, schedule_names, stages_of, write_csv
from dualpipe.run_files import RunFiles

__all__ = [
    "GradientGroup",
    "GradientNorm",
    "OptimizerStep",
    "Pipeline",
    "PipelineError",
    "RunFiles",
    "ScheduleError",
    "Stage",
    "StepResult",
    "StepStatistics",
    "make_gloo_threads_yield",
    "module_stage",
    "optimizer_step",
    "plan",
    "read_csv",
    "register_optimizer",
    "schedule_names",
    "stages_of",
    "write_csv",
]

_T = TypeVar("_T")
Tensors = tuple[Optional[Tensor], ...]
Outputs = Union[Tensor, Sequence[Optional[Tensor]]]
# criterion(outputs, labels) -> scalar.
Criterion = Callable[[Tensors, Tensors], Tensor]
# The reference's eight arguments: module0, inputs0, criterion0, labels0, module1, loss1, outputs1, output_grads1 ->
# (outputs0, loss0 or None).
OverlapHook = Callable[..., tuple[Outputs, Optional[Tensor]]]


def make_gloo_threads_yield() -> int:
    """Where ranks outnumber cores: Gloo's threads, on waking up, take no core from a rank that computes or sends.

    All that this process has now get the policy SCHED_BATCH; gives how many have it. A `Pipeline` does this; call it
    for a host's own schedule that is compared with ours, once the host has made its groups. The ranks of a machine are
    as torchrun, Open MPI or Hydra says, else those of the default group. DUALPIPE_GLOO_THREADS=yield or =preempt in the
    environment decides whatever their number; raises ScheduleError for another value of it.
    plugin/runtime/gloo_threads.h has the reason.
    """
    return _core.make_gloo_threads_yield(torch.distributed.get_world_size())


class Stage:
    """A stage of the model. To be subclassed, or to be copied by anything that has these methods.

    A subclass may have a class method `overlapped_forward_backward(module0, inputs0, criterion0, labels0, module1,
    loss1, outputs1, output_grads1) -> (outputs0, loss0)`, which then runs overlapped pairs of two stages of that very
    class: the forward of module0 on inputs0, the loss by `criterion0(outputs0, labels0)` (None where module0 is not the
    last stage; then loss0 is None), and the backward of an earlier forward of module1, from loss1 where it is no None,
    else from outputs1 with output_grads1 (dualpipe.utils.run_backward). Gradients are left in `.grad` of the leaves
    that the earlier forward got, and in the parameters.
    """

    def forward(self, inputs: Tensors) -> Outputs:
        """Outputs of one micro-batch, as one tensor or a sequence of tensors and None.

        `inputs` are leaves (or None); floating ones require grad. What is returned is sent without a copy, so it must
        not be overwritten later.
        """
        raise NotImplementedError

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """What is trained, by local names, in an order that does not change. Asked when the pipeline is made."""
        return ()

    def logical_name(self, stage: int, local_name: str) -> str:
        """The name of a parameter that depends on neither schedule nor layout.

        Two parameters of one name are one logical parameter: mirrors, tied weights.
        """
        return f"stage{stage}.{local_name}"

    def begin_micro_batch(self, micro_batch: int) -> None:
        """Told before forward() of a micro-batch, numbered within the step."""


class _ModuleStage(Stage):
    def __init__(
        self,
        module: nn.Module,
        forward: Callable[[Tensors], Outputs] | None,
        logical_name: Callable[[int, str], str] | None,
        overlap: OverlapHook | None,
    ) -> None:
        self.module = module
        self.overlap = overlap
        self._forward = forward
        self._logical_name = logical_name

    def forward(self, inputs: Tensors) -> Outputs:
        return self._forward(inputs) if self._forward else self.module(*inputs)

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        return self.module.named_parameters()

    def logical_name(self, stage: int, local_name: str) -> str:
        return self._logical_name(stage, local_name) if self._logical_name else super().logical_name(stage, local_name)


def module_stage(
    module: nn.Module,
    forward: Callable[[Tensors], Outputs] | None = None,
    logical_name: Callable[[int, str], str] | None = None,
    overlap: OverlapHook | None = None,
) -> Stage:
    """A stage from a module.

    Args:
        module: whose parameters are trained, under the names that named_parameters() gives.
        forward: outputs from the inputs of a micro-batch; default: module(*inputs).
        logical_name: as Stage.logical_name.
        overlap: as Stage.overlapped_forward_backward, with modules (not stages) as module0 and module1. Runs pairs
            whose modules are of one class.
    """
    return _ModuleStage(module, forward, logical_name, overlap)


@dataclass
class GradientGroup:
    """The gradients of some parameters are summed over the ranks of one group, mirrors included.

    Under DualPipe dense parameters are summed over {r, P-1-r} x DP, under the others over DP.

    Attributes:
        group: None: this rank alone.
        holds: which logical names; None: all that no earlier group holds.
    """

    group: ProcessGroup | None
    holds: Callable[[str], bool] | None = None


class Pipeline:
    """One rank's part of a pipeline. Made by all ranks of the group together, used by one thread.

    Gradients are those of the global loss: of criteria that return a mean, sum_k w_k loss_k / sum_k w_k with w_k the
    rows of the first label; with `weight`, sum_k loss_k / sum_k weight_k. They are summed over mirrors, added to what
    is in `.grad` (or in `main_grads`), and final when step() returns, or with `defer_tail_weight_gradients` after
    finish_gradients().
    """

    def __init__(
        self,
        schedule: str,
        process_group: ProcessGroup,
        stages: Sequence[Stage],
        *,
        num_microbatches: int,
        virtual_pipeline_model_parallel_size: int = 2,
        variable_seq_lengths: bool = False,
        reduce_mirrors: bool = True,
        defer_tail_weight_gradients: bool = False,
        mean_loss_on_every_rank: bool = False,
        slots: int = 2,
        timeout: timedelta | None = None,
        main_grads: Mapping[str, Tensor] | None = None,
        gradient_groups: Sequence[GradientGroup] | None = None,
        losses: ProcessGroup | None = None,
        world: ProcessGroup | None = None,
        shard_of: Callable[[str], str] | None = None,
        gradient_bucket_bytes: int = 25 << 20,
        shard_gradients: bool = False,
        rank_mapping: Sequence[int] | None = None,
        live_bytes: Callable[[], int] | None = None,
        notify_failures: bool = True,
        failure_store: Store | None = None,
        on_fatal: Callable[[_core.FailureRecord], None] | None = None,
        nccl_max_ctas: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        """Collective over the group.

        Args:
            schedule: a name of `schedule_names()`, or a CSV file.
            process_group: over Gloo or NCCL.
            stages: this rank's, in the order of `stages_of`.
            num_microbatches: M of a step, over both directions.
            virtual_pipeline_model_parallel_size: chunks per rank, of interleaved_1f1b alone.
            variable_seq_lengths: shapes may differ between micro-batches and steps.
            reduce_mirrors: False: each mirror keeps its own half of the gradient.
            defer_tail_weight_gradients: the closing run of W is left to finish_gradients().
            mean_loss_on_every_rank: StepResult.mean_loss, at the price of a collective per step.
            slots: receives posted ahead per directed edge.
            timeout: of one wait; default 30 minutes.
            main_grads: buffers (fp32, say) by logical name that gradients are added to instead of `.grad`.
            gradient_groups: data parallelism: over which ranks gradients are summed. The first group that holds a name
                counts. With these, the global batch is that of all replicas.
            losses: on ranks that compute losses: all that do with other data. None: this pipeline's ends.
            world: all ranks that hold a part of the model; None: this pipeline's.
            shard_of: which part of a logical parameter this rank holds ("tp1"); None or "": all of it.
            gradient_bucket_bytes: what one collective of gradients carries at most.
            shard_gradients: each member of a gradient group gets the sums of its own part alone.
            rank_mapping: by rank of the group, the rank of the pipeline; None: the same.
            live_bytes: bytes that count as live activations, asked after every action; for StepStatistics.memory.
            notify_failures: ranks tell each other of failures over the store, so that none waits for the timeout.
            failure_store: a store of its own for that, whose loss counts as a failure too; None: the group's, whose
                loss does not.
            on_fatal: called once, on any thread, when a rank has failed, instead of waking this rank with an error.
            nccl_max_ctas: CTAs of one edge's kernels; 0 leaves it to NCCL.
            device: of the messages, where the group has several backends ("cpu:gloo,cuda:nccl"): which of them is
                taken. None: where the stages' parameters are, or the CPU.

        Raises:
            ScheduleError: on every rank, for options or a schedule that cannot be, or where ranks disagree.
        """
        self._schedule = os.fspath(schedule)
        options = _core.Options()
        options.engine = _engine_options(
            num_microbatches=num_microbatches,
            virtual_pipeline_model_parallel_size=virtual_pipeline_model_parallel_size,
            variable_seq_lengths=variable_seq_lengths,
            reduce_mirrors=reduce_mirrors,
            defer_tail_weight_gradients=defer_tail_weight_gradients,
            mean_loss_on_every_rank=mean_loss_on_every_rank,
            slots=slots,
            timeout=timeout,
            main_grads=None if main_grads is None else dict(main_grads),
            parallel=_parallel_groups(gradient_groups, losses, world, shard_of),
            gradient_bucket_bytes=gradient_bucket_bytes,
            shard_gradients=shard_gradients,
            live_bytes=live_bytes,
            on_fatal=on_fatal,
            nccl_max_ctas=nccl_max_ctas,
        )
        options.rank_mapping = list(rank_mapping or ())
        options.notify_failures = notify_failures
        options.store = failure_store
        options.device = device_of_messages(process_group, stages, device)
        self._num_microbatches = num_microbatches
        numbers = _stage_numbers(
            self._schedule, process_group, num_microbatches, virtual_pipeline_model_parallel_size, rank_mapping, stages
        )
        self._engine = _core.Pipeline(self._schedule, process_group, _describe(stages, numbers), options)
        self._group = process_group  # The engine keeps it alive; Python's own object says its name and its backend.

    def step(
        self,
        inputs: Sequence[Sequence[Tensor | None]],
        labels: Sequence[Sequence[Tensor | None]],
        criterion: Criterion,
        *,
        weight: Callable[[Tensors], float] | None = None,
        return_outputs: bool = False,
    ) -> StepResult:
        """One training step.

        Args:
            inputs: one entry per micro-batch of `input_micro_batches`; () on ranks that have none. Inputs that require
                grad receive their gradient.
            labels: one entry per micro-batch of `loss_micro_batches`.
            criterion: scalar loss of a micro-batch from (outputs, labels): its mean, or with `weight` its sum.
            weight: what a sum is divided by (valid tokens, say), from the labels alone.
            return_outputs: StepResult.outputs, detached.

        Returns:
            The detached mean loss of each of `loss_micro_batches`, the global mean where it was asked for, outputs and
            statistics.

        Raises:
            ScheduleError: for what the caller gave wrongly, on the rank that did; with a note.
            PipelineError: where another rank failed, or the engine.
            Exception: what the caller's own code raised, with a note. Every later call raises PipelineError.
        """
        return self._engine.step(inputs, labels, criterion, weight, return_outputs)

    def evaluate(
        self,
        inputs: Sequence[Sequence[Tensor | None]],
        labels: Sequence[Sequence[Tensor | None]] | None = None,
        criterion: Criterion | None = None,
        *,
        weight: Callable[[Tensors], float] | None = None,
        return_outputs: bool = True,
    ) -> StepResult:
        """Forward only, without a graph. Takes, gives and raises what step() does.

        Without a criterion there are no losses; it is given on every rank that computes losses or on none. Refused
        between a step() and its finish_gradients().
        """
        given = [()] * len(self.loss_micro_batches) if labels is None else labels
        return self._engine.evaluate(inputs, given, criterion, weight, return_outputs)

    def finish_gradients(self) -> None:
        """Runs the W that were put off and finishes reductions. Nothing to do without defer_tail_weight_gradients."""
        self._engine.finish_gradients()

    def guarded(self, action: str, body: Callable[[], object]) -> None:
        """Runs `body` as a part of the pipeline: where it raises, the pipeline ends and the other ranks are told."""
        self._engine.guarded(action, body)

    def prepared(self, body: Callable[[], _T]) -> _T:
        """What `body` gives, which looks at what a step was called with. Where it raises, as guarded()."""
        try:
            return body()
        except Exception as error:
            self.refuse(error)
            raise

    def refuse(self, mistake: Exception) -> None:
        """Raises `mistake` as one that this rank made at the start of a step: the others are told."""

        def raise_it() -> None:
            raise mistake

        self.guarded("the start of a step", raise_it)

    @property
    def rank(self) -> int:
        """Of the pipeline."""
        return self._engine.rank()

    @property
    def size(self) -> int:
        """Ranks of the pipeline."""
        return self._engine.size()

    @property
    def process_group(self) -> ProcessGroup:
        """What the pipeline was made over."""
        return self._group

    @property
    def schedule(self) -> str:
        """The name, or the file."""
        return self._schedule

    @property
    def num_microbatches(self) -> int:
        """M, over both directions."""
        return self._num_microbatches

    @property
    def num_stages(self) -> int:
        """Of the whole pipeline."""
        return self._engine.num_stages()

    @property
    def stages(self) -> list[int]:
        """Of this rank, in the order in which it took its stages."""
        return self._engine.stages()

    @property
    def input_micro_batches(self) -> list[int]:
        """The micro-batches whose inputs this rank gives, ascending."""
        return self._engine.input_micro_batches()

    @property
    def loss_micro_batches(self) -> list[int]:
        """The micro-batches whose labels this rank gives and whose losses it computes, ascending."""
        return self._engine.loss_micro_batches()

    @property
    def reduces_mirrors(self) -> bool:
        """False only where the schedule has mirrors that keep their halves of the gradient."""
        return self._engine.reduces_mirrors()

    @property
    def parameters(self) -> list[tuple[str, Tensor]]:
        """What this rank trains: logical name and tensor, each once."""
        return self._engine.parameters()

    @property
    def gradients(self) -> dict[str, Tensor]:
        """By logical name, of those parameters that have one: `.grad` or the main_grad."""
        return self._engine.gradients()

    @property
    def statistics(self) -> StepStatistics:
        """Of the last training step; with defer_tail_weight_gradients complete after finish_gradients()."""
        return self._engine.statistics()

    @property
    def pending_weight_gradients(self) -> str:
        """What the weight-gradient store still holds: "" or "stage 0: micro-batches 2, 3 (1024 bytes)"."""
        return self._engine.pending_weight_gradients()


def _engine_options(**given: Any) -> _core.PipelineOptions:
    options = _core.PipelineOptions()
    for name, value in given.items():
        if value is not None:
            setattr(options, name, value)
    return options


def device_of_messages(
    group: ProcessGroup, stages: Sequence[Stage], device: torch.device | str | None
) -> torch.device | None:
    """What `device` asks for, or where the stages' parameters are; None where the group leaves no choice.

    Raises:
        ScheduleError: for a device that the group has no backend for.
    """
    served = {known.type for known in group._device_types}
    if device is not None:
        wanted = torch.device(device)
        if wanted.type not in served:
            raise ScheduleError(
                f"[process_group] device must be one that the group has a backend for, {' or '.join(sorted(served))}, "
                f'got {wanted.type}; init_process_group(backend="cpu:gloo,cuda:nccl") gives it both'
            )
        return wanted
    if len(served) < 2:
        return None
    found = (tensor.device for stage in stages for _, tensor in stage.named_parameters())
    return next((held for held in found if held.type in served), None)


def _parallel_groups(
    gradients: Sequence[GradientGroup] | None,
    losses: ProcessGroup | None,
    world: ProcessGroup | None,
    shard_of: Callable[[str], str] | None,
) -> _core.ParallelGroups:
    parallel = _core.ParallelGroups()
    parallel.gradients = [_gradient_group(given) for given in gradients or ()]
    if losses is not None:
        parallel.losses = losses
    if world is not None:
        parallel.world = world
    if shard_of is not None:
        parallel.shard_of = shard_of
    return parallel


def _gradient_group(given: GradientGroup) -> _core.GradientGroup:
    group = _core.GradientGroup()
    if given.group is not None:
        group.group = given.group
    if given.holds is not None:
        group.holds = given.holds
    return group


def _stage_numbers(
    schedule: str,
    group: ProcessGroup,
    num_microbatches: int,
    chunks: int,
    rank_mapping: Sequence[int] | None,
    stages: Sequence[Stage],
) -> list[int]:
    """The numbers of a rank's stages. A schedule that cannot be is refused later, by the engine, on every rank."""
    try:
        rank = rank_mapping[group.rank()] if rank_mapping else group.rank()
        numbers = stages_of(
            schedule, group.size(), num_microbatches, rank, virtual_pipeline_model_parallel_size=chunks
        )
    except (ScheduleError, IndexError):
        numbers = []
    return numbers if len(numbers) == len(stages) else list(range(len(stages)))


def _describe(stages: Sequence[Stage], numbers: Sequence[int]) -> list[_core.StageDescription]:
    kinds: dict[type, int] = {}
    described = []
    for stage, number in zip(stages, numbers, strict=True):
        description = _core.StageDescription()
        description.stage = number
        description.forward = stage.forward
        description.begin_micro_batch = getattr(stage, "begin_micro_batch", None)
        description.owner, description.overlap = _hook_of(stage)
        description.hook_kind = kinds.setdefault(type(description.owner), len(kinds))
        if description.hook_kind >= _core.MOST_HOOK_KINDS:
            description.overlap, description.hook_kind = None, 0
        name = getattr(stage, "logical_name", Stage.logical_name.__get__(stage))
        description.weights = [(name(number, local), tensor) for local, tensor in stage.named_parameters()]
        described.append(description)
    return described


def _hook_of(stage: Stage) -> tuple[object, OverlapHook | None]:
    """What a hook gets as its module, and the hook."""
    if isinstance(stage, _ModuleStage):
        return stage.module, stage.overlap
    return stage, getattr(type(stage), "overlapped_forward_backward", None)


def no_parameters(stage: Stage) -> Stage:
    """The same stage with parameters that are the host's own affair: not compared, not reduced, in no norm."""
    return _WithoutParameters(stage)


class _WithoutParameters(_ModuleStage):
    def __init__(self, stage: Stage) -> None:
        owner, overlap = _hook_of(stage)
        super().__init__(owner, stage.forward, None, overlap)  # type: ignore[arg-type]
        self._begin = getattr(stage, "begin_micro_batch", None)

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        return ()

    def begin_micro_batch(self, micro_batch: int) -> None:
        if self._begin is not None:
            self._begin(micro_batch)
