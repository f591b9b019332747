"""Schedules as files: the CSV of torch.distributed.pipelining, in both directions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed.pipelining.stage import _PipelineStageBase

import dualpipe

from .schedule import EngineSchedule

_CELL = re.compile(r"(\d+)(F|B|I|W)(\d+)")

Rows = list[list[str]]


def _computes(row: Sequence[str]) -> list[tuple[int, str, int]]:
    return [(int(stage), kind, int(k)) for cell in row for stage, kind, k in _CELL.findall(cell)]


def stages_in_row(row: Sequence[str]) -> list[int]:
    """The stages that a row runs, ascending."""
    return sorted({stage for stage, _, _ in _computes(row)})


class CsvSchedule(EngineSchedule):
    """A schedule that can be replaced by a file, and written into one."""

    def _load_csv(self, filename: str, format: str = "compute_only") -> None:
        """Runs the order of a file instead, as torch's method of this name. Before the first step.

        ``format`` is torch's and makes no difference. Raises ``ValueError`` where the file is for other ranks, stages
        or micro-batches than those given at construction.
        """
        if self._pipeline is not None:
            raise RuntimeError(f"[{self._origin}] a schedule file must be loaded before the first step")
        rows = dualpipe.read_csv(filename)
        self._check_rows(filename, rows)
        self._source = str(filename)
        self._set_order(rows)

    def _check_rows(self, filename: str | Path, rows: Rows) -> None:
        if len(rows) != self.pp_group_size:
            raise ValueError(f"[{self._origin}] {filename} must have a row for each of {self.pp_group_size} ranks, got "
                             f"{len(rows)}")
        here = [stage.stage_index for stage in self._stages]
        if stages_in_row(rows[self.rank]) != here:
            raise ValueError(f"[{self._origin}] {filename} must run this rank's stages {here} in row {self.rank}, got "
                             f"{stages_in_row(rows[self.rank])}")
        count = 1 + max(k for row in rows for _, _, k in _computes(row))
        if count != self._n_microbatches:
            raise ValueError(f"[{self._origin}] {filename} must be for n_microbatches = {self._n_microbatches}, got "
                             f"{count} micro-batches in it")

    def _dump_csv(self, filename: str, format: str = "compute_only") -> None:
        """Writes the order as torch's method of this name does; torch's ``_load_csv`` reads it.

        A bidirectional order is our extension of the form: torch refuses a stage on two ranks.
        """
        if format != "compute_only":
            raise ValueError(f"[{self._origin}] format must be 'compute_only', got '{format}': torch adds its own "
                             "communication when it loads the file")
        rows = [[str(action) for action in row] for _, row in sorted(self.pipeline_order.items())]
        dualpipe.write_csv(rows, filename)


class ScheduleFromFile(CsvSchedule):
    """Any order that a file holds, over the stages that its rows name: what ``dualpipe plan --format csv`` writes
    (``--schedule auto`` among them) or what a torch schedule dumped.

    Args:
        filename: The CSV file, which every rank reads. A rank gives the stages of its row.

    All else: :class:`EngineSchedule`.
    """

    def __init__(
        self, stages: list[_PipelineStageBase] | _PipelineStageBase, n_microbatches: int, filename: str | Path,
        *args: Any, **options: Any
    ) -> None:
        self._file = Path(filename)
        self._rows = dualpipe.read_csv(filename)
        self._mirrored = self._on_two_ranks(self._rows)
        super().__init__(stages, n_microbatches, *args, **options)
        self._check_rows(filename, self._rows)
        self._source = str(filename)

    @staticmethod
    def _on_two_ranks(rows: Rows) -> bool:
        held = [stage for row in rows for stage in stages_in_row(row)]
        return len(held) != len(set(held))

    def _wanted(self, rank: int, size: int) -> tuple[list[int], int]:
        if len(self._rows) != size:
            raise ValueError(f"[{self._origin}] {self._file} must have a row for each of {size} ranks, got "
                             f"{len(self._rows)}")
        return stages_in_row(self._rows[rank]), 1 + max(stage for row in self._rows for stage in stages_in_row(row))

    def _names_stages(self, rank: int, size: int) -> str:
        return f"row {rank} of the file"

    def _planned_rows(self) -> Rows:
        return self._rows
