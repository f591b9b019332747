"""The Python twin of this example: pairs of DualPipeV in sequence, and by the model's own hook.

Alone, or under torchrun --nproc-per-node 2. Ends with 1 where gradients differ, or where the hook does not wait less.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dualpipe import DualPipeV
from dualpipe.utils import run_backward

WIDTH = 128
HIDDEN = 4 * WIDTH
ROWS = 192  # Of a micro-batch.
STEPS = 3  # The first one warms up.
TOLERANCE = 1e-10
PER_EXCHANGE_S = 0.003


class Link:
    """A slow link between experts: one exchange at a time, each takes as long, and none costs compute."""

    def __init__(self) -> None:
        self.exchanges = 0
        self.waited = 0.0
        self.meanwhile: Callable[[], None] | None = None  # What a backward does while its exchange is under way.
        self._free_at = 0.0

    def post(self) -> float:
        """Starts an exchange; says when it will be there."""
        self.exchanges += 1
        self._free_at = max(self._free_at, time.monotonic()) + PER_EXCHANGE_S
        return self._free_at

    def wait(self, arrival: float) -> None:
        left = arrival - time.monotonic()
        if left > 0:
            time.sleep(left)
            self.waited += left


class Rows(torch.autograd.Function):
    """Rows that moved over the link: the exchange was posted before, the way back posts one of its own."""

    @staticmethod
    def forward(ctx, rows: Tensor, shift: int, link: Link, arrival: float) -> Tensor:  # type: ignore[no-untyped-def]
        link.wait(arrival)
        ctx.shift, ctx.link = shift, link
        return rows.roll(shift, 0)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        arrival = ctx.link.post()
        if ctx.link.meanwhile is not None:
            ctx.link.meanwhile()
        ctx.link.wait(arrival)
        return gradient.roll(-ctx.shift, 0), None, None, None


class Layer(nn.Module):
    """Attention, dispatch, MLP, combine; the two computes are plain MLPs that take about as long as each other."""

    def __init__(self, number: int, link: Link) -> None:
        super().__init__()
        self.link = link
        generator = torch.Generator().manual_seed(1000 + number)
        weights = [torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.05
                   for shape in ((HIDDEN, WIDTH), (WIDTH, HIDDEN)) * 2]
        self.weights = nn.ParameterList(weights)

    def attend(self, x: Tensor) -> Tensor:
        return x + F.linear(F.gelu(F.linear(x, self.weights[0])), self.weights[1])

    def feed_forward(self, rows: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(rows, self.weights[2])), self.weights[3])

    def forward(self, x: Tensor) -> Tensor:
        steps = ForwardInSteps(self, x)
        return steps.finish()


class ForwardInSteps:
    """A layer's forward in three steps, each of which ends where an exchange is posted."""

    def __init__(self, layer: Layer, x: Tensor) -> None:
        self.layer, self.values = layer, x
        self.done = 0

    def next(self) -> None:
        link = self.layer.link
        with torch.enable_grad():  # A backward may be under way, which has none.
            if self.done == 0:
                self.kept = self.values = self.layer.attend(self.values)
                self.arrival = link.post()
            elif self.done == 1:
                self.values = self.layer.feed_forward(Rows.apply(self.values, 1, link, self.arrival))
                self.arrival = link.post()
            elif self.done == 2:
                self.values = self.kept + Rows.apply(self.values, -1, link, self.arrival)
        self.done += 1

    def finish(self) -> Tensor:
        while self.done < 3:
            self.next()
        return self.values


class OverlappingLayer(Layer):
    """The same with a hook: whenever the backward has posted an exchange and would wait, the forward goes on."""

    @classmethod
    def overlapped_forward_backward(  # type: ignore[no-untyped-def]
        cls, module0, inputs0, criterion0, labels0, module1, loss1, outputs1, output_grads1
    ):
        steps = ForwardInSteps(module0, *inputs0)
        module1.link.meanwhile = steps.next
        try:
            if loss1 is None:
                run_backward(outputs1, output_grads1)
            else:
                loss1.backward()
        finally:
            module1.link.meanwhile = None
        outputs0 = [steps.finish()]
        return outputs0, None if criterion0 is None else criterion0(*outputs0, *labels0)


@dataclass
class Outcome:
    """Of the faster step, and the gradients of all."""

    seconds: float
    waited: float
    exchanges: int
    summary: str
    gradients: list[Tensor]


def train(kind: type[Layer]) -> Outcome:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    link, chunks = Link(), 8 * ranks
    model = DualPipeV((kind(rank, link), kind(2 * ranks - 1 - rank, link)))
    torch.manual_seed(1)
    inputs, labels = (torch.randn(chunks * ROWS, WIDTH, dtype=torch.float64) for _ in range(2))
    steps = []
    for _ in range(STEPS):
        began, waited, exchanges = time.monotonic(), link.waited, link.exchanges
        model.step(inputs if rank == 0 else None, num_chunks=chunks, criterion=F.mse_loss,
                   labels=(labels if rank == 0 else None,))
        steps.append((time.monotonic() - began, link.waited - waited, link.exchanges - exchanges))
    summary = model.pipeline(chunks).statistics.overlap_summary
    return Outcome(*min(steps[1:]), summary, [p.grad for p in model.parameters()])


def main() -> int:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sequence, hook = train(Layer), train(OverlappingLayer)
    if dist.get_rank() == 0:
        for name, outcome in (("in sequence", sequence), ("by hook", hook)):
            print(f"{name:<12} {1e3 * outcome.seconds:5.0f} ms a step, {1e3 * outcome.waited:4.0f} ms of it waiting "
                  f"for {outcome.exchanges} exchanges; {outcome.summary}")
    pairs = zip(hook.gradients, sequence.gradients, strict=True)
    worst = max(((ours - theirs).norm() / theirs.norm()).item() for ours, theirs in pairs)
    passed = worst <= TOLERANCE and hook.waited < sequence.waited
    print(f"rank {dist.get_rank()}: the hook takes {hook.seconds / sequence.seconds:.2f}x of the sequence's time; "
          f"every gradient within {worst:.1e} of the sequence's: {'passed' if passed else 'FAILED'}")
    dist.barrier()
    dist.destroy_process_group()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
