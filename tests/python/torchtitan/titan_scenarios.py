"""What the ranks of a test do with torchtitan's pipelining function and the debug model of Llama 3, on the CPU."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

import stand_in  # noqa: F401  Before torchtitan.
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry, parallelize_llama
from torchtitan.protocols.model_spec import ModelSpec

from dualpipe.torchtitan import with_dualpipe

ROWS, SEQUENCE, VOCABULARY = 8, 8, 2048
NO_SPANS = SimpleNamespace(spans=())  # Of torch's schedules.


def debug_spec() -> ModelSpec:
    spec = model_registry("debugmodel")
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return with_dualpipe(spec)


def debug_model(spec: ModelSpec, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = spec.model.build()
    model.init_weights(buffer_device=torch.device("cpu"))
    return model


def batch_of(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (rows, SEQUENCE)
    return (torch.randint(VOCABULARY, shape, generator=generator),
            torch.randint(VOCABULARY, shape, generator=generator))


def parallelize(model: nn.Module, **options: Any) -> nn.Module:
    """torchtitan's own, with sums that Gloo knows: it has no PREMUL_SUM."""
    model = parallelize_llama(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def build(
    name: str, size: int, recompute: bool = False, dtype: str = "float32", **settings: Any
) -> tuple[Any, list[nn.Module], bool, bool, ParallelDims]:
    spec = debug_spec()
    parallelism = ParallelismConfig(pipeline_parallel_degree=size, pipeline_parallel_schedule=name,
                                    spmd_backend="partial_dtensor", **settings)
    parallel_dims = ParallelDims.from_config(parallelism, dist.get_world_size())
    parallel_dims.build_mesh()
    built = spec.pipelining_fn(
        debug_model(spec), parallel_dims=parallel_dims, parallelism=parallelism,
        compile_config=CompileConfig(enable=False),
        training=TrainingConfig(local_batch_size=ROWS, seq_len=SEQUENCE, mixed_precision_param=dtype),
        ac_config=FullAC.Config() if recompute else None, dump_folder=".", device=torch.device("cpu"),
        model_config=spec.model,
        parallelize_fn=parallelize, loss_fn=CrossEntropyLoss.Config().build())
    return *built, parallel_dims


def train(name: str, size: int, reseed: bool = False, **settings: Any) -> dict[str, Any]:
    """One evaluation, and one step as the trainer does it. ``reseed``: each rank initializes its parts apart."""
    schedule, parts, has_first, has_last, parallel_dims = build(name, size, **settings)
    if reseed:
        for part in parts:
            torch.manual_seed(10 + dist.get_rank())
            with torch.no_grad():
                part.init_weights(buffer_device=torch.device("cpu"))
    replicas = parallel_dims.dp_shard
    replica = dist.get_rank() % replicas
    tokens, labels = (t.chunk(replicas)[replica] for t in batch_of(ROWS * replicas))

    def run(method: str, **options: Any) -> list[float] | None:
        losses: list[Tensor] | None = [] if has_last else None
        getattr(schedule, method)(
            arg_mbs=[(t,) for t in tokens.split(1)] if has_first else None, kwarg_mbs=[{} for _ in range(ROWS)],
            target_mbs=list(labels.split(1)) if has_last else None, losses=losses, **options)
        return None if losses is None else [loss.item() for loss in losses]

    schedule._loss_fn, with_tokens = mean_loss(schedule._loss_fn, ROWS * SEQUENCE * replicas), schedule._loss_fn
    evaluated = run("eval")
    schedule._loss_fn = with_tokens
    losses = run("step", return_outputs=False,
                 loss_kwargs={"global_valid_tokens": torch.tensor(float(ROWS * SEQUENCE * replicas))})
    named = [(n.replace("_checkpoint_wrapped_module.", ""), p) for part in parts for n, p in part.named_parameters()]
    return {"losses": losses, "evaluated": evaluated, "replica": replica,
            "gradients": {n: whole(p.grad) for n, p in named}, "values": {n: whole(p.detach()) for n, p in named},
            "cells": [span[0] for span in getattr(schedule, "statistics", NO_SPANS).spans],
            "has_head": [part.lm_head is not None for part in parts], "schedule": type(schedule).__module__}


def mean_loss(loss_fn: Any, tokens: int) -> Any:
    """eval() takes no loss_kwargs."""
    return lambda output, target: loss_fn(output, target, global_valid_tokens=torch.tensor(float(tokens)))


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def refused_file(path: str) -> str:
    """What is said to a file of another placement."""
    try:
        build("DualPipe", dist.get_world_size(), pipeline_parallel_schedule_csv=path)
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def refusals(size: int) -> dict[str, str]:
    def message(name: str, **settings: Any) -> str:
        try:
            build(name, size, **settings)
        except ValueError as error:
            return str(error)
        return "nothing was refused"

    def of_spec() -> str:
        try:
            with_dualpipe(dataclasses.replace(debug_spec(), pipelining_fn=None))
        except ValueError as error:
            return str(error)
        return "nothing was refused"

    def tied() -> str:
        spec = debug_spec()
        spec.model.enable_weight_tying = True
        parallelism = ParallelismConfig(pipeline_parallel_degree=size, pipeline_parallel_schedule="DualPipe")
        unused = dict.fromkeys(
            ["parallel_dims", "training", "compile_config", "ac_config", "parallelize_fn", "loss_fn"])
        try:
            spec.pipelining_fn(nn.Module(), parallelism=parallelism, model_config=spec.model, dump_folder=".",
                               device=torch.device("cpu"), **unused)
        except ValueError as error:
            return str(error)
        return "nothing was refused"

    return {
        "layers": message("DualPipe", pipeline_parallel_layers_per_stage=1),
        "names": message("DualPipeV", module_fqns_per_model_part=[["tok_embeddings"], ["norm", "lm_head"]]),
        "micro-batch": message("ZB1P", pipeline_parallel_microbatch_size=3),
        "few": message("DualPipe", pipeline_parallel_microbatch_size=4),
        "tied": tied(),
        "unknown": message("DualPipeX").splitlines()[0],
        "spec": of_spec(),
    }
