"""Schedules as values: rows of cells in the text form of torch.distributed.pipelining, one row per rank.

Cells are "<stage><kind><micro-batch>" with kinds F, B, I (gradient of the inputs) and W (of the weights), or a pair
that runs overlapped, "(0F7;7B3)OVERLAP_F_B".
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from dualpipe import _core

Rows = list[list[str]]


def schedule_names() -> list[str]:
    """The schedules that `Pipeline` and `plan` know by name; both also take the path of a CSV file."""
    return _core.schedule_names()


def plan(
    schedule: str,
    pipeline_model_parallel_size: int,
    num_microbatches: int,
    *,
    virtual_pipeline_model_parallel_size: int = 2,
    lowered: bool = False,
) -> Rows:
    """The rows of a schedule.

    Args:
        schedule: a name of `schedule_names()`, or a file ("*.csv").
        pipeline_model_parallel_size: ranks of the pipeline.
        num_microbatches: micro-batches of a step, over both directions.
        virtual_pipeline_model_parallel_size: chunks per rank; read by interleaved_1f1b alone.
        lowered: with sends, receives and gradient reductions.

    Raises:
        ScheduleError: for an unknown name, or sizes that the schedule cannot have.
    """
    return _core.plan(
        os.fspath(schedule),
        pipeline_model_parallel_size,
        num_microbatches,
        virtual_pipeline_model_parallel_size,
        lowered,
    )


def stages_of(
    schedule: str,
    pipeline_model_parallel_size: int,
    num_microbatches: int,
    rank: int,
    *,
    virtual_pipeline_model_parallel_size: int = 2,
) -> list[int]:
    """The stages of a rank, in the order in which `Pipeline` takes its modules. Raises as `plan`."""
    return _core.stages_of(
        os.fspath(schedule), pipeline_model_parallel_size, num_microbatches, virtual_pipeline_model_parallel_size, rank
    )


def write_csv(rows: Sequence[Sequence[str]], path: str | os.PathLike[str]) -> None:
    """Writes rows as a file that `plan`, `Pipeline`, the command and torch.distributed.pipelining read."""
    with Path(path).open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def read_csv(path: str | os.PathLike[str]) -> Rows:
    """The compute actions of a file; those of communication are dropped, since they are planned anew.

    Raises:
        ScheduleError: for a file that cannot be read, with the rank and the column of the cell.
    """
    return _core.read_schedule(os.fspath(path))
