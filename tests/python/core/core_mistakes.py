"""What ranks of these tests do wrongly, and what every rank is told of it. As in core_scenarios.py."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from core_parts import mean_square
from core_scenarios import mean_criterion
from torch import Tensor, nn

from dualpipe import DualPipe, DualPipeV, core
from dualpipe.core import Pipeline, Stage, module_stage


class SlowStage(Stage):
    """Takes its time in forward."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def forward(self, inputs: core.Tensors) -> core.Outputs:
        time.sleep(self.seconds)
        return inputs[0] * 1.0


def ticks_while_waiting(seconds: float) -> int:
    """How often another Python thread of rank 1 runs while its step waits for rank 0."""
    rank = dist.get_rank()
    pipeline = Pipeline("1f1b", dist.group.WORLD, [SlowStage(seconds if rank == 0 else 0.0)], num_microbatches=2)
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.wait(0.005):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    pipeline.evaluate([(torch.ones(2),)] * len(pipeline.input_micro_batches))
    stop.set()
    thread.join()
    return ticks[0]


class UserMistake(Exception):
    """With an attribute, which has to survive."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise UserMistake("in a backward", 3)


class FailingStage(Stage):
    """Raises where it is told to, at micro-batch 2."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.micro_batch = 0

    def begin_micro_batch(self, micro_batch: int) -> None:
        self.micro_batch = micro_batch

    def forward(self, inputs: core.Tensors) -> core.Outputs:
        if self.micro_batch == 2 and self.where == "forward":
            raise UserMistake("in a forward", 1)
        if self.micro_batch == 2 and self.where == "kind":
            return {"no": "tensor"}  # type: ignore[return-value]
        x = inputs[0] * 2.0
        return Failing.apply(x) if self.micro_batch == 2 and self.where == "backward" else x


def failing_step(where: str, told: bool) -> dict[str, Any]:
    """Rank 1 raises; what every rank sees of it, and of a second call."""
    rank = dist.get_rank()
    stage = FailingStage(where if rank == 1 else "nowhere")

    def criterion(outputs: core.Tensors, labels: core.Tensors) -> Tensor:
        if where == "criterion" and stage.micro_batch == 2:
            raise UserMistake("in a loss", 2)
        return outputs[0].mean()

    pipeline = Pipeline(
        "1f1b", dist.group.WORLD, [stage], num_microbatches=4, timeout=timedelta(seconds=30), notify_failures=told
    )
    given = [(torch.ones(2, requires_grad=True),) for _ in pipeline.input_micro_batches]
    labels = [(torch.ones(2),)] * len(pipeline.loss_micro_batches)
    began = time.monotonic()
    first = _caught(lambda: pipeline.step(given, labels, criterion))
    first["seconds"] = time.monotonic() - began
    first["again"] = _caught(lambda: pipeline.step(given, labels, criterion))["type"]
    time.sleep(1.0)  # Until others have been told; the store lives in rank 0.
    return first


def _caught(call: Any) -> dict[str, Any]:
    try:
        call()
    except Exception as error:
        functions = []
        trace = error.__traceback__
        while trace is not None:
            functions.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        return {
            "type": type(error).__name__,
            "message": str(error),
            "notes": list(getattr(error, "__notes__", ())),
            "code": getattr(error, "code", None),
            "functions": functions,
            "record": (getattr(error, "rank", None), getattr(error, "action", None), getattr(error, "cause", None)),
            "from": type(error.__cause__).__name__,
        }
    return {"type": "", "message": "", "notes": [], "code": None, "functions": [], "record": None, "from": ""}


def failing_store(path: str) -> dict[str, Any]:
    """A failure in code that the host ran as a part of the pipeline, told over a store of its own."""
    store = dist.FileStore(path, dist.get_world_size())
    pipeline = Pipeline(
        "1f1b",
        dist.group.WORLD,
        [SlowStage(0.0)],
        num_microbatches=2,
        failure_store=store,
        timeout=timedelta(seconds=30),
    )

    def mistake() -> None:
        raise UserMistake("the disk is full", 4)

    if dist.get_rank() == 1:
        return _caught(lambda: pipeline.guarded("saving", mistake))
    given = [(torch.ones(2),)] * len(pipeline.input_micro_batches)
    time.sleep(1.0)
    result = _caught(lambda: [pipeline.evaluate(given) for _ in range(2)])
    return result


