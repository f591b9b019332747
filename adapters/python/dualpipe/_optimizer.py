"""What has to happen before an optimizer's step under a pipeline.

Run the weight gradients that were put off, finish the reductions, compute one global norm, clip, and skip the step on
every rank if anything is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from dualpipe.errors import ScheduleError

if TYPE_CHECKING:
    from dualpipe.core import Pipeline


class OptimizerStep(NamedTuple):
    """What optimizer_step() did.

    Attributes:
        grad_norm: L2 norm of all gradients before clipping; equal bits on every rank.
        skipped: some gradient is NaN or infinite; parameters are unchanged, everywhere.
    """

    grad_norm: float
    skipped: bool


class GradientNorm:
    """The global L2 norm of all gradients: each logical parameter once, in an order that depends on no layout.

    Mirrors, tied weights and replicas of data and tensor parallelism count once. The first compute() gathers names.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Raises ScheduleError where mirrors keep their own halves."""
        _check_mirrors("gradient_norm", pipeline)
        self._engine = pipeline._engine

    def compute(self) -> float:
        """Collective over the pipeline's world. NaN or infinite where a gradient is. The same bits on every rank."""
        return self._engine.compute_norm()

    def clip(self, norm: float, max_norm: float) -> None:
        """Scales this rank's gradients by max_norm / (norm + 1e-6) where norm is finite and above max_norm > 0."""
        self._engine.clip_gradients(norm, max_norm)


def optimizer_step(pipeline: Pipeline, optimizer: torch.optim.Optimizer, clip_grad: float = 0.0) -> OptimizerStep:
    """One optimizer step. Collective; does not zero gradients.

    Args:
        pipeline: whose gradients are read, also from `main_grads`.
        optimizer: of this rank's parameters; may have none.
        clip_grad: largest norm; 0 clips nothing.

    Raises:
        ScheduleError: for a clip_grad that is negative or not finite, and where mirrors keep their own halves.
    """
    result = _prepare(pipeline, clip_grad)
    if not result.skipped:
        pipeline.guarded("optimizer step", optimizer.step)
    return result


def register_optimizer(
    pipeline: Pipeline,
    optimizer: torch.optim.Optimizer,
    clip_grad: float = 0.0,
    report: Callable[[OptimizerStep], None] | None = None,
) -> RemovableHandle:
    """Makes every `optimizer.step()` do what optimizer_step() does, by register_step_pre_hook.

    A step that is to be skipped finds no gradients (`.grad` is None), so the optimizer leaves its parameters and its
    state alone. Args and errors as optimizer_step(); `report` is told what happened.
    """
    _check(pipeline, clip_grad)

    def prepare(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        result = _prepare(pipeline, clip_grad)
        if result.skipped:
            optimizer.zero_grad(set_to_none=True)
        if report is not None:
            report(result)

    return optimizer.register_step_pre_hook(prepare)


def _prepare(pipeline: Pipeline, clip_grad: float) -> OptimizerStep:
    _check(pipeline, clip_grad)
    pipeline.finish_gradients()
    norm = GradientNorm(pipeline)
    value = norm.compute()
    if not math.isfinite(value):
        return OptimizerStep(value, True)
    norm.clip(value, clip_grad)
    return OptimizerStep(value, False)


def _check(pipeline: Pipeline, clip_grad: float) -> None:
    if not (clip_grad >= 0 and math.isfinite(clip_grad)):
        raise ScheduleError(
            f"[optimizer_hook] clip_grad must be finite and at least 0 (no clipping), got {clip_grad:g}; "
            "for example 1.0"
        )
    _check_mirrors("optimizer_hook", pipeline)


def _check_mirrors(origin: str, pipeline: Pipeline) -> None:
    if not pipeline.reduces_mirrors:
        raise ScheduleError(
            f"[{origin}] mirrors must sum their gradients before a step, got reduce_mirrors = False; set "
            "reduce_mirrors=True, or sum and step yourself"
        )
