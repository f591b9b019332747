"""What DualPipe and DualPipeV have in common: the reference's face over the engine of dualpipe.core.

The criterion is called as criterion(*outputs, *labels) and its losses are summed, not averaged, over micro-batches, so
gradients are those of the sum. The engine wants a weight of every micro-batch instead: micro-batch 0 weighs one and the
others nothing, which makes their sum exactly one; the weight travels as the last label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dualpipe import core
from dualpipe.errors import ScheduleError
from dualpipe.utils import gather, scatter

_OF_SUMS = ("gradient_groups", "main_grads", "shard_gradients")
Loss = Callable[..., Tensor]
StepOutput = Union[Tensor, tuple[Optional[Tensor], ...], None]


class ReferencePipeline(nn.Module):
    """A pair of modules of this rank under one schedule."""

    schedule: str

    def __init__(
        self,
        modules: Sequence[nn.Module],
        batch_dim: int = 0,
        process_group: dist.ProcessGroup | None = None,
        rank_mapping: Sequence[int] | None = None,
        *,
        reduce_mirrors: bool = False,
        **options: Any,
    ) -> None:
        """No message is sent before the first step().

        Args:
            modules: two, in the order of the class's description. Where both are of one class that has a class method
                `overlapped_forward_backward`, it runs the overlapped pairs.
            batch_dim: along which inputs and labels are split, and outputs put together.
            process_group: default: the default group.
            rank_mapping: by rank of the group, the rank of the pipeline; None: the same.
            reduce_mirrors: mirrors hold the sum of their gradients, instead of each its own half.
            options: of dualpipe.core.Pipeline (variable_seq_lengths, timeout, ...).

        Raises:
            ScheduleError: for other than two modules, and for options about gradients that are summed where each
                mirror keeps its own.
        """
        super().__init__()
        if len(modules) != 2:
            raise ScheduleError(
                f"[{self.schedule}] modules must be two, got {len(modules)}; for example (first, second)"
            )
        if self.schedule == "dualpipe" and not reduce_mirrors:
            _refuse_sums(options)
        self.module = nn.ModuleList(modules)
        self.overlapped_forward_backward = _offers_overlap(self.module)
        self.batch_dim = batch_dim
        self.group = process_group or dist.distributed_c10d._get_default_group()
        self.num_ranks = self.group.size()
        self._set_ranks(rank_mapping)
        self._reduce_mirrors = reduce_mirrors
        self._options = options
        self._pipelines: dict[int, core.Pipeline] = {}
        self._micro_batch = 0  # Whose forward began last.
        self._losses: dict[int, Tensor] = {}

    def _set_ranks(self, rank_mapping: Sequence[int] | None) -> None:
        self._mapping = None if rank_mapping is None else list(rank_mapping)
        mapping = self._mapping or list(range(self.num_ranks))
        if sorted(mapping) != list(range(self.num_ranks)):
            raise ScheduleError(
                f"[rank_mapping] must hold each of 0 .. {self.num_ranks - 1} once, got {mapping}; None keeps the ranks "
                "of the group"
            )
        place: dict[int, int] = {rank: group_rank for group_rank, rank in enumerate(mapping)}
        self.rank = mapping[self.group.rank()]
        self.first_rank = place[0]
        self.prev_rank = place.get(self.rank - 1)
        self.next_rank = place.get(self.rank + 1)
        self.last_rank = place[self.num_ranks - 1]
        self.is_first_rank = self.rank == 0
        self.is_last_rank = self.rank == self.num_ranks - 1

    def pipeline(self, num_chunks: int) -> core.Pipeline:
        """The engine for this number of micro-batches. The first call is collective over the group."""
        if num_chunks not in self._pipelines:
            self._pipelines[num_chunks] = self._make_pipeline(num_chunks)
        return self._pipelines[num_chunks]

    def _make_pipeline(self, num_chunks: int) -> core.Pipeline:
        kind = _OverlappingStage if self.overlapped_forward_backward else _ReferenceStage
        stages: list[core.Stage] = [kind(self, module) for module in self.module]
        device = core.device_of_messages(self.group, stages, self._options.get("device"))
        if self.schedule == "dualpipe" and not self._reduce_mirrors:
            # Each copy is its host's, who may do with it what the reference lets him.
            stages = [core.no_parameters(stage) for stage in stages]
        return core.Pipeline(
            self.schedule,
            self.group,
            stages,
            num_microbatches=num_chunks,
            reduce_mirrors=self._reduce_mirrors,
            rank_mapping=self._mapping,
            **{**self._options, "device": device},
        )

    def step(
        self,
        *inputs: Tensor | None,
        num_chunks: int = 0,
        criterion: Loss | None = None,
        labels: Tensor | Sequence[Tensor | None] = (),
        return_outputs: bool = False,
    ) -> tuple[Tensor | None, StepOutput]:
        """A training step, or under torch.no_grad() an inference step.

        Args:
            inputs: of the module, whole; read on the ranks where micro-batches enter.
            num_chunks: micro-batches, over both directions.
            criterion: called as criterion(*outputs, *labels), on the ranks that compute losses.
            labels: a tensor or a sequence of them, whole; read on the ranks that compute losses.
            return_outputs: give outputs.

        Returns:
            (loss, outputs): one loss per micro-batch whose loss this rank computes, and their outputs, put together
            along batch_dim (a tuple where there are several); None elsewhere and where not asked for.

        Raises:
            ScheduleError: for a num_chunks that the schedule cannot have, or a training step without a criterion.
            TypeError: for inputs and labels that are no tensors. Either ends the pipeline, and the others are told.
        """
        pipeline = self.pipeline(num_chunks)
        given, wanted = pipeline.prepared(lambda: self._prepare(pipeline, inputs, labels, criterion))
        self._losses = {}
        loss = None if criterion is None else self._core_criterion(criterion)
        if not torch.is_grad_enabled():
            result = pipeline.evaluate(given, wanted, loss, weight=_last_label, return_outputs=return_outputs)
        else:
            result = pipeline.step(given, wanted, loss or _no_loss, weight=_last_label, return_outputs=return_outputs)
        return self._stacked_losses(), self._gathered(result.outputs if return_outputs else [])

    def _prepare(
        self,
        pipeline: core.Pipeline,
        inputs: Sequence[Tensor | None],
        labels: Tensor | Sequence[Tensor | None],
        criterion: Loss | None,
    ) -> tuple[list[tuple[Tensor | None, ...]], list[tuple[Tensor | None, ...]]]:
        """Inputs and labels by micro-batch, the weight as the last label."""
        loss_ids = pipeline.loss_micro_batches
        if criterion is None and loss_ids and torch.is_grad_enabled():
            raise ScheduleError(
                f"[{self.schedule}] a criterion is wanted in training, got None; or use torch.no_grad()"
            )
        given = self._split(inputs, len(pipeline.input_micro_batches))
        return given, [(*row, _weight(k)) for row, k in zip(self._split(labels, len(loss_ids)), loss_ids, strict=True)]

    def _split(self, values: Tensor | Sequence[Tensor | None], parts: int) -> list[tuple[Tensor | None, ...]]:
        return scatter(values, parts, self.batch_dim) if parts else []

    def _core_criterion(self, criterion: Loss) -> core.Criterion:
        def call(outputs: core.Tensors, labels: core.Tensors) -> Tensor:
            return self.compute_loss(criterion, outputs, labels[:-1])

        return call

    def compute_loss(self, criterion: Loss, outputs: core.Tensors, labels: core.Tensors) -> Tensor:
        """Of the micro-batch whose forward began last; kept for the step's result."""
        loss = criterion(*outputs, *labels)
        self._losses[self._micro_batch] = loss.detach()
        return loss

    def begin_micro_batch(self, micro_batch: int) -> None:
        """Told by this rank's stages."""
        self._micro_batch = micro_batch

    def _stacked_losses(self) -> Tensor | None:
        losses, self._losses = self._losses, {}
        return torch.stack([losses[k] for k in sorted(losses)]) if losses else None

    def _gathered(self, outputs: Sequence[Sequence[Tensor | None]]) -> StepOutput:
        if not outputs:
            return None
        whole = gather(outputs, self.batch_dim)
        return whole[0] if len(whole) == 1 else whole

    def register_optimizer(self, optimizer: torch.optim.Optimizer, num_chunks: int, clip_grad: float = 0.0) -> Any:
        """core.register_optimizer() for steps of `num_chunks`. Collective over the group where no step has run yet."""
        return core.register_optimizer(self.pipeline(num_chunks), optimizer, clip_grad)


