"""metrics.jsonl and timelines of a training script, as `dualpipe ab` reads them, for built-in schedules too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from dualpipe.core import make_gloo_threads_yield
from dualpipe.run_files import LAST_STEPS, RunFiles, TimelineHeader, asked_folder, state_bytes, tokens_per_second

from .builtin import BuiltinForwardBackward
from .forward_backward import ForwardBackward
from .gradients import gradient_of


class RunLog:
    """Writes one rank's files of a run.

    Args: `output` is the folder, which DUALPIPE_OUTPUT replaces and which is made where it is missing;
    `forward_backward` what get_forward_backward_func returned; `train_iters` how many iterations the run has;
    `optimizer` Megatron's or torch's, for the bytes that it holds, which are not written without it. Timelines are
    written where DUALPIPE_OUTPUT is set, of the last LAST_STEPS iterations. Gloo's threads yield from then on if ranks
    outnumber cores (`dualpipe.core.make_gloo_threads_yield`), so make groups first.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        forward_backward: ForwardBackward | BuiltinForwardBackward,
        train_iters: int,
        optimizer: Any = None,
    ) -> None:
        self._folder = asked_folder(output) or Path(output)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._function = forward_backward
        self._optimizer = optimizer
        recorded = LAST_STEPS if os.environ.get("DUALPIPE_OUTPUT") else 0
        self._record_from = max(1, train_iters - recorded + 1)
        if isinstance(forward_backward, BuiltinForwardBackward):
            forward_backward.records = recorded > 0
        make_gloo_threads_yield()  # Whatever the schedule: all are to have the same links.
        self._files: RunFiles | None = None

    def record(self, *, iteration: int, lm_loss: float, grad_norm: float | None, lr: float, ms: float) -> None:
        """Writes an iteration, after its step; rank 0 also prints it. Loss and norm are those of the global batch."""
        if self._files is None:
            self._files = RunFiles(self._folder, self._header(), record_from=self._record_from)
        tokens = self._function.tokens * parallel_state.get_data_parallel_world_size()
        rate = tokens_per_second(tokens, ms)
        self._files.record(
            iteration,
            lm_loss,
            grad_norm,
            lr,
            ms,
            self._function.statistics(),
            tokens_per_second=rate,
            header=self._header,
        )
        if dist.get_rank() == 0:
            print(f"iteration {iteration} | lm loss {lm_loss:.6f} | {ms:.1f} ms", flush=True)

    def _header(self) -> TimelineHeader:
        stages, num_stages = self._function.stages()
        parameters = [parameter for chunk in self._function.chunks for parameter in chunk.parameters()]
        gradients = [gradient_of(parameter) for parameter in parameters]
        return TimelineHeader(
            schedule=self._function.schedule,
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            pipeline_rank=parallel_state.get_pipeline_model_parallel_rank(),
            pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
            num_microbatches=self._function.num_microbatches,
            num_stages=num_stages,
            stages=stages,
            parameter_bytes=sum(parameter.nbytes for parameter in parameters),
            gradient_bytes=sum(gradient.nbytes for gradient in gradients if gradient is not None),
            optimizer_bytes=None if self._optimizer is None else optimizer_bytes(self._optimizer, parameters),
        )


def optimizer_bytes(optimizer: Any, parameters: Sequence[torch.Tensor]) -> int:
    """What an optimizer, Megatron's or torch's, holds of its own on this rank: its state, and copies of `parameters`
    that it updates in their place. Its parts of the parameters themselves (fp32 shards) are the model's.
    """
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    inner = [held for held in (getattr(part, "optimizer", part) for part in chained) if held is not None]
    storages = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    updated = {id(p): p for held in inner for group in held.param_groups for p in group["params"]}.values()
    copies = sum(p.nbytes for p in updated if p.untyped_storage().data_ptr() not in storages)
    return state_bytes(*inner) + copies
