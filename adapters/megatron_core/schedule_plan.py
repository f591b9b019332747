"""Overlapped pairs of MoE chunks by Megatron's own layer schedule plan.

`GPTModel.build_schedule_plan` cuts a chunk's forward into nodes (attention, dispatch, experts, combine), and
`TransformerModelChunkSchedulePlan.run(f_plan, b_plan)` runs the forward of one micro-batch beside the backward of
another. Here every training forward goes through a plan, whose backward is one node of the engine's graph
(`_PlanNode`); in an overlapped pair that node only catches the gradient, and both plans run together.

`forward_step_func` has to follow Megatron's contract for that: called with `return_schedule_plan=True` and the
unwrapped model, it returns (plan, loss_func).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.pipeline_parallel import schedules
from megatron.core.transformer.cuda_graphs import set_current_microbatch

from .stage import MegatronStage, Tensors


@dataclasses.dataclass(eq=False)
class _Run:
    """One micro-batch that went forward through a plan and has not gone back."""

    plan: Any
    leaf: torch.Tensor | None  # What the plan started from; its .grad is the input's gradient.
    engine_input: torch.Tensor | None  # The leaf that the engine gave; None on the first stage.
    live: list[_Run]  # Those of its stage.
    catches: bool = False  # In a pair: the node keeps the gradient instead of running the plan.
    caught: torch.Tensor | None = None

    def backward(self, gradient: torch.Tensor) -> torch.Tensor | None:
        plan = self.take_plan()
        type(plan).run(None, plan, b_grad=gradient)
        return self.leaf.grad if self.leaf is not None else None

    def take_plan(self) -> Any:
        """The plan, which runs back once."""
        plan, self.plan = self.plan, None
        self.live.remove(self)
        return plan


class _PlanNode(torch.autograd.Function):
    """Output of a plan, as a function of the stage's input (or of an anchor, where the first stage has none)."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, output: torch.Tensor, run: _Run) -> torch.Tensor:
        ctx.run = run
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        run = ctx.run
        if run.catches:
            run.caught = gradient
            return None, None, None
        return run.backward(gradient), None, None


class PlannedStage(MegatronStage):
    """A MegatronStage whose training forwards are schedule plans; evaluation is the plain forward."""

    def __init__(self, chunk: torch.nn.Module) -> None:
        super().__init__(chunk)
        self._runs: list[_Run] = []  # In the order of their forwards, which is that of their backwards.

    def begin_step(self, step: Any) -> None:
        super().begin_step(step)
        self._runs.clear()

    def forward(self, inputs: Tensors) -> torch.Tensor | Tensors:
        if self.step.forward_only:
            return super().forward(inputs)
        plan, loss_func, leaf = self._build(inputs)
        return self._finish(inputs, plan, loss_func, leaf, type(plan).run(plan, None))

    def _build(self, inputs: Tensors) -> tuple[Any, Any, torch.Tensor | None]:
        step, is_first = self.step, self.take_first_micro_batch()
        if is_first and hasattr(self.chunk, "set_is_first_microbatch"):
            self.chunk.set_is_first_microbatch()
        set_current_microbatch(self.chunk, self._micro_batch)
        leaf = None if self.placement.is_first else inputs[0].detach().requires_grad_()
        self.model.set_input_tensor([leaf])
        config = step.config
        autocast = torch.autocast("cuda", dtype=config.autocast_dtype) if config.enable_autocast else None
        with autocast or contextlib.nullcontext():
            plan, loss_func = step.forward_step_func(step.data_iterator, self.model, return_schedule_plan=True)
        return plan, loss_func, leaf

    def _finish(
        self, inputs: Tensors, plan: Any, loss_func: Any, leaf: torch.Tensor | None, output: torch.Tensor
    ) -> torch.Tensor:
        """The stage's output (or loss) from the plan's, behind one node of the engine's graph."""
        source = output.new_zeros((), requires_grad=True) if self.placement.is_first else inputs[0]
        run = _Run(plan, leaf, None if self.placement.is_first else inputs[0], self._runs)
        self._runs.append(run)
        step, store = self.step, []
        result, tokens = schedules.forward_step_calc_loss(
            self.chunk,
            _PlanNode.apply(source, output.detach(), run),
            loss_func,
            step.config,
            None,
            step.collect_non_loss_data,
            step.num_microbatches,
            store,
            step.cp_size,
            self.placement.is_last,
        )
        self.keep_results(store, tokens)
        return result

    @classmethod
    def overlapped_forward_backward(
        cls,
        module0: PlannedStage,
        inputs0: Tensors,
        criterion0: Callable[[Tensors, Tensors], torch.Tensor] | None,
        labels0: Tensors,
        module1: PlannedStage,
        loss1: torch.Tensor | None,
        outputs1: Tensors,
        output_grads1: Tensors,
    ) -> tuple[Tensors, torch.Tensor | None]:
        """The engine's hook: the forward of module0 on inputs0 beside the backward of module1's oldest micro-batch."""
        plan0, loss_func0, leaf0 = module0._build(inputs0)
        run1 = module1._runs[0]
        run1.catches = True
        roots = (outputs1, output_grads1) if loss1 is None else ((loss1,), (None,))
        torch.autograd.backward(*roots)
        output0 = type(plan0).run(plan0, run1.take_plan(), b_grad=run1.caught)
        if run1.leaf is not None and run1.engine_input is not None:
            run1.engine_input.grad = run1.leaf.grad
        outputs0 = (module0._finish(inputs0, plan0, loss_func0, leaf0, output0),)
        return outputs0, None if criterion0 is None else criterion0(outputs0, labels0)
