"""Compute that costs an exact time and no processor, in autograd: what tests/bench/support/sleep.h is in C++."""

import ctypes
import time

import torch

PR_SET_TIMERSLACK = 29


class Sleeper:
    """Lengths of F, I, W and of an overlapped pair, in seconds; what sleeps overslept, in milliseconds."""

    def __init__(self, pace_ms=(0, 0, 0, 0)):
        self.forward, self.backward_input, self.backward_weight, self.overlapped = (ms / 1e3 for ms in pace_ms)
        self.awake = False      # Within a body that sleeps by itself.
        self.rehearses = False  # Nothing sleeps.
        self.overslept_ms = []
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)

    def spend(self, length):
        self.until(time.monotonic() + length, length)

    def until(self, end, length):
        if self.awake or self.rehearses or length == 0:
            return
        time.sleep(max(0.0, end - time.monotonic()))
        self.overslept_ms.append(1e3 * (time.monotonic() - end))


class OfInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, sleeper):
        ctx.sleeper = sleeper
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        ctx.sleeper.spend(ctx.sleeper.backward_input)
        return gradient.contiguous(), None  # Torch sends nothing else.


class OfWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, sleeper):
        ctx.sleeper = sleeper
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, gradient):
        ctx.sleeper.spend(ctx.sleeper.backward_weight)
        return gradient, None


class Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, weight):
        ctx.like = weight.detach()
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, torch.zeros_like(ctx.like)


class SleepingStage(torch.nn.Module):
    """A copy of the input, whose F, I and W sleep: any framework's split of the backward finds the two apart."""

    def __init__(self, sleeper):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.sleeper = sleeper

    def forward(self, tensor):
        end = time.monotonic() + self.sleeper.forward
        result = Join.apply(OfInput.apply(tensor, self.sleeper), OfWeight.apply(self.weight, self.sleeper))
        self.sleeper.until(end, self.sleeper.forward)
        return result
