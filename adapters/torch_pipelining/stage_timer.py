"""When torch's own schedules compute what, for the timeline of a run that is compared with ours.

Torch's schedules compute through three methods of a stage. They are wrapped on the stage objects alone, while the timer
is in force; an action begins when its inputs are there, as torch waits for messages before it calls them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.pipelining.stage import _PipelineStageBase

from dualpipe.run_files import HostStatistics


class StageTimer:
    """Records the actions of torch's schedules on this rank's stages, step by step."""

    def __init__(self, stages: Sequence[_PipelineStageBase]) -> None:
        self._stages = list(stages)
        self._start = 0.0
        self._statistics = HostStatistics(time.time())
        for stage in self._stages:
            stage.forward_one_chunk = self._timed(stage, stage.forward_one_chunk, lambda options: "F")
            stage.backward_one_chunk = self._timed(
                stage, stage.backward_one_chunk, lambda options: "B" if options.get("full_backward", True) else "I")
            stage.backward_weight_one_chunk = self._timed(stage, stage.backward_weight_one_chunk, lambda options: "W")

    def begin_step(self) -> None:
        self._start = time.perf_counter()
        self._statistics = HostStatistics(time.time())

    @property
    def statistics(self) -> HostStatistics:
        """What ran since ``begin_step()``."""
        return self._statistics

    def _timed(self, stage: _PipelineStageBase, method: Callable[..., Any],
               kind_of: Callable[[dict[str, Any]], str]) -> Callable[..., Any]:
        def timed(micro_batch: int, *args: Any, **options: Any) -> Any:
            begin = time.perf_counter() - self._start
            result = method(micro_batch, *args, **options)
            cell = f"{stage.stage_index}{kind_of(options)}{micro_batch}"
            self._statistics.spans.append((cell, begin, time.perf_counter() - self._start, 0.0))
            return result

        return timed
