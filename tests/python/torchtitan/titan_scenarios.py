"""What the ranks of a test do with torchtitan's pipelining function and the debug models, on the CPU."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
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
from torchtitan.distributed import utils as dist_utils
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models import kimi_k2_7, llama3, qwen3
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.sharding import set_llama3_sharding_config
from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config
from torchtitan.protocols.model_spec import ModelSpec

from dualpipe.pipelining import clip_grad_norm_, gradient_norm
from dualpipe.torchtitan import with_dualpipe

ROWS, SEQUENCE, VOCABULARY = 8, 8, 2048
PLACEHOLDER, PATCH = 7, 6  # Of an image: a token, and values of one of its patches.
NO_SPANS = SimpleNamespace(spans=())  # Of torch's schedules.


def debug_spec(model: str = "llama3", backend: str = "partial_dtensor") -> ModelSpec:
    """A debug model of torchtitan: ``"llama3"``, or with fewer layers and smaller experts ``"qwen3_moe"`` and
    ``"kimi"``, whose vision encoder is :class:`PatchEncoder`. The trainer too sets the backend and how to shard."""
    dist_utils.set_spmd_backend(backend)
    spec = {"llama3": llama3, "qwen3_moe": qwen3, "kimi": kimi_k2_7}[model].model_registry(
        "debugmodel_moe" if model == "qwen3_moe" else "debugmodel")
    if model != "llama3":
        make_smaller(spec.model)
    if model == "llama3":
        set_llama3_sharding_config(spec.model, enable_sp=False)
    if model == "qwen3_moe":
        set_qwen3_sharding_config(spec.model, enable_sp=False, enable_ep=True)
    if model == "kimi":
        spec.model.vision_encoder = None
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return with_dualpipe(spec)


def make_smaller(config: Any, layers: int = 4, experts: int = 8, top_k: int = 2, width: int = 32) -> None:
    config.layers = config.layers[:layers]
    for moe in (layer.moe for layer in config.layers if layer.moe is not None):
        routed = moe.routed_experts
        for part in (moe, moe.router, routed.token_dispatcher, routed.inner_experts):
            part.num_experts = experts
        moe.router.gate.out_features = experts
        moe.router.top_k = routed.token_dispatcher.top_k = top_k
        routed.inner_experts.hidden_dim = width


class PatchEncoder(nn.Module):
    """A vision encoder in one layer: torchtitan's compiles its attention mask for a GPU."""

    merge_kernel_size = (1, 1)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch_embed = nn.Linear(PATCH, width)

    def forward(self, pixels: Tensor, grid_thw: Tensor) -> Tensor:
        return self.patch_embed(pixels)


