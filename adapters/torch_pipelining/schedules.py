"""The three schedules, and how a script chooses one by name."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from .csv_form import CsvSchedule


class ScheduleDualPipe(CsvSchedule):
    """DualPipe: micro-batches enter at both ends of the pipeline, forward and backward run in overlapped pairs.

    P ranks (even), P stages, M micro-batches per step over both directions (even, at least 2 P). Rank r gives the
    ``PipelineStage`` objects of stages r and P-1-r, both of ``num_stages`` P: every stage lives on two ranks, and both
    copies have to start equal. They get the sum of both gradients, so they stay equal to the bit.

    ========  =======================================  ================================================
    rank      passes                                   gets
    ========  =======================================  ================================================
    0         the whole batch and the whole target     all M losses; outputs of micro-batches M/2..M-1
    P-1       the same batch and target                all M losses; outputs of micro-batches 0..M/2-1
    others    keyword arguments of its stages, if any  ``None``
    ========  =======================================  ================================================

    Both ends hold a first and a last stage, so a loop that feeds whoever does (as torch's loops do) feeds both. Of the
    batch, rank 0 uses the first M/2 micro-batches as inputs and the others' targets, rank P-1 the reverse.
    ``output_micro_batches`` names those whose outputs are returned.

    Args:
        broadcast_mirrors: ``True`` makes the copies equal at the first step: stage s becomes that of rank s, for hosts
            that initialize each rank from a seed of its own. Otherwise unequal copies are refused.
        reduce_mirrors: ``False`` leaves each copy with the gradient of its own half, for a loop that sums them itself.

    All else: :class:`EngineSchedule`.
    """

    schedule_name = "dualpipe"
    _mirrored = True

    @classmethod
    def stage_indices(cls, rank: int, size: int) -> tuple[list[int], int]:
        return sorted({rank, size - 1 - rank}), size


class ScheduleDualPipeV(CsvSchedule):
    """DualPipeV: DualPipe folded in half, every stage once.

    P ranks, 2 P stages, M micro-batches (at least 2 P). Rank r gives stages r and 2P-1-r. Rank 0 holds the first and
    the last stage: it passes batch and target and gets losses and outputs. All else: :class:`EngineSchedule`.
    """

    schedule_name = "dualpipev"

    @classmethod
    def stage_indices(cls, rank: int, size: int) -> tuple[list[int], int]:
        return [rank, 2 * size - 1 - rank], 2 * size


class ScheduleZB1P(CsvSchedule):
    """ZB1P (ZB-H1): 1F1B whose weight gradients fill the bubble; torch's InterleavedZeroBubble with one stage per rank.

    P ranks, P stages, any M. Rank r gives stage r, alone or in a list. Rank 0 passes the batch, rank P-1 the target and
    gets losses and outputs. All else: :class:`EngineSchedule`.
    """

    schedule_name = "zb1p"

    @classmethod
    def stage_indices(cls, rank: int, size: int) -> tuple[list[int], int]:
        return [rank], size


_SCHEDULES: dict[str, type[CsvSchedule]] = {
    "dualpipe": ScheduleDualPipe,
    "dualpipev": ScheduleDualPipeV,
    "zb1p": ScheduleZB1P,
}


def get_schedule_class(name: str) -> type[Any]:
    """As torch's function of this name, with ``DualPipe``, ``DualPipeV`` and ``ZB1P`` from this package.

    Case does not matter, nor do underscores (``interleaved_1f1b``); ``builtin_1f1b`` is torch's own ``1F1B``.
    Raises ``ValueError`` for an unknown name.
    """
    key = name.lower().replace("_", "").removeprefix("builtin")
    if key in _SCHEDULES:
        return _SCHEDULES[key]
    try:
        return torch_schedules.get_schedule_class(key)
    except ValueError as unknown:
        raise ValueError(f"[dualpipe.pipelining] unknown schedule '{name}'; DualPipe, DualPipeV and ZB1P run in this "
                         "package's engine, and torch's own names work, as 1F1B and Interleaved1F1B") from unknown


def stage_indices(name: str, rank: int, size: int, stages_per_rank: int = 2) -> tuple[list[int], int]:
    """Stages of a pipeline rank, ascending, and the number of stages of the model, under the schedule of this name.

    ``stages_per_rank`` is read for torch's looped schedules alone.
    """
    schedule = get_schedule_class(name)
    if issubclass(schedule, CsvSchedule):
        return schedule.stage_indices(rank, size)
    if issubclass(schedule, PipelineScheduleSingle):
        return [rank], size
    if schedule is torch_schedules.ScheduleZBVZeroBubble:
        return [rank, 2 * size - 1 - rank], 2 * size
    return [rank + size * chunk for chunk in range(stages_per_rank)], size * stages_per_rank


def make_schedule(name: str, stages: list[Any], n_microbatches: int, **options: Any) -> Any:
    """A schedule of this name, torch's or ours, over this rank's stages; torch's single ones take the only stage."""
    schedule = get_schedule_class(name)
    is_single = not issubclass(schedule, PipelineScheduleMulti)
    return schedule(stages[0] if is_single else stages, n_microbatches, **options)
