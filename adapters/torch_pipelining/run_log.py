"""What a training loop over torch's schedules or ours writes, so that ``dualpipe ab`` can compare its runs.

    log = RunLog(schedule, name, steps, folder, tokens, optimizer)
    for step in range(1, steps + 1):
        ...
        log.record(iteration=step, lm_loss=loss, grad_norm=norm, lr=lr, ms=ms)
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist

from dualpipe.core import make_gloo_threads_yield
from dualpipe.run_files import LAST_STEPS, RunFiles, TimelineHeader, asked_folder, state_bytes, tokens_per_second

from .norm import stages_of_schedule
from .schedule import EngineSchedule
from .stage_timer import StageTimer


class RunLog:
    """Files of this rank in ``DUALPIPE_OUTPUT``, or in ``folder``; writes nothing where neither is given.

    Where it writes, Gloo's threads yield from then on if ranks outnumber cores (``core.make_gloo_threads_yield``), so
    make groups first.

    Args:
        schedule: Ours, or one of torch's.
        name: What the schedule was asked for by (``DUALPIPE_SCHEDULE``).
        steps: Of the whole run: the timeline has the last five. Without it all are recorded.
        folder: Where there is no ``DUALPIPE_OUTPUT``. Must exist.
        tokens: Of a step of the whole run, for tokens per second; without it none are written.
        optimizer: Torch's, or several (torchtitan's container), for the bytes of their state; without it none are
            written.
    """

    def __init__(self, schedule: Any, name: str, steps: int | None = None,
                 folder: str | os.PathLike[str] | None = None, tokens: int | None = None,
                 optimizer: Any = None) -> None:
        self._schedule = schedule
        self._tokens = tokens
        self._optimizer = optimizer
        self._files: RunFiles | None = None
        self._timer: StageTimer | None = None
        where = asked_folder(folder)
        if where is None:
            return
        first = 1 if steps is None else steps - LAST_STEPS + 1
        self._static = _header(schedule, name)
        self._files = RunFiles(where, self._static, record_from=first)
        make_gloo_threads_yield()  # Whatever the schedule: all are to have the same links.
        if not isinstance(schedule, EngineSchedule):
            self._timer = StageTimer(stages_of_schedule(schedule))
            schedule.step = _timed_step(schedule.step, self._timer)

    def record(self, iteration: int, lm_loss: float, grad_norm: float | None, lr: float, ms: float) -> None:
        """One step, after the optimizer's: mean loss of the global batch, norm before clipping, ms of the iteration."""
        if self._files is not None:
            self._files.record(iteration, lm_loss, grad_norm, lr, ms, self._statistics(),
                               tokens_per_second=tokens_per_second(self._tokens, ms), header=self._header)

    def _header(self) -> TimelineHeader:
        """With what is known once the optimizer has made a step."""
        if self._optimizer is None:
            return self._static
        optimizers = self._optimizer if isinstance(self._optimizer, Iterable) else [self._optimizer]
        return dataclasses.replace(self._static, optimizer_bytes=state_bytes(*optimizers))

    def _statistics(self) -> Any:
        return self._schedule.statistics if self._timer is None else self._timer.statistics


def _timed_step(step: Any, timer: StageTimer) -> Any:
    def timed(*args: Any, **options: Any) -> Any:
        timer.begin_step()
        return step(*args, **options)

    return timed


def _header(schedule: Any, name: str) -> TimelineHeader:
    stages = stages_of_schedule(schedule)
    parameters = {id(p): p for stage in stages for p in stage.submod.parameters()}.values()
    held = sum(_local(p).nbytes for p in parameters)
    return TimelineHeader(
        schedule=name, rank=dist.get_rank(), world_size=dist.get_world_size(), pipeline_rank=stages[0].group_rank,
        pipeline_model_parallel_size=stages[0].group_size, num_microbatches=schedule._n_microbatches,
        num_stages=stages[0].num_stages, stages=sorted(stage.stage_index for stage in stages), parameter_bytes=held,
        gradient_bytes=held)


def _local(parameter: Any) -> Any:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter
