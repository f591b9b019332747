"""The forward-backward function, with Megatron's signature and return value, over the engine of dualpipe.core."""

from __future__ import annotations

import contextlib
import copy
import datetime
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import schedules
from megatron.core.utils import get_model_config

from dualpipe.core import Pipeline, StepStatistics

from .builtin import BuiltinForwardBackward
from .data import StepIterator
from .earlier import Earlier
from .gradients import placement_of, sum_mirrors, sum_tied_weights, total_tokens
from .losses import gather_losses
from .placement import (
    BUILTIN_SCHEDULES,
    check_schedule,
    group_collection,
    keeps_ends_together,
    stages_of_rank,
    without_embedding_groups,
)
from .refusals import check_accumulation, check_call, check_chunks, check_config, check_overlap
from .schedule_plan import PlannedStage
from .seams import check_seams, seam
from .stage import MegatronStage, StepContext
from .weight_gradients import defer_weight_gradients

# Set on a TransformerConfig after the model was built, by hosts that may hold the one they built it from.
_HOST_FIELDS: tuple[str, ...] = (
    "finalize_model_grads_func",
    "grad_scale_func",
    "grad_sync_func",
    "moe_grad_scale_func",
    "no_sync_func",
    "param_sync_func",
    "timers",
)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def schedule_config(chunks: Sequence[torch.nn.Module]) -> Any:
    """The first chunk's TransformerConfig, with what the host set on the one that it built the model from."""
    placement = placement_of(chunks[0])
    config = copy.copy(get_model_config(chunks[0]))
    config.pipeline_model_parallel_size = placement.config.pipeline_model_parallel_size
    for name in _HOST_FIELDS:
        if getattr(config, name, None) is None:
            setattr(config, name, getattr(placement.config, name, None))
    return config


@contextlib.contextmanager
def checkpoints_may_split() -> Iterator[None]:
    """Lets recomputed layers run in an I.

    Megatron's checkpoint, as torch's reentrant one, refuses a backward that was asked for some gradients alone, since
    it would fill parameters that nobody asked for. The engine asks for the inputs first and wants parameters filled.
    """
    name = "_is_checkpoint_valid"
    original = seam("torch.autograd", name)
    setattr(torch.autograd, name, lambda: True)
    try:
        yield
    finally:
        setattr(torch.autograd, name, original)


def _no_sync(config: Any, chunks: Sequence[torch.nn.Module]) -> contextlib.ExitStack:
    """Holds back data-parallel reductions: mirrors, tied weights and deferred gradients come first."""
    stack = contextlib.ExitStack()
    functions = _as_list(config.no_sync_func) if config.no_sync_func is not None else []
    for enter in functions or [chunk.no_sync for chunk in chunks if hasattr(chunk, "no_sync")]:
        stack.enter_context(enter())
    return stack


class Engine:
    """Stages and pipeline of one model for one number of micro-batches. Collective over the pipeline group."""

    def __init__(
        self,
        schedule: str,
        chunks: Sequence[torch.nn.Module],
        config: Any,
        group: dist.ProcessGroup,
        num_microbatches: int,
        by_plan: bool,
        timeout: datetime.timedelta | None,
    ) -> None:
        check_config(schedule, config)
        check_chunks(schedule, chunks)
        if by_plan:
            check_overlap(schedule, config)
        for chunk in chunks:
            defer_weight_gradients(chunk)
        self.stages = [PlannedStage(chunk) if by_plan else MegatronStage(chunk) for chunk in chunks]
        self.num_microbatches = num_microbatches
        self.schedule = schedule
        self.group = group
        self.pipeline = Pipeline(
            schedule,
            group,
            self.stages,
            num_microbatches=num_microbatches,
            variable_seq_lengths=bool(config.variable_seq_lengths),
            reduce_mirrors=False,
            timeout=timeout,
        )

    def iterator(self, stage: MegatronStage, source: Iterator[Any] | None) -> StepIterator | None:
        """The micro-batches that pass through a stage on this rank."""
        if source is None:
            return None
        total = self.num_microbatches
        if self.schedule != "dualpipe":
            return StepIterator(source, 0, total, total)
        half = total // 2
        return StepIterator(source, *((half, total) if stage.placement.is_mirror else (0, half)), total)

    def run(self, contexts: Sequence[StepContext]) -> None:
        """One step or evaluation; results are in the stages afterwards."""
        for stage, context in zip(self.stages, contexts, strict=True):
            stage.begin_step(context)
        inputs = [()] * len(self.pipeline.input_micro_batches)
        if contexts[0].forward_only:
            self.pipeline.evaluate(inputs, return_outputs=False)
            return
        scale = contexts[0].config.grad_scale_func
        labels = [()] * len(self.pipeline.loss_micro_batches)
        self.pipeline.step(
            inputs,
            labels,
            lambda outputs, _: outputs[0] if scale is None else scale(outputs[0]),
            weight=lambda _: 1.0 / self.num_microbatches,  # Sums to 1: forward_step has divided the losses already.
        )


