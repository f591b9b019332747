"""Gradients that a model held already when a step began, set aside until the step's own are final.

Mirrors (dualpipe), tied embeddings and replicas exchange what they hold and add it up. What an earlier call left there
has been added up before, and must not be counted again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .gradients import main_grad_of, router_counts

_Taken = list[tuple[torch.Tensor, torch.Tensor]]  # Buffer, and what it held.


@torch.no_grad()
def _take(buffers: Sequence[torch.Tensor]) -> _Taken:
    """Of those that hold anything; they are zeros now. Waits for the device once."""
    if not buffers:
        return []
    flags = torch.stack([buffer.any() for buffer in buffers]).tolist()
    taken = [(buffer, buffer.clone()) for buffer, used in zip(buffers, flags, strict=True) if used]
    for buffer, _ in taken:
        buffer.zero_()
    return taken


def _put_back(taken: _Taken) -> None:
    for buffer, value in taken:
        buffer.add_(value)


class Earlier:
    """Takes away gradients and what routers counted when it is made; both are put back when they are due."""

    def __init__(self, chunks: Sequence[torch.nn.Module]) -> None:
        parameters = [parameter for chunk in chunks for parameter in chunk.parameters() if parameter.requires_grad]
        main_grads = [grad for parameter in parameters if (grad := main_grad_of(parameter)) is not None]
        self._main_grads = _take(main_grads)
        self._counts = _take([count for chunk in chunks for count in router_counts(chunk)])
        plain = [p for p in parameters if main_grad_of(p) is None and p.grad is not None]
        self._gradients = [(parameter, parameter.grad) for parameter in plain]
        for parameter in plain:
            parameter.grad = None

    @property
    def in_buffers(self) -> bool:
        """Whether buffers of DistributedDataParallel held gradients."""
        return bool(self._main_grads)

    @torch.no_grad()
    def add_counts(self) -> None:
        """Behind the sums over mirrors, before Megatron's finalisation uses them up."""
        _put_back(self._counts)

    @torch.no_grad()
    def add_gradients(self) -> None:
        """When the step's own are final."""
        _put_back(self._main_grads)
        for parameter, earlier in self._gradients:
            parameter.grad = earlier if parameter.grad is None else earlier.add_(parameter.grad)