def refusals() -> dict[str, str]:
    """Mistakes of the caller, and what they are told."""
    ranks = dist.get_world_size()
    told = {}
    for name, call in {
        "odd": lambda: Pipeline("dualpipe", dist.group.WORLD, [SlowStage(0.0)] * 2, num_microbatches=5),
        "name": lambda: Pipeline("dualpip", dist.group.WORLD, [SlowStage(0.0)], num_microbatches=4),
        "clip": lambda: core.optimizer_step(
            Pipeline("1f1b", dist.group.WORLD, [SlowStage(0.0)], num_microbatches=4),
            torch.optim.SGD([torch.zeros(1)], lr=0.1),
            -1.0,
        ),
        "halves": lambda: core.optimizer_step(
            Pipeline("dualpipe", dist.group.WORLD, [SlowStage(0.0)] * 2, num_microbatches=4, reduce_mirrors=False),
            torch.optim.SGD([torch.zeros(1)], lr=0.1),
        ),
        "reference halves": lambda: DualPipe((nn.Linear(1, 1), nn.Linear(1, 1))).register_optimizer(
            torch.optim.SGD([torch.zeros(1)], lr=0.1), 4
        ),
        "mapping": lambda: DualPipe((nn.Linear(1, 1), nn.Linear(1, 1)), rank_mapping=[0] * ranks),
        "modules": lambda: DualPipeV((nn.Linear(1, 1),)),
        "sums": lambda: DualPipe((nn.Linear(1, 1), nn.Linear(1, 1)), main_grads={"a": torch.ones(1)}),
        "norm": lambda: core.GradientNorm(
            Pipeline("dualpipe", dist.group.WORLD, [SlowStage(0.0)] * 2, num_microbatches=4, reduce_mirrors=False)
        ),
        "device": lambda: Pipeline("1f1b", dist.group.WORLD, [SlowStage(0.0)], num_microbatches=4, device="meta"),
    }.items():
        caught = _caught(call)
        told[name] = f"{caught['type']}: {caught['message']}"
    return told


def mistaken_steps() -> dict[str, dict[str, Any]]:
    """Rank 0 calls steps wrongly, the others rightly; what each of them is told, and how soon, by the mistake."""
    is_wrong = dist.get_rank() == 0
    told = {}
    for mistake, call in _MISTAKES.items():
        group = dist.new_group()  # A pipeline that failed takes its group with it.
        began = time.monotonic()
        told[mistake] = _caught(lambda call=call, group=group: call(group, is_wrong))
        told[mistake]["seconds"] = time.monotonic() - began
        dist.barrier()
    return told


def _call_core(group: Any, inputs: Any = None, labels: Any = None, criterion: Any = mean_criterion) -> None:
    stages = [module_stage(nn.Linear(2, 2)) for _ in range(2)]
    pipeline = Pipeline("dualpipev", group, stages, num_microbatches=4, timeout=timedelta(seconds=60))
    entries = [(torch.ones(1, 2),)] * len(pipeline.input_micro_batches)
    pipeline.step(entries if inputs is None else inputs, entries if labels is None else labels, criterion)


def _call_reference(group: Any, x: Any, criterion: Any = mean_square) -> None:
    model = DualPipeV((nn.Linear(2, 2), nn.Linear(2, 2)), process_group=group, timeout=timedelta(seconds=60))
    labels = torch.ones(4, 2) if dist.get_rank() == 0 else None
    model.step(x if dist.get_rank() == 0 else None, num_chunks=4, criterion=criterion, labels=(labels,))


_MISTAKES: dict[str, Any] = {  # By what is wrong; called with the group and whether this rank makes the mistake.
    "no sequence": lambda group, wrong: _call_core(group, inputs=7 if wrong else None),
    "entry": lambda group, wrong: _call_core(group, labels=["a"] * 4 if wrong else None),
    "no criterion": lambda group, wrong: _call_core(group, criterion=None if wrong else mean_criterion),
    "count": lambda group, wrong: _call_core(group, inputs=[(torch.ones(1, 2),)] if wrong else None),
    "reference criterion": lambda group, wrong: _call_reference(
        group, torch.ones(4, 2), None if wrong else mean_square
    ),
    "scatter": lambda group, wrong: _call_reference(group, "text" if wrong else torch.ones(4, 2)),
}
