"""A training script for deepseek-ai/DualPipe as its users write one: nothing in it is of this package alone.

    torchrun --nproc-per-node 2 reference_script.py

Trains under DualPipe and under DualPipeV, then infers. Ends with 1 where a loss, an output or a weight is not the whole
model's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dualpipe import DualPipe, DualPipeV, WeightGradStore, set_p2p_tensor_dtype, set_p2p_tensor_shapes
from dualpipe.utils import run_backward

WIDTH = 8
ROWS = 2  # Of a micro-batch.
CHUNKS = 8
STEPS = 3
RATE = 0.05
TOLERANCE = 1e-12


class Product(torch.autograd.Function):
    """rows @ weight; the weight's gradient waits where the schedule wants it to."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return rows @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        rows, weight = ctx.saved_tensors

        def finish() -> None:
            product = rows.T @ grad
            weight.grad = product if weight.grad is None else weight.grad + product

        if WeightGradStore.enabled:
            WeightGradStore.put(finish)
        else:
            finish()
        return grad @ weight.T, None


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, rows: Tensor) -> Tensor:
        return rows + torch.tanh(Product.apply(self.norm(rows), self.weight))

    @classmethod
    def overlapped_forward_backward(
        cls, module0, inputs0, criterion0, labels0, module1, loss1, outputs1, output_grads1
    ):  # type: ignore[no-untyped-def]
        """A backward and a forward, with nothing to hide."""
        if loss1 is None:
            run_backward(outputs1, output_grads1)
        else:
            loss1.backward()
            loss1.detach_()
        outputs0 = [module0(*inputs0)]
        return outputs0, None if criterion0 is None else criterion0(*outputs0, *labels0)


def criterion(output: Tensor, label: Tensor) -> Tensor:
    return (output - label).square().mean()


def make_stages(count: int) -> list[Stage]:
    torch.manual_seed(7)
    return [Stage() for _ in range(count)]


def make_batch(step: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(100 + step)
    return torch.randn(CHUNKS * ROWS, WIDTH), torch.randn(CHUNKS * ROWS, WIDTH)


class Whole:
    """The model in one process, trained beside the pipeline."""

    def __init__(self, count: int) -> None:
        self.stages = nn.Sequential(*make_stages(count))
        self._optimizer = torch.optim.SGD(self.stages.parameters(), lr=RATE)

    def train(self, x: Tensor, y: Tensor) -> Tensor:
        """Losses by micro-batch."""
        self._optimizer.zero_grad()
        losses = [criterion(self.stages(a), b) for a, b in zip(x.chunk(CHUNKS), y.chunk(CHUNKS))]
        torch.stack(losses).sum().backward()
        self._optimizer.step()
        return torch.stack(losses).detach()


class Share:
    """Which part of a batch enters on this rank, and of which part it computes the loss."""

    def __init__(self, face: type[nn.Module], rank: int, ranks: int) -> None:
        self._both = face is DualPipe
        self._end = {0: 0, ranks - 1: 1}.get(rank) if self._both else {0: 0}.get(rank)

    def inputs(self, values: Tensor) -> Tensor | None:
        if self._end is None:
            return None
        return values.chunk(2)[self._end] if self._both else values

    def labels(self, values: Tensor) -> Tensor | None:
        if self._end is None:
            return None
        return values.chunk(2)[1 - self._end] if self._both else values


def is_close(found: Tensor | None, wanted: Tensor | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return found.shape == wanted.shape and bool((found - wanted).abs().max() <= TOLERANCE)


def add_mirrors(modules: Sequence[nn.Module], group: dist.ProcessGroup) -> None:
    """Each mirror holds the gradients of its half of the micro-batches."""
    for module in modules:
        for parameter in module.parameters():
            dist.all_reduce(parameter.grad, group=group)


def train(face: type[nn.Module]) -> bool:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = ranks if face is DualPipe else 2 * ranks
    mirrors = [dist.new_group([r, ranks - 1 - r]) for r in range(ranks // 2)]
    whole, stages, share = Whole(count), make_stages(count), Share(face, rank, ranks)
    numbers = (rank, count - 1 - rank)
    model = face((stages[numbers[0]], stages[numbers[1]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    good = True
    for step in range(STEPS):
        x, y = make_batch(step)
        optimizer.zero_grad()
        loss, outputs = model.step(share.inputs(x), num_chunks=CHUNKS, criterion=criterion, labels=(share.labels(y),))
        if face is DualPipe:
            add_mirrors([stages[s] for s in sorted(numbers)], mirrors[min(rank, ranks - 1 - rank)])
        optimizer.step()
        good &= outputs is None and is_close(loss, share.labels(whole.train(x, y)))
    for s in numbers:
        pairs = zip(stages[s].parameters(), whole.stages[s].parameters(), strict=True)
        good &= all(is_close(found.detach(), wanted.detach()) for found, wanted in pairs)
    x, y = make_batch(STEPS)
    with torch.no_grad():
        loss, outputs = model.step(
            share.inputs(x), num_chunks=CHUNKS, criterion=criterion, labels=(share.labels(y),), return_outputs=True
        )
        wanted = whole.stages(x)
    return good and is_close(outputs, share.labels(wanted))


def main() -> int:
    dist.init_process_group("gloo")
    torch.set_default_dtype(torch.float64)
    set_p2p_tensor_shapes([(ROWS, WIDTH)])
    set_p2p_tensor_dtype(torch.float64)
    results = {face.__name__: train(face) for face in (DualPipe, DualPipeV)}
    for name, good in results.items():
        print(f"{name}, rank {dist.get_rank()}: {'passed' if good else 'FAILED'}")
    dist.destroy_process_group()
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