def debug_model(spec: ModelSpec, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = spec.model.build()
    model.init_weights(buffer_device=torch.device("cpu"))
    if isinstance(model, kimi_k2_7.KimiK25Model):
        model.vision_encoder = PatchEncoder(spec.model.dim)
    return model


def batch_of(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (rows, SEQUENCE)
    return (torch.randint(VOCABULARY, shape, generator=generator),
            torch.randint(VOCABULARY, shape, generator=generator))


def with_images(tokens: Tensor) -> tuple[Tensor, list[dict[str, Any]]]:
    """The same tokens with an image of two patches in every row, and the keyword arguments of every row."""
    tokens = tokens.masked_fill(tokens == PLACEHOLDER, PLACEHOLDER + 1)
    tokens[:, 2:4] = PLACEHOLDER
    pixels = torch.sin(tokens[:, :2, None] + torch.arange(PATCH))
    return tokens, [{"pixel_values": pixels[k : k + 1], "grid_thw": torch.tensor([[1, 1, 2]]),
                     "special_tokens": {"image_id": PLACEHOLDER, "video_id": PLACEHOLDER}} for k in range(len(tokens))]


def sum_by_gloo(parallelize_fn: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """torchtitan's own function, with sums that Gloo knows: it has no PREMUL_SUM."""
    def parallelize(model: nn.Module, **options: Any) -> nn.Module:
        model = parallelize_fn(model, **options)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
        return model

    return parallelize


def build(
    name: str, size: int, model: str = "llama3", backend: str = "partial_dtensor", recompute: bool = False,
    dtype: str = "float32", **settings: Any
) -> tuple[Any, list[nn.Module], bool, bool, ParallelDims]:
    spec = debug_spec(model, backend)
    parallelism = ParallelismConfig(pipeline_parallel_degree=size, pipeline_parallel_schedule=name,
                                    spmd_backend=backend, **settings)
    parallel_dims = ParallelDims.from_config(parallelism, dist.get_world_size())
    parallel_dims.build_mesh()
    built = spec.pipelining_fn(
        debug_model(spec), parallel_dims=parallel_dims, parallelism=parallelism,
        compile_config=CompileConfig(enable=False),
        training=TrainingConfig(local_batch_size=ROWS, seq_len=SEQUENCE, mixed_precision_param=dtype),
        ac_config=FullAC.Config() if recompute else None, dump_folder=".", device=torch.device("cpu"),
        model_config=spec.model,
        parallelize_fn=sum_by_gloo(spec.parallelize_fn), loss_fn=CrossEntropyLoss.Config().build())
    return *built, parallel_dims


def train(name: str, size: int, model: str = "llama3", reseed: bool = False, **settings: Any) -> dict[str, Any]:
    """One evaluation, and one step as the trainer does it. ``reseed``: each rank initializes its parts apart."""
    schedule, parts, has_first, has_last, parallel_dims = build(name, size, model, **settings)
    if reseed:
        for part in parts:
            torch.manual_seed(10 + dist.get_rank())
            with torch.no_grad():
                part.init_weights(buffer_device=torch.device("cpu"))
    replicas = parallel_dims.dp_shard
    replica = dist.get_rank() % replicas
    tokens, labels = (t.chunk(replicas)[replica] for t in batch_of(ROWS * replicas))
    tokens, keywords = with_images(tokens) if model == "kimi" else (tokens, [{} for _ in range(ROWS)])

    def run(method: str, **options: Any) -> list[float] | None:
        losses: list[Tensor] | None = [] if has_last else None
        with dist_utils.get_spmd_context(parallel_dims=parallel_dims)():
            getattr(schedule, method)(
                arg_mbs=[(t,) for t in tokens.split(1)] if has_first else None, kwarg_mbs=keywords,
                target_mbs=list(labels.split(1)) if has_last else None, losses=losses, **options)
        return None if losses is None else [loss.item() for loss in losses]

    schedule._loss_fn, with_tokens = mean_loss(schedule._loss_fn, ROWS * SEQUENCE * replicas), schedule._loss_fn
    evaluated = run("eval")
    schedule._loss_fn = with_tokens
    losses = run("step", return_outputs=False,
                 loss_kwargs={"global_valid_tokens": torch.tensor(float(ROWS * SEQUENCE * replicas))})
    named = [(n.replace("_checkpoint_wrapped_module.", ""), p) for part in parts for n, p in part.named_parameters()]
    gradients = {n: whole(p.grad).clone() for n, p in named}
    return {"losses": losses, "evaluated": evaluated, "replica": replica, "gradients": gradients,
            "norms": clip(schedule, parts, parallel_dims), "values": {n: whole(p.detach()) for n, p in named},
            "cells": [span[0] for span in getattr(schedule, "statistics", NO_SPANS).spans],
            "has_head": [part.lm_head is not None for part in parts], "schedule": type(schedule).__module__}


def clip(schedule: Any, parts: list[nn.Module], parallel_dims: ParallelDims) -> dict[str, float]:
    """The norm of the model, the one that the trainer logs, the model's once the trainer clipped to half of the one
    that it logs, and once we clipped to a quarter of the model's."""
    norms = {"model": gradient_norm(schedule), "logged": clip_as_the_trainer(parts, parallel_dims, math.inf)}
    clip_as_the_trainer(parts, parallel_dims, norms["logged"] / 2)
    norms["clipped"] = clip_grad_norm_(schedule, norms["model"] / 4)
    norms["clipped by us"] = gradient_norm(schedule)
    return norms


def clip_as_the_trainer(parts: list[nn.Module], parallel_dims: ParallelDims, max_norm: float) -> float:
    parameters = [p for part in parts for p in part.parameters()]
    return dist_utils.clip_grad_norm_(parameters, max_norm, pp_mesh=parallel_dims.get_mesh("pp"),
                                      ep_enabled=parallel_dims.ep_enabled).item()


def warnings_of(name: str) -> list[str]:
    """What building a schedule of this name logs."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("dualpipe.torchtitan")
    logger.addHandler(handler)
    try:
        build(name, dist.get_world_size())
    finally:
        logger.removeHandler(handler)
    return told


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
