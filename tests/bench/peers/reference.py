"""The reference implementation of DualPipe and DualPipeV, where the user has a checkout of it.

It allocates what it receives on a CUDA device; here it runs on the CPU.
"""

import importlib
import time

import torch
from sleeping import Sleeper

KINDS = ("reference_dualpipe", "reference_dualpipev")


def stage_class(utils):
    """A stage in the reference's terms, whose W goes into its store."""
    store = utils.WeightGradStore

    class Body(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, weight, sleeper):
            ctx.sleeper = sleeper
            ctx.weight = weight
            return tensor.clone()

        @staticmethod
        def backward(ctx, gradient):
            sleeper, weight = ctx.sleeper, ctx.weight
            sleeper.spend(sleeper.backward_input)

            def weight_gradient():
                end = time.monotonic() + sleeper.backward_weight
                total = torch.zeros_like(weight)
                weight.grad = total if weight.grad is None else weight.grad.add_(total)
                sleeper.until(end, sleeper.backward_weight)

            if store.enabled:
                store.put(weight_gradient)
            else:
                weight_gradient()
            return gradient.contiguous(), None, None  # Torch sends nothing else.

    class SleepingStage(torch.nn.Module):
        def __init__(self, sleeper):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.sleeper = sleeper

        def forward(self, tensor):
            end = time.monotonic() + self.sleeper.forward
            result = Body.apply(tensor, self.weight, self.sleeper)
            self.sleeper.until(end, self.sleeper.forward)
            return result

        @classmethod
        def overlapped_forward_backward(cls, module0, inputs0, criterion0, labels0, module1, loss1, outputs1, grads1):
            sleeper = module0.sleeper
            end = time.monotonic() + sleeper.overlapped
            sleeper.awake = True
            outputs0 = [module0(*inputs0)]
            loss0 = criterion0(*outputs0, *labels0) if criterion0 is not None else None
            if loss1 is not None:
                loss1.backward()
                loss1.detach_()
            else:
                utils.run_backward(outputs1, grads1)  # The outputs' values are gone.
            sleeper.awake = False
            sleeper.until(end, sleeper.overlapped)
            return outputs0, loss0

    return SleepingStage


class ReferencePipeline:
    def __init__(self, request, rank, ranks):
        comm = importlib.import_module("dualpipe.comm")
        folded = request["kind"] == "reference_dualpipev"
        module = importlib.import_module("dualpipe.dualpipev" if folded else "dualpipe.dualpipe")
        torch.cuda.current_device = lambda: torch.device("cpu")
        comm.build_from_tensor_shapes = lambda: [torch.empty(shape, dtype=comm.TENSOR_DTYPE, requires_grad=True)
                                                 for shape in comm.TENSOR_SHAPES]
        self.shape = (1, request["bytes"] // 4)
        self.comm = comm
        self.count = request["microbatches"]
        self.sleeper = Sleeper()
        stage = stage_class(importlib.import_module("dualpipe.utils"))
        stages = [stage(self.sleeper), stage(self.sleeper)]
        self.pipeline = (module.DualPipeV if folded else module.DualPipe)(stages)
        at_an_end = rank == 0 or (rank == ranks - 1 and not folded)
        mine = self.count if folded else self.count // 2
        self.inputs = torch.zeros(mine, self.shape[1]).requires_grad_(True) if at_an_end else None
        self.labels = [torch.zeros(mine, 1)] if at_an_end else []
        self.step()
        self.sleeper = Sleeper(request["pace_ms"])
        for stage in stages:
            stage.sleeper = self.sleeper

    def step(self):
        self.comm.set_p2p_tensor_shapes([self.shape])
        self.comm.set_p2p_tensor_dtype(torch.float32)
        given = (self.inputs,) if self.inputs is not None else ()
        self.pipeline.step(*given, num_chunks=self.count, labels=self.labels,
                           criterion=(lambda output, _label: output.sum()) if given else None)