class _ReferenceStage(core.Stage):
    """A module called with its inputs as arguments, and its class's overlapped_forward_backward."""

    def __init__(self, owner: ReferencePipeline, module: nn.Module) -> None:
        self._owner = owner
        self.module = module

    def forward(self, inputs: core.Tensors) -> core.Outputs:
        return self.module(*inputs)

    def named_parameters(self) -> Any:
        return self.module.named_parameters()

    def begin_micro_batch(self, micro_batch: int) -> None:
        self._owner.begin_micro_batch(micro_batch)


class _OverlappingStage(_ReferenceStage):
    @classmethod
    def overlapped_forward_backward(
        cls,
        module0: _OverlappingStage,
        inputs0: core.Tensors,
        criterion0: core.Criterion | None,
        labels0: core.Tensors,
        module1: _OverlappingStage,
        loss1: Tensor | None,
        outputs1: core.Tensors,
        output_grads1: core.Tensors,
    ) -> tuple[core.Outputs, Tensor | None]:
        """The hook of the reference's users, with arguments as they know them."""

        def loss0(*arguments: Tensor | None) -> Tensor:
            assert criterion0 is not None
            count = len(arguments) - len(labels0) + 1
            return criterion0(arguments[:count], (*arguments[count:], labels0[-1]))

        pairs = [(t, g) for t, g in zip(outputs1, output_grads1) if g is not None] if loss1 is None else []
        return type(module0.module).overlapped_forward_backward(
            module0.module,
            list(inputs0),
            None if criterion0 is None else loss0,
            list(labels0[:-1]),
            module1.module,
            loss1,
            [t for t, _ in pairs],
            [g for _, g in pairs],
        )


def _refuse_sums(options: dict[str, Any]) -> None:
    given = [name for name in _OF_SUMS if options.get(name)]
    if given:
        raise ScheduleError(
            f"[dualpipe] {', '.join(given)} wants gradients that mirrors sum, got reduce_mirrors = False; set "
            "reduce_mirrors=True, or sum them yourself"
        )


def _offers_overlap(modules: nn.ModuleList) -> bool:
    return type(modules[0]) is type(modules[1]) and hasattr(type(modules[0]), "overlapped_forward_backward")


def _weight(micro_batch: int) -> Tensor:
    return torch.tensor(1.0 if micro_batch == 0 else 0.0, device="cpu")


def _last_label(labels: core.Tensors) -> float:
    return float(labels[-1])


def _no_loss(outputs: core.Tensors, labels: core.Tensors) -> Tensor:
    raise AssertionError("a rank without losses computes none")
