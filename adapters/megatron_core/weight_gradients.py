"""Cheap I for Megatron's linear layers: their weight gradients wait in the engine's store for the scheduled W.

`ColumnParallelLinear` and `RowParallelLinear` (and with them attention, MLP, output head, router-side and local expert
layers) run `LinearWithGradAccumulationAndAsyncCommunication`, whose backward computes both products at once.
`DeferredLinear` computes that of the input, with the tensor- and sequence-parallel collectives of the original, and
puts the other into the store; outside an I it is the original. A deferred gradient enters its parameter by autograd, so
that DistributedDataParallel's hooks see it as ever (`main_grad`, overlapped reduction).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import layers

from dualpipe.utils import WeightGradStore

_Linear = layers.LinearWithGradAccumulationAndAsyncCommunication


def _gathered(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The whole sequence, [s, b, h] from [s / tp, b, h] on every rank."""
    whole = tensor.new_empty([tensor.size(0) * group.size(), *tensor.shape[1:]])
    layers.dist_all_gather_func(whole, tensor, group=group)
    return whole


def _scattered(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The sum over ranks, a part of the sequence on each."""
    part = tensor.new_empty([tensor.size(0) // group.size(), *tensor.shape[1:]])
    layers.dist_reduce_scatter_func(part, tensor, group=group)
    return part


def _input_gradient(ctx: Any, grad_output: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    flat = grad_output.reshape(-1, grad_output.size(-1))
    grad_input = flat.matmul(weight).reshape(*grad_output.shape[:-1], weight.size(1))
    if ctx.sequence_parallel:
        return _scattered(grad_input, ctx.tp_group)
    if ctx.allreduce_dgrad:
        dist.all_reduce(grad_input, group=ctx.tp_group)
    return grad_input


def _fused(weight: torch.Tensor, total_input: torch.Tensor, grad_output: torch.Tensor) -> torch.Tensor:
    """Adds the product to `main_grad` by Megatron's fused kernel; what autograd gets instead only runs the hooks."""
    kernels = layers.fused_weight_gradient_mlp_cuda
    single = weight.main_grad.dtype == torch.float32
    add = kernels.wgrad_gemm_accum_fp32 if single else kernels.wgrad_gemm_accum_fp16
    add(total_input, grad_output, weight.main_grad)
    weight.grad_added_to_main_grad = True
    placeholder = torch.zeros if getattr(weight, "zero_out_wgrad", False) else torch.empty
    return placeholder(weight.shape, dtype=weight.dtype, device=weight.device)


def _weight_work(ctx: Any, grad_output: torch.Tensor, saved: torch.Tensor, weight: torch.Tensor) -> Callable[[], None]:
    group = ctx.tp_group if ctx.sequence_parallel else None
    fused = ctx.gradient_accumulation_fusion and hasattr(weight, "main_grad")
    bias = ctx.dualpipe_bias if ctx.use_bias and ctx.dualpipe_bias.requires_grad else None
    leaves = (weight,) if bias is None else (weight, bias)  # In a tuple: the store counts bytes of tensors by name.

    @torch.no_grad()
    def run() -> None:
        total = saved if group is None else _gathered(saved, group)
        flat_input = total.reshape(-1, total.size(-1))
        flat_output = grad_output.reshape(-1, grad_output.size(-1))
        product = _fused(leaves[0], flat_input, flat_output) if fused else flat_output.t().matmul(flat_input)
        gradients = (product,) if len(leaves) == 1 else (product, flat_output.sum(dim=0))
        torch.autograd.backward(leaves, gradients)

    return run


class DeferredLinear(_Linear):
    """y = x W^T + b as the original; its backward puts the weight's part into the store while the engine splits."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any) -> Any:
        ctx.dualpipe_bias = bias
        return _Linear.forward(ctx, input, weight, bias, *rest)

    @staticmethod
    @layers.custom_bwd
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if not (WeightGradStore.enabled and ctx.needs_input_grad[0]):
            return _Linear.backward(ctx, grad_output)
        saved, weight = ctx.saved_tensors
        grad_input = _input_gradient(ctx, grad_output, weight)
        WeightGradStore.put(_weight_work(ctx, grad_output, saved, weight))
        return (grad_input, *[None] * 9)


def _forward_impl(
    original: Callable[..., torch.Tensor],
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    gradient_accumulation_fusion: bool,
    allreduce_dgrad: bool,
    sequence_parallel: bool,
    tp_group: dist.ProcessGroup | None,
    **others: Any,
) -> torch.Tensor:
    plain = others.get("grad_output_buffer") is None and others.get("gtp_remat_size", 1) == 1
    leaves = weight.is_leaf and (bias is None or bias.is_leaf)
    if not (plain and leaves and weight.requires_grad and torch.is_grad_enabled()):
        return original(
            input,
            weight,
            bias=bias,
            gradient_accumulation_fusion=gradient_accumulation_fusion,
            allreduce_dgrad=allreduce_dgrad,
            sequence_parallel=sequence_parallel,
            tp_group=tp_group,
            **others,
        )
    settings = (gradient_accumulation_fusion, allreduce_dgrad, sequence_parallel, None, None, tp_group, 1)
    return DeferredLinear.apply(input, weight, bias, *settings)


def defer_weight_gradients(chunk: torch.nn.Module) -> int:
    """Makes a chunk's column- and row-parallel layers put their weight gradients off. Returns how many there are.

    Sets `_forward_impl` on the layers themselves; calling it again changes nothing. Megatron's classes stay untouched.
    """
    count = 0
    for module in chunk.modules():
        if isinstance(module, (layers.ColumnParallelLinear, layers.RowParallelLinear)):
            count += 1
            if "_forward_impl" not in vars(module):
                module._forward_impl = functools.partial(_forward_impl, module._forward_impl)
    return count
