"""What ranks do wrongly, and what they are told. As in pipelining_scenarios.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

from dualpipe.pipelining import (
    ScheduleDualPipe,
    ScheduleDualPipeV,
    ScheduleFromFile,
    ScheduleZB1P,
    clip_grad_norm_,
    get_schedule_class,
    gradient_norm,
)
from pipelining_parts import batch_of, loss_of
from pipelining_scenarios import CPU, by_ddp, failure_of, feed, message_of, stages_for


def refusals(folder: str) -> dict[str, str]:
    """Before any message, on every rank alike."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = 2 * size + 2
    made = stages_for("dualpipe", count, torch.float32)
    v = stages_for("dualpipev", count, torch.float32)
    own = [stage for stage in made if stage.stage_index == rank]
    lazy = PipelineStage(own[0].submod, rank, size, CPU, dw_builder=lambda: lambda: None)
    path = Path(folder) / f"short_{rank}.csv"
    path.write_text("0F0,0B0\n")
    ours = ScheduleDualPipe(made, 2 * size, loss_fn=loss_of)
    halves = ScheduleDualPipe(made, 2 * size, loss_fn=loss_of, reduce_mirrors=False)
    other = Path(folder) / f"other_{rank}.csv"
    ScheduleDualPipe(stages_for("dualpipe", count, torch.float32), 4 * size)._dump_csv(str(other))
    lacking = PipelineStage(own[0].submod, rank, size, CPU)
    del lacking.dw_builder
    results = {
        "stages": message_of(lambda: ScheduleDualPipe(v, 2 * size)),
        "one stage": message_of(lambda: ScheduleDualPipe(own, 2 * size)),
        "no stages": message_of(lambda: ScheduleDualPipe([], 2 * size)),
        "micro-batches": message_of(lambda: ScheduleDualPipe(made, 2 * size - 2)),
        "odd": message_of(lambda: ScheduleDualPipe(made, 2 * size + 1)),
        "v micro-batches": message_of(lambda: ScheduleDualPipeV(v, 2 * size - 1)),
        "dw_builder": message_of(lambda: ScheduleZB1P(lazy, 2 * size)),
        "autograd": message_of(lambda: ScheduleZB1P(own, 2 * size, backward_requires_autograd=False)),
        "name": message_of(lambda: get_schedule_class("DualPipeX")),
        "rows": message_of(lambda: ours._load_csv(str(path))).replace(str(path), "FILE"),
        "file micro-batches": message_of(lambda: ours._load_csv(str(other))).replace(str(other), "FILE"),
        "format": message_of(lambda: ours._dump_csv("x.csv", format="compute_comms")),
        "file stages": message_of(lambda: ScheduleFromFile(v, 4 * size, other)),
        "norm of halves": message_of(lambda: gradient_norm(halves)),
        "clip of halves": message_of(lambda: clip_grad_norm_(halves, 1.0)),
        "seam": message_of(lambda: ScheduleZB1P(lacking, 2 * size), AttributeError),
    }
    return results


def mistaken_steps() -> dict[str, tuple[str, str, list[str], float]]:
    """Rank 0 calls steps wrongly, the others rightly: type, message, notes, seconds on every rank, by the mistake."""
    size, is_wrong = dist.get_world_size(), dist.get_rank() == 0
    x = torch.zeros(2 * size, 5, dtype=torch.long)

    def without_graph(schedule: Any) -> None:
        with torch.no_grad():
            schedule.step(x, target=x)

    def replaced(schedule: Any) -> None:
        schedule.pipeline  # noqa: B018  Connects, as the other ranks do in their step.
        part = next(iter(schedule._stages[0].submod.values()))
        part.weight = nn.Parameter(part.weight.detach().clone())
        schedule.step(x, target=x)

    calls: dict[str, Callable[[Any], object]] = {
        "no_grad": without_graph,
        "target": lambda schedule: schedule.step(x),
        "mixed": lambda schedule: schedule.step(x, arg_mbs=[(x,)]),
        "count": lambda schedule: schedule.step(arg_mbs=[(x,)], target_mbs=[x]),
        "kind": lambda schedule: schedule.step(arg_mbs=(x,), target_mbs=[x]),
        "eval": lambda schedule: schedule.eval(x),
        "replaced": replaced,
    }
    told = {}
    for name, call in calls.items():
        stages = stages_for("dualpipe", 2 * size + 2, torch.float32, dist.new_group())
        schedule = ScheduleDualPipe(stages, 2 * size, loss_fn=loss_of, timeout=timedelta(seconds=60))
        began = time.monotonic()
        try:
            run = "eval" if name == "eval" else "step"
            call(schedule) if is_wrong else feed(schedule, *batch_of(4 * size), run=run)
        except Exception as error:
            notes = list(getattr(error, "__notes__", []))
            told[name] = (type(error).__name__, str(error), notes, time.monotonic() - began)
        dist.barrier()
    return told


def refused_wrappers() -> dict[str, str]:
    """DDP that cannot be combined; ranks find out before they connect."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    solo = [dist.new_group([r]) for r in range(dist.get_world_size())][dist.get_rank()]
    count = 6

    def first_step(wrap: Callable[[int, nn.Module], nn.Module], **options: Any) -> str:
        stages = stages_for("dualpipe", count, torch.float32)
        for i, stage in enumerate(stages):
            stage.submod = wrap(i, stage.submod)
        schedule = ScheduleDualPipe(stages, 4, loss_fn=loss_of, **options)
        return message_of(lambda: feed(schedule, *batch_of(8)))

    def hooked(module: nn.Module) -> nn.Module:
        ddp = by_ddp(mesh)(module)
        ddp.register_comm_hook(None, lambda state, bucket: bucket)
        return ddp

    def cast_by_ddp(module: nn.Module) -> nn.Module:
        ddp = by_ddp(mesh)(module)
        ddp.mixed_precision = _MixedPrecision(param_dtype=torch.bfloat16)  # As an argument it wants an accelerator.
        return ddp

    return {
        "some": first_step(lambda i, m: by_ddp(mesh)(m) if i == 0 else m),
        "other ranks": first_step(
            lambda i, m: DistributedDataParallel(m, process_group=mesh.get_group() if i else solo)),
        "hook": first_step(lambda i, m: hooked(m)),
        "mixed precision": first_step(lambda i, m: cast_by_ddp(m)),
        "halves": first_step(lambda i, m: by_ddp(mesh)(m), reduce_mirrors=False),
        "one rank": first_step(
            lambda i, m: DistributedDataParallel(m, process_group=solo) if i == 0 and dist.get_rank() == 1 else m),
    }


class Returns(nn.Module):
    def __init__(self, value: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.weight, self.value = nn.Parameter(torch.ones(2)), value

    def forward(self, x: Tensor) -> Any:
        return self.value(x * self.weight)


def failing(value: str) -> tuple[str, str, list[str]]:
    """Stage 0 returns or raises what it must not: type, message and notes of what comes out of this rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("pp", "tp"))["tp"]
    values: dict[str, Callable[[Tensor], Any]] = {
        "text": lambda y: "text", "raise": lambda y: [][y.numel()],
        "dtensor": lambda y: DTensor.from_local(y, mesh, [Replicate()])}
    stage = PipelineStage(Returns(values[value] if rank == 0 else lambda y: y), rank, size, CPU)
    schedule = ScheduleZB1P(stage, size, loss_fn=lambda y, t: y.sum())
    x = torch.ones(size, 2)
    return failure_of(lambda: schedule.step(*([x] if rank == 0 else []), target=x if rank == size - 1 else None))
