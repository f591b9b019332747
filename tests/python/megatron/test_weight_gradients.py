"""Megatron's linear layers with their weight gradients put off, alone: tensor and sequence parallelism, fusion."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from world import Run


def _config(**settings: Any) -> Any:
    from megatron.core.transformer import TransformerConfig

    return TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=2,
        tensor_model_parallel_size=2,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        **settings,
    )


def _backward(layer: torch.nn.Module, given: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The input's gradient; those of the parameters are left in them."""
    leaf = given.clone().requires_grad_()
    output, _ = layer(leaf)
    output.backward(gradient)
    return leaf.grad


def linear_layers(kind: str, sequence_parallel: bool) -> dict[str, float]:
    """In a world of two tensor-parallel ranks: largest differences between the layer and the layer that defers."""
    import cpu_shim
    import torch.distributed as dist

    cpu_shim.install()
    from dualpipe.megatron import defer_weight_gradients
    from dualpipe.utils import WeightGradStore
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    torch.manual_seed(5)
    init = torch.nn.init.normal_
    config = _config(sequence_parallel=sequence_parallel)
    if kind == "column":
        layer = ColumnParallelLinear(8, 12, config=config, init_method=init, bias=True, gather_output=False)
        given, gradient = torch.randn(4, 3, 8), torch.randn(4 * (2 if sequence_parallel else 1), 3, 6)
    else:
        settings = dict(bias=True, input_is_parallel=True, skip_bias_add=False)
        layer = RowParallelLinear(12, 8, config=config, init_method=init, **settings)
        given, gradient = torch.randn(4, 3, 6), torch.randn(4 // (2 if sequence_parallel else 1), 3, 8)
    wanted_input = _backward(layer, given, gradient)
    wanted = {name: value.grad.clone() for name, value in layer.named_parameters()}
    layer.zero_grad()

    assert defer_weight_gradients(layer) == 1 and defer_weight_gradients(layer) == 1
    WeightGradStore.enabled = True
    found_input = _backward(layer, given, gradient)
    WeightGradStore.enabled = False
    early = layer.weight.grad is not None
    WeightGradStore.flush()
    WeightGradStore.pop()
    found = {name: value.grad for name, value in layer.named_parameters()}
    parallel_state.destroy_model_parallel()
    dist.barrier()
    return {
        "early": float(early),
        "input": float((found_input - wanted_input).abs().max()),
        **{name: float((found[name] - wanted[name]).abs().max()) for name in wanted},
    }


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("kind", ["column", "row"])
def test_linear_layers(kind: str, sequence_parallel: bool, world: Run) -> None:
    for differences in world(2, linear_layers, kind, sequence_parallel):
        assert differences == {"early": 0.0, "input": 0.0, "weight": 0.0, "bias": 0.0}


def fused_layer() -> dict[str, float]:
    """In a world of one: a layer whose kernel adds to main_grad, and what its hooks saw."""
    import cpu_shim

    cpu_shim.install()
    from dualpipe.megatron import defer_weight_gradients
    from dualpipe.utils import WeightGradStore
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import ColumnParallelLinear, layers

    def add(total_input: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor) -> None:
        main_grad.add_(grad_output.t().matmul(total_input))

    parallel_state.initialize_model_parallel()
    layers.fused_weight_gradient_mlp_cuda = types.SimpleNamespace(wgrad_gemm_accum_fp32=add)
    layer = ColumnParallelLinear(8, 12, config=_config(), init_method=torch.nn.init.normal_, bias=False)
    given, gradient = torch.randn(4, 3, 8), torch.randn(4, 3, 12)
    _backward(layer, given, gradient)
    wanted = layer.weight.grad.clone()
    layer.zero_grad()

    layer.gradient_accumulation_fusion = True
    layer.weight.main_grad = torch.zeros_like(layer.weight)
    layer.weight.grad_added_to_main_grad = False
    runs = []
    layer.weight.register_post_accumulate_grad_hook(lambda weight: runs.append(weight.grad_added_to_main_grad))
    defer_weight_gradients(layer)
    WeightGradStore.enabled = True
    _backward(layer, given, gradient)
    WeightGradStore.enabled = False
    early = float(layer.weight.main_grad.abs().max())
    WeightGradStore.flush()
    WeightGradStore.pop()
    parallel_state.destroy_model_parallel()
    return {
        "early": early,
        "weight": float((layer.weight.main_grad - wanted).abs().max()),
        "hooks": float(sum(runs)),
    }


def test_fused_accumulation(world: Run) -> None:
    assert world(1, fused_layer) == [{"early": 0.0, "weight": 0.0, "hooks": 1.0}]
