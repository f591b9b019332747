"""Models and data that the scenarios of these tests share. The same seed gives the same ones on every rank."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from dualpipe.utils import WeightGradStore, run_backward

WIDTH = 6
ROWS = 3


class Block(nn.Module):
    """A residual block with parameters of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class DeferredProduct(torch.autograd.Function):
    """x @ w.T whose backward hands its weight gradient to the store where that wants it."""

    puts = 0  # Closures handed over in this process.

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        x, w = ctx.saved_tensors
        if w.grad is None:
            w.grad = torch.zeros_like(w)

        def add_weight_gradient() -> None:
            w.grad += grad.flatten(0, -2).T @ x.flatten(0, -2)

        if WeightGradStore.enabled:
            WeightGradStore.put(add_weight_gradient)
            DeferredProduct.puts += 1
        else:
            add_weight_gradient()
        return grad @ w, None


class DeferredLinear(nn.Module):
    """One weight, no bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return DeferredProduct.apply(x, self.weight)


class PlainReferenceBlock(nn.Module):
    """As users of the reference write their stages."""

    def __init__(self) -> None:
        super().__init__()
        self.up = DeferredLinear(WIDTH, 2 * WIDTH)
        self.down = DeferredLinear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class ReferenceBlock(PlainReferenceBlock):
    """The same with a hook that runs both parts one after the other."""

    pairs = 0  # Overlapped pairs that ran in this process.

    @classmethod
    def overlapped_forward_backward(
        cls, module0, inputs0, criterion0, labels0, module1, loss1, outputs1, output_grads1
    ):
        cls.pairs += 1
        outputs0 = [module0(*inputs0)]
        loss0 = None if criterion0 is None else criterion0(*outputs0, *labels0)
        if loss1 is None:
            run_backward(outputs1, output_grads1)
        else:
            loss1.backward()
        return outputs0, loss0


def make_stages(kind: type[nn.Module], count: int, dtype: torch.dtype) -> list[nn.Module]:
    """All stages of a model."""
    torch.manual_seed(20)
    return [kind().to(dtype) for _ in range(count)]


def make_data(micro_batches: int, dtype: torch.dtype, rows: int = ROWS) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and labels, one entry per micro-batch."""
    torch.manual_seed(21)
    shape = (rows, 2, WIDTH)
    inputs = [torch.randn(shape, dtype=dtype) for _ in range(micro_batches)]
    return inputs, [torch.randn(shape, dtype=dtype) for _ in range(micro_batches)]


def mean_square(output: Tensor, label: Tensor) -> Tensor:
    return F.mse_loss(output, label)
