"""What a run writes, so that `dualpipe ab` can compare it: metrics.jsonl and timeline_rank<R>.jsonl.

docs/run_files.md says what is in them.

A comparison tells a run its schedule in DUALPIPE_SCHEDULE and its folder in DUALPIPE_OUTPUT.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

LAST_STEPS = 5  # How many steps of a compared run are recorded, unless the host says otherwise.


def asked_schedule(default: str) -> str:
    """The schedule that this run has to take."""
    return os.environ.get("DUALPIPE_SCHEDULE") or default


def asked_folder(default: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder that this run writes into; None: it writes nothing."""
    given = os.environ.get("DUALPIPE_OUTPUT") or default
    return None if given is None else Path(given)


def tokens_per_second(tokens: int | None, ms: float) -> float | None:
    """Of an iteration; None where its tokens are not known."""
    return None if tokens is None or ms <= 0 else tokens * 1e3 / ms


def state_bytes(*optimizers: Any) -> int:
    """Of the tensors in the states of torch optimizers, of DTensors this rank's shard.

    Step counters (tensors without dimensions) do not count: AdamW holds twice what its parameters hold.
    """
    values = (value for optimizer in optimizers for state in optimizer.state.values() for value in state.values())
    tensors = (value for value in values if getattr(value, "ndim", 0) > 0)
    return sum((tensor.to_local() if hasattr(tensor, "to_local") else tensor).nbytes for tensor in tensors)


class Statistics(Protocol):
    """What a recorded step is written from; StepStatistics is one."""

    @property
    def began(self) -> float: ...
    @property
    def spans(self) -> Sequence[tuple[str, float, float, float]]: ...


@dataclass
class HostStatistics:
    """A step of a host's own schedule.

    Attributes:
        began: Unix time in seconds (time.time()) at which this rank began the step.
        spans: cell, begin and end in seconds since `began`, seconds of it waited for messages; in the order of running.
    """

    began: float
    spans: list[tuple[str, float, float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class TimelineHeader:
    """Who writes a timeline. Ranks are those of the run in `rank` and `world_size`, of the pipeline else.

    `parameter_bytes`, `gradient_bytes` and `optimizer_bytes` are this rank's; None: not known.
    """

    schedule: str
    rank: int
    world_size: int
    pipeline_rank: int
    pipeline_model_parallel_size: int
    num_microbatches: int
    num_stages: int
    stages: Sequence[int]
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None


class RunFiles:
    """Writes one rank's files into a folder that exists; lines are on their way to the disk when a call returns."""

    def __init__(self, folder: str | os.PathLike[str], header: TimelineHeader, *, record_from: int = 1) -> None:
        """Starts metrics.jsonl anew on rank 0.

        Args:
            folder: where the files go.
            header: of this rank's timeline, which is begun with the first recorded step.
            record_from: the first iteration whose actions are written (iterations - LAST_STEPS + 1, say).
        """
        self._folder = Path(folder)
        self._header = header
        self._record_from = record_from
        self._timeline: TextIO | None = None
        self._metrics = (self._folder / "metrics.jsonl").open("w") if header.rank == 0 else None

    def record(
        self,
        iteration: int,
        lm_loss: float,
        grad_norm: float | None,
        lr: float,
        ms: float,
        statistics: Statistics | None = None,
        *,
        tokens_per_second: float | None = None,
        seconds: float | None = None,
        header: TimelineHeader | Callable[[], TimelineHeader] | None = None,
    ) -> None:
        """Writes an iteration.

        Args:
            iteration: ascending, from 1.
            lm_loss: mean over the global batch.
            grad_norm: of all gradients, before clipping; None: not known.
            lr: learning rate.
            ms: wall time of the iteration, optimizer included.
            statistics: of this rank's step; None: its actions are not written.
            tokens_per_second: of the whole run.
            seconds: of the step on this rank; default: to the end of its last action.
            header: what the constructor's said, with figures (bytes) that are known only now, or what makes it; asked
                when the timeline begins.
        """
        if self._metrics is not None:
            line = {"iteration": iteration, "lm_loss": lm_loss, "grad_norm": grad_norm, "lr": lr, "ms": ms}
            line["tokens_per_second"] = tokens_per_second
            known = {key: value for key, value in line.items() if value is not None}
            _write(self._metrics, known)
        if statistics is not None and iteration >= self._record_from:
            self._append(iteration, statistics, seconds, header or self._header)

    def close(self) -> None:
        """Nothing is written afterwards."""
        for file in (self._metrics, self._timeline):
            if file is not None:
                file.close()
        self._metrics = self._timeline = None

    def _append(
        self,
        iteration: int,
        statistics: Statistics,
        seconds: float | None,
        header: TimelineHeader | Callable[[], TimelineHeader],
    ) -> None:
        if self._timeline is None:
            header = header() if callable(header) else header
            self._timeline = (self._folder / f"timeline_rank{header.rank}.jsonl").open("w")
            _write(self._timeline, header_line(header))
        _write(self._timeline, step_line(iteration, statistics, seconds))


def header_line(header: TimelineHeader) -> dict[str, object]:
    """The first line of a timeline."""
    line: dict[str, object] = {"format": "dualpipe-timeline", "version": 1}
    for key, value in vars(header).items():
        if value is not None:
            line[key] = list(value) if key == "stages" else value
    return line


def step_line(iteration: int, statistics: Statistics, seconds: float | None = None) -> dict[str, object]:
    """The line of a recorded step."""
    spans = [[*span] if span[3] else [*span[:3]] for span in statistics.spans]
    line: dict[str, object] = {
        "iteration": iteration,
        "began": statistics.began,
        "seconds": max((span[2] for span in spans), default=0.0) if seconds is None else seconds,
        "spans": spans,
    }
    for key in ("peak_activations", "memory"):
        if value := getattr(statistics, key, None):
            line[key] = value
    return line


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return value


def _write(file: TextIO, line: dict[str, object]) -> None:
    file.write(json.dumps({key: _finite(value) for key, value in line.items()}, separators=(",", ":")) + "\n")
    file.flush()
