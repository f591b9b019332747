"""What layers and overlapped pairs of the reference's users call: the weight-gradient store and `run_backward`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd import Variable

from dualpipe import _core


class _Store(type):
    """Gives the class its attribute `enabled`, which asks the engine."""

    _own_enabled = False

    @property
    def enabled(cls) -> bool:
        """True where weight gradients are to be put off: in a backward that the engine splits, or where it was set."""
        return cls._own_enabled or _core.is_splitting()

    @enabled.setter
    def enabled(cls, value: bool) -> None:
        cls._own_enabled = bool(value)


class WeightGradStore(metaclass=_Store):
    """Weight-gradient work that a backward puts off, as the reference has it.

    In a backward that the engine splits, `enabled` is true and put() gives the closure to the engine that runs the
    backward, which calls it in the scheduled W. A layer asks and puts in its backward:

        if WeightGradStore.enabled:
            WeightGradStore.put(compute_weight_gradient)
        else:
            compute_weight_gradient()

    Outside an engine, a backward of one's own may set `enabled`, and run what was put with flush() and pop(): a queue
    of the process, one group per flush(), first in, first out.
    """

    _cache: list[Callable[[], object]] = []
    _groups: deque[list[Callable[[], object]]] = deque()

    @classmethod
    def put(cls, func: Callable[[], object]) -> None:
        """Keeps `func`, which takes no arguments, together with the tensors that it refers to."""
        if not _core.put_weight_gradient(func, _bytes_of(func)):
            cls._cache.append(func)

    @classmethod
    def flush(cls) -> None:
        """Closes a group of what was put outside an engine."""
        cls._groups.append(cls._cache)
        cls._cache = []

    @classmethod
    def pop(cls) -> None:
        """Runs the oldest closed group. Raises AssertionError where there is none."""
        assert cls._groups, "WeightGradStore.pop() wants a group that flush() closed, and there is none"
        for func in cls._groups.popleft():
            func()

    @classmethod
    def clear(cls) -> None:
        """Drops what was put outside an engine."""
        cls._cache = []
        cls._groups.clear()


def _bytes_of(func: Callable[[], object]) -> int:
    """What a closure keeps alive, as far as its cells and its bound arguments tell."""
    kept: list[Any] = []
    if isinstance(func, partial):
        kept = [*func.args, *func.keywords.values()]
    else:
        for cell in getattr(func, "__closure__", None) or ():
            try:
                kept.append(cell.cell_contents)
            except ValueError:  # An empty cell.
                continue
    return sum(value.nbytes for value in kept if isinstance(value, torch.Tensor))


def run_backward(tensors: Sequence[torch.Tensor], grad_tensors: Sequence[torch.Tensor | None]) -> None:
    """Backward of several outputs at once, into `.grad` of what they were computed from, freeing the graph.

    As torch.autograd.backward, but outputs that need no gradient are let pass.
    """
    pairs = [(t, g) for t, g in zip(tensors, grad_tensors, strict=True) if t.requires_grad]
    if not pairs:
        return
    Variable._execution_engine.run_backward(
        tuple(t for t, _ in pairs),
        tuple(g for _, g in pairs),
        False,  # keep_graph
        False,  # create_graph
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )


def scatter(
    inputs: torch.Tensor | Sequence[torch.Tensor | None], chunks: int, dim: int
) -> list[tuple[torch.Tensor | None, ...]]:
    """Splits every tensor along `dim` into `chunks` parts as torch.tensor_split; None stays None. A tuple per part."""
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    for value in inputs:
        if value is not None and not isinstance(value, torch.Tensor):
            raise TypeError(f"[scatter] tensors and None are wanted, got {type(value).__name__}")
    parts = [(None,) * chunks if value is None else value.tensor_split(chunks, dim=dim) for value in inputs]
    return [tuple(part[k] for part in parts) for k in range(chunks)]


def gather(
    micro_outputs: Sequence[torch.Tensor | Sequence[torch.Tensor | None]], dim: int
) -> tuple[torch.Tensor | None, ...]:
    """The inverse of `scatter` for what a stage gives: concatenates micro-batches along `dim`, output by output."""
    rows = [(value,) if isinstance(value, torch.Tensor) else tuple(value) for value in micro_outputs]
    return tuple(_concatenate(column, dim) for column in zip(*rows, strict=True))


def _concatenate(column: tuple[torch.Tensor | None, ...], dim: int) -> torch.Tensor | None:
    if all(value is None for value in column):
        return None
    if any(value is None for value in column):
        raise TypeError("[gather] an output is wanted from every micro-batch or from none, got it from some")
    return column[0] if len(column) == 1 else torch.cat(column, dim=dim)
