"""Megatron's own schedules behind the same face, with the times of their actions for comparisons.

The built-in functions start and stop `config.timers("forward-compute")` and `("backward-compute")` around every action;
`ActionTimers` listens there. On the CPU those times are those of the actions; on CUDA they would be those of launches,
so nothing is recorded there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import schedules
from megatron.core.utils import get_model_config

from dualpipe.run_files import HostStatistics

_KINDS = {"forward-compute": "F", "backward-compute": "B"}


class _Action:
    """A timer that notes begin and end of one kind of action."""

    def __init__(self, kind: str, log: list[tuple[str, float, float]], inner: Any) -> None:
        self._kind = kind
        self._log = log
        self._inner = inner
        self._begin = 0.0

    def start(self, barrier: bool = False) -> None:
        if self._inner is not None:
            self._inner.start(barrier)
        self._begin = time.time()

    def stop(self, barrier: bool = False) -> None:
        self._log.append((self._kind, self._begin, time.time()))
        if self._inner is not None:
            self._inner.stop(barrier)


class _Silent:
    """A timer that nobody reads."""

    def start(self, barrier: bool = False) -> None: ...

    def stop(self, barrier: bool = False) -> None: ...


class ActionTimers:
    """Stands in for `config.timers` during a step; what else is timed goes to the host's own timers."""

    def __init__(self, host: Any = None) -> None:
        self._host = host
        self._actions: dict[str, _Action] = {}
        self.log: list[tuple[str, float, float]] = []  # Kind, begin and end in Unix time, in the order of running.

    def __call__(self, name: str, log_level: int | None = None) -> Any:
        inner = None if self._host is None else self._host(name, log_level)
        if name not in _KINDS:
            return inner or _Silent()
        return self._actions.setdefault(name, _Action(_KINDS[name], self.log, inner))


def action_order(num_microbatches: int, num_chunks: int, group_size: int) -> dict[str, list[tuple[int, int]]]:
    """(chunk, micro-batch) of a rank's forwards and of its backwards, in the order in which Megatron runs them."""
    if num_chunks == 1:
        order = [(0, k) for k in range(num_microbatches)]
        return {"F": order, "B": order}
    table = schedules.get_schedule_table(num_microbatches, num_chunks, group_size)
    forward = [(chunk, k) for k, chunk in table]
    return {"F": forward, "B": [(num_chunks - 1 - chunk, k) for chunk, k in forward]}


class BuiltinForwardBackward:
    """Calls Megatron's function for the schedule; remembers when its actions ran, if `records` is set."""

    def __init__(self, schedule: str, function: Callable[..., list[Any]]) -> None:
        self.schedule = schedule
        self.records = False
        self.num_microbatches = 0  # Of the last call, as its tokens (of one replica) and its model.
        self.tokens = 0
        self.chunks: list[torch.nn.Module] = []
        self._function = function
        self._statistics: HostStatistics | None = None

    def __call__(self, **arguments: Any) -> list[Any]:
        model = arguments["model"]
        self.chunks = list(model) if isinstance(model, (list, tuple)) else [model]
        self.num_microbatches = arguments["num_microbatches"]
        self.tokens = self.num_microbatches * arguments["micro_batch_size"] * arguments["seq_length"]
        if not self.records or next(self.chunks[0].parameters()).is_cuda:
            return self._function(**arguments)
        config = get_model_config(self.chunks[0])
        host, began = config.timers, time.time()
        config.timers = timers = ActionTimers(host)
        try:
            return self._function(**arguments)
        finally:
            config.timers = host
            self._statistics = self._spans(timers.log, began, config)

    def stages(self) -> tuple[list[int], int]:
        """Of this rank, and how many there are."""
        rank, size = self._place()
        return [chunk * size + rank for chunk in range(len(self.chunks))], len(self.chunks) * size

    def statistics(self) -> HostStatistics | None:
        """Of the last call; None where nothing was recorded."""
        return self._statistics

    @staticmethod
    def _place() -> tuple[int, int]:
        return (
            parallel_state.get_pipeline_model_parallel_rank(),
            parallel_state.get_pipeline_model_parallel_world_size(),
        )

    def _spans(self, log: list[tuple[str, float, float]], began: float, config: Any) -> HostStatistics:
        rank, size = self._place()
        group = config.microbatch_group_size_per_vp_stage or size
        order = action_order(self.num_microbatches, len(self.chunks), group)
        left = {kind: iter(cells) for kind, cells in order.items()}
        spans = []
        for kind, begin, end in log:
            chunk, micro_batch = next(left[kind])
            spans.append((f"{chunk * size + rank}{kind}{micro_batch}", begin - began, end - began, 0.0))
        return HostStatistics(began, spans)