class ForwardBackward:
    """What `get_forward_backward_func` returns for a schedule of this package; called as Megatron's functions are."""

    def __init__(
        self,
        schedule: str,
        overlap_layers: bool | None = None,
        timeout: datetime.timedelta | None = None,
    ) -> None:
        check_seams()
        self.schedule = schedule
        self._overlap_layers = overlap_layers
        self._timeout = timeout
        self.tokens = 0  # Of the last call, of one replica.
        self._engine: Engine | None = None  # Of the last call.

    @property
    def engine(self) -> Engine:
        """Of the last call; raises `RuntimeError` before the first."""
        if self._engine is None:
            raise RuntimeError("[dualpipe.megatron] no step was run yet")
        return self._engine

    @property
    def num_microbatches(self) -> int:
        """Of the last call."""
        return self.engine.num_microbatches

    @property
    def chunks(self) -> list[torch.nn.Module]:
        """Of the last call."""
        return [stage.chunk for stage in self.engine.stages]

    def stages(self) -> tuple[list[int], int]:
        """Of this rank, and how many there are."""
        return list(self.engine.pipeline.stages), self.engine.pipeline.num_stages

    def statistics(self) -> StepStatistics:
        """Of the last training step."""
        return self.engine.pipeline.statistics

    def __call__(
        self,
        *,
        forward_step_func: Callable[..., Any],
        data_iterator: Any,
        model: Any,
        num_microbatches: int,
        seq_length: int,
        micro_batch_size: int,
        decoder_seq_length: int | None = None,
        forward_only: bool = False,
        collect_non_loss_data: bool = False,
        first_val_step: bool | None = None,
        adjust_tensor_shapes_fn: Callable[..., Any] | None = None,
        p2p_communicator: Any = None,
        pg_collection: Any = None,
        force_all_reduce: bool | None = False,
    ) -> list[Any]:
        """One step over all micro-batches: forward, backward unless `forward_only`, gradients finished.

        Returns what the loss function gave per micro-batch, in order, on the last rank of the pipeline; [] on others.
        `model`: this rank's chunks as `build_chunks` returned them, wrapped or not; `data_iterator`: one per chunk,
        each giving all micro-batches of the step in the same order, or None. Both may be bare where there is one chunk.
        `micro_batch_size` and `seq_length` count tokens for the log alone, shapes come with the messages. Adds to the
        gradients that the model holds.
        """
        check_call(
            self.schedule,
            {
                "adjust_tensor_shapes_fn": adjust_tensor_shapes_fn,
                "p2p_communicator": p2p_communicator,
                "pg_collection": pg_collection,
                "decoder_seq_length": decoder_seq_length,
                "seq_length": seq_length,
            },
        )
        self.tokens = num_microbatches * micro_batch_size * seq_length
        chunks = _as_list(model)
        groups = pg_collection or group_collection()
        iterators = self._iterators(chunks, data_iterator, groups.pp)
        config = schedule_config(chunks)
        engine = self._engine_for(chunks, config, groups.pp, num_microbatches)
        contexts = [
            StepContext(
                forward_step_func,
                engine.iterator(stage, iterator),
                config,
                num_microbatches,
                groups.cp.size(),
                forward_only,
                collect_non_loss_data,
                first_val_step,
            )
            for stage, iterator in zip(engine.stages, iterators, strict=True)
        ]
        earlier = None if forward_only else self._set_aside(chunks)
        self._run(engine, chunks, config, contexts)
        device = next(chunks[0].parameters()).device
        if earlier is not None:
            self._sum_gradients(chunks, groups)
            earlier.add_counts()
            self._finish_gradients(engine, chunks, config, groups, device, force_all_reduce)
            earlier.add_gradients()
        losses = {k: loss for stage in engine.stages for k, loss in stage.losses.items()}
        return gather_losses(losses, keeps_ends_together(self.schedule), groups.pp, device)

    def _iterators(self, chunks: list[Any], data_iterator: Any, group: dist.ProcessGroup) -> list[Any]:
        stages, _ = stages_of_rank(self.schedule, group.rank(), group.size())
        held = [placement_of(chunk).stage for chunk in chunks]
        if held != stages:
            raise ValueError(
                f"[{self.schedule}] model must be the chunks of stages {stages} in this order on pipeline rank "
                f"{group.rank()}, got stages {held}; for example what build_chunks returned, each wrapped"
            )
        iterators = [None] * len(chunks) if data_iterator is None else _as_list(data_iterator)
        if len(iterators) != len(chunks):
            raise ValueError(
                f"[{self.schedule}] data_iterator must be a list of {len(chunks)}, one per chunk, got "
                f"{len(iterators)}; for example [iter(loader) for _ in model]"
            )
        given = [iterator for iterator in iterators if iterator is not None]
        if len({id(iterator) for iterator in given}) != len(given):
            raise ValueError(
                f"[{self.schedule}] data_iterator must be an iterator of its own for each chunk, which reads all "
                "micro-batches of a step, got one for both; for example [iter(loader) for _ in model]"
            )
        return iterators

    def _engine_for(self, chunks: list[Any], config: Any, group: dist.ProcessGroup, num_microbatches: int) -> Engine:
        """Made at the first step of a number of micro-batches; kept on the model, as hosts ask for functions anew."""
        by_plan = self._overlap_layers
        if by_plan is None:
            by_plan = bool(config.overlap_moe_expert_parallel_comm)
        engines = placement_of(chunks[0]).engines
        key = (self.schedule, num_microbatches, by_plan, tuple(id(chunk) for chunk in chunks))
        if key not in engines:
            engines[key] = Engine(self.schedule, chunks, config, group, num_microbatches, by_plan, self._timeout)
        self._engine = engines[key]
        return engines[key]

    def _run(self, engine: Engine, chunks: list[Any], config: Any, contexts: list[StepContext]) -> None:
        if config.timers is not None:
            config.timers("forward-backward", log_level=1).start(barrier=config.barrier_with_L1_time)
        with _no_sync(config, chunks), checkpoints_may_split():
            engine.run(contexts)
        if config.timers is not None:
            config.timers("forward-backward").stop()
        for context in contexts:
            if context.data_iterator is not None:
                context.data_iterator.finish()

    def _set_aside(self, chunks: list[Any]) -> Earlier:
        earlier = Earlier(chunks)
        if earlier.in_buffers:
            try:
                check_accumulation(self.schedule, chunks)
            except ValueError:
                earlier.add_counts()
                earlier.add_gradients()
                raise
        return earlier

    def _sum_gradients(self, chunks: list[Any], groups: Any) -> None:
        if self.schedule == "dualpipe":
            sum_mirrors(chunks, groups.pp)
        sum_tied_weights(chunks)

    def _finish_gradients(
        self, engine: Engine, chunks: list[Any], config: Any, groups: Any, device: torch.device, force_all_reduce: Any
    ) -> None:
        if config.finalize_model_grads_func is None:
            return
        for chunk in chunks:
            if getattr(getattr(chunk, "ddp_config", None), "overlap_grad_reduce", False):
                chunk.start_grad_sync()
        tokens = None
        if config.calculate_per_token_loss:
            tokens = total_tokens([count for stage in engine.stages for count in stage.tokens], device, groups.pp)
        finalize_groups = without_embedding_groups(groups) if keeps_ends_together(self.schedule) else groups
        config.finalize_model_grads_func(
            chunks, tokens, pg_collection=finalize_groups, force_all_reduce=force_all_reduce
        )


def get_forward_backward_func(
    schedule: str,
    pp_size: int | None = None,
    vp_size: int | None = None,
    *,
    overlap_layers: bool | None = None,
    timeout: datetime.timedelta | None = None,
) -> ForwardBackward | BuiltinForwardBackward:
    """Megatron's function of the same name, with a schedule: its own functions for builtin_1f1b and interleaved_1f1b,
    a `ForwardBackward` for dualpipe, dualpipev, zb1p and 1f1b.

    `overlap_layers`: overlapped pairs of MoE chunks run by Megatron's layer schedule plan (see schedule_plan.py);
    default: `config.overlap_moe_expert_parallel_comm`. `timeout` bounds one wait for another rank.
    """
    check_schedule(schedule)
    if schedule in BUILTIN_SCHEDULES:
        return BuiltinForwardBackward(schedule, schedules.get_forward_backward_func(pp_size, vp_size))
    return ForwardBackward(schedule, overlap_layers, timeout)
