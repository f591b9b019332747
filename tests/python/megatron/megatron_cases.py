"""What the tests train: small GPTs on Megatron-Core, one case after another in the processes of one world.

`run_cases` runs in every rank and gives, per case, losses and gradients by global name; `run_whole` computes the same
with the whole model in one process, by plain autograd. The tests compare the two.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import cpu_shim
import numpy
import torch
import torch.distributed as dist

VOCABULARY = 32
SEQUENCE = 8
MICRO_BATCH = 2
EMBEDDING = "embedding.word_embeddings.weight"
_BUCKET = 1000  # Parameters, of a chunk's some thousand. Megatron cuts buckets on the first pipeline rank alone.


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, how it is divided, and what of a step is looked at."""

    schedule: str
    pp: int = 2
    tp: int = 1
    ep: int = 1
    dp: int = 1
    num_microbatches: int = 8
    layers: int = 4
    dtype: str = "float32"
    moe: bool = False
    tied: bool = False
    bias: bool = False
    ddp: str = ""  # "": none; "plain", "overlap" (overlap_grad_reduce).
    recompute: str = ""  # "": none; "full", "selective".
    loss: str = "mean"  # "mean", "exact": 2-tuple; "tokens": 3-tuple; "per_token": 3-tuple, calculate_per_token_loss.
    plan: bool = False
    steps: int = 1
    accumulate: bool = False  # Gradients are zeroed ahead of the first step alone.
    grad_scale: float = 1.0  # What config.grad_scale_func multiplies losses with.
    settings: tuple[tuple[str, Any], ...] = ()  # More of the TransformerConfig.
    watch: str = ""  # What else to look at: see _WATCHERS.

    @property
    def world_size(self) -> int:
        return self.pp * self.tp * self.dp

    def whole(self) -> Case:
        """The same model in one process."""
        return dataclasses.replace(
            self, schedule="whole", pp=1, tp=1, ep=1, ddp="", plan=False, watch=""
        )


@dataclasses.dataclass
class Outcome:
    """Of one rank, or of the whole model: then losses are those of all replicas, one after the other."""

    losses: list[float]
    gradients: dict[str, numpy.ndarray]
    notes: dict[str, Any]
    error: str = ""


RunCase = Callable[[Case], list[Outcome]]  # What the fixture `run` is.


def make_config(case: Case) -> Any:
    from megatron.core.transformer import TransformerConfig

    half = case.dtype in ("bfloat16", "float16")
    settings: dict[str, Any] = dict(
        num_layers=case.layers,
        hidden_size=16,
        num_attention_heads=4,
        tensor_model_parallel_size=case.tp,
        pipeline_model_parallel_size=case.pp,
        expert_model_parallel_size=case.ep,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        add_bias_linear=case.bias,
        use_cpu_initialization=True,
        params_dtype=getattr(torch, case.dtype),
        pipeline_dtype=getattr(torch, case.dtype),
        bf16=case.dtype == "bfloat16",
        fp16=case.dtype == "float16",
        attention_softmax_in_fp32=half,
        batch_p2p_comm=False,
        batch_p2p_sync=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        calculate_per_token_loss=case.loss == "per_token",
    )
    if case.moe:
        settings.update(
            num_moe_experts=4, moe_router_topk=2, moe_aux_loss_coeff=1e-2, moe_token_dispatcher_type="alltoall"
        )
    if case.recompute == "full":
        settings.update(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    if case.recompute == "selective":
        settings.update(recompute_granularity="selective")
    settings.update(dict(case.settings))
    return TransformerConfig(**settings)


def global_name(name: str, first_layer: int, first_expert: int) -> str:
    name = re.sub(r"(?<=layers\.)\d+", lambda found: str(int(found[0]) + first_layer), name)
    return re.sub(r"(?<=local_experts\.)\d+", lambda found: str(int(found[0]) + first_expert), name)


def global_names(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Parameters of a chunk by the name that they have in the whole model."""
    from megatron.core import parallel_state

    config = model.config
    first_layer = model.decoder.layers[0].layer_number - 1
    per_rank = (config.num_moe_experts or 0) // config.expert_model_parallel_size
    first_expert = parallel_state.get_expert_model_parallel_rank() * per_rank
    return {global_name(name, first_layer, first_expert): value for name, value in model.named_parameters()}


def _shard(whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """This tensor-parallel rank's part."""
    from megatron.core import parallel_state

    if whole.shape == parameter.shape:
        return whole
    rank, size = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
    return whole.chunk(size, dim=parameter.partition_dim)[rank]


def fill(model: torch.nn.Module, tp: int) -> None:
    """Values that depend on a parameter's global name alone."""
    for name, parameter in global_names(model).items():
        if getattr(parameter, "shared", False):
            name = EMBEDDING
        shape = list(parameter.shape)
        if getattr(parameter, "tensor_model_parallel", False):
            shape[parameter.partition_dim] *= tp
        generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little"))
        values = torch.empty(shape, dtype=torch.float64).normal_(0.0, 0.3, generator=generator)
        if "layernorm" in name and name.endswith("weight"):
            values = 1 + 0.1 * values
        parameter.data.copy_(_shard(values, parameter))


def provide(case: Case, *, config: Any, pre_process: bool, post_process: bool, **placement: Any) -> torch.nn.Module:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(
            num_experts=config.num_moe_experts, moe_grouped_gemm=False if case.moe else None
        ),
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        pre_process=pre_process,
        post_process=post_process,
        share_embeddings_and_output_weights=case.tied,
        **placement,
    )
    if case.dtype == "float64":
        model.double()  # megatron-core makes its norms float32.
    fill(model, case.tp)
    return model


def batch(replica: int, step: int, micro_batch: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100000 * step + 1000 * replica + micro_batch)
    text = torch.randint(0, VOCABULARY, (MICRO_BATCH, SEQUENCE + 1), generator=generator)
    return {"tokens": text[:, :-1].contiguous(), "labels": text[:, 1:].contiguous(), "mask": token_mask(micro_batch)}


def token_mask(micro_batch: int) -> torch.Tensor:
    """[MICRO_BATCH, SEQUENCE] of 0 and 1. Micro-batches k and k + 4 complement each other.

    Eight count half of their tokens, a power of two: Megatron divides by a count in float32, which holds the inverse of
    no other exactly.
    """
    generator = torch.Generator().manual_seed(micro_batch % 4)
    chosen = torch.rand(MICRO_BATCH, SEQUENCE, generator=generator) < 0.7
    return (chosen if micro_batch % 8 < 4 else ~chosen).float()


def batches(case: Case, replica: int) -> Iterator[dict[str, torch.Tensor]]:
    for step in range(1000):
        for k in range(case.num_microbatches):
            yield batch(replica, step, k)


def exact_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy [b, s] in the dtype of the logits [b, s, vocabulary / tp]; Megatron's own computes in float32."""
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

    whole = gather_from_tensor_model_parallel_region(logits)
    return torch.nn.functional.cross_entropy(whole.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)


def loss_function(kind: str, given: dict[str, torch.Tensor], output: torch.Tensor, non_loss_data: bool = False) -> Any:
    if non_loss_data:
        return output.detach().clone()
    if kind in ("mean", "exact"):
        loss = (exact_losses(output, given["labels"]) if kind == "exact" else output).mean()
        return loss, {"lm loss": loss.detach().clone()}
    mask = given["mask"]
    total, tokens = (output * mask).sum(), mask.sum().to(torch.int)
    reported = torch.stack([total.detach(), tokens.to(total.dtype)])
    return total.clone(), tokens, {"lm loss": reported}


def forward_step(
    case: Case, data_iterator: Iterator[Any], model: torch.nn.Module, return_schedule_plan: bool = False
) -> tuple[Any, Callable[..., Any]]:
    given = next(data_iterator)
    positions = torch.arange(SEQUENCE).expand_as(given["tokens"])
    mask = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)
    run = model.build_schedule_plan if return_schedule_plan else model
    output = run(given["tokens"], positions, mask, labels=None if case.loss == "exact" else given["labels"])
    return output, functools.partial(loss_function, case.loss, given)


def reported_loss(case: Case, entry: dict[str, torch.Tensor]) -> float:
    value = entry["lm loss"].double()
    return float(value) if value.dim() == 0 else float(value[0] / value[1])


# ---------------------------------------------------------------------------------------------------- the whole model


def run_whole(case: Case) -> Outcome:
    """Of a case.whole(), in a world of one: losses of the last step, gradients of the global loss."""
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.moe.router import MoEAuxLossAutoScaler

    config = make_config(case)
    model = provide(case, config=config, pre_process=True, post_process=True)
    half = case.dtype in ("bfloat16", "float16")
    runner = Float16Module(config, model) if half else model
    sums = {name: torch.zeros(p.shape, dtype=torch.float32) for name, p in model.named_parameters()} if half else {}
    losses: list[float] = []
    last = case.steps - 1
    steps = range(case.steps) if case.accumulate else [last]
    weights = [batch(r, last, k)["mask"].sum() for r in range(case.dp) for k in range(case.num_microbatches)]
    count = case.num_microbatches * case.dp
    scale = 1.0 if case.loss == "per_token" else 1.0 / count
    for step, replica in itertools.product(steps, range(case.dp)):
        for k in range(case.num_microbatches):
            MoEAuxLossAutoScaler.set_loss_scale(torch.tensor(scale))
            output, function = forward_step(case, iter([batch(replica, step, k)]), runner)
            result = function(output)
            loss, entry = result[0], result[-1]
            if case.loss == "tokens":
                loss = loss / result[1]
            if step == last:
                losses.append(reported_loss(case, entry))
            (loss * scale * case.grad_scale).backward()
            for name, parameter in model.named_parameters():
                if half and parameter.grad is not None:
                    sums[name] += parameter.grad.float()
                    parameter.grad = None
    divisor = float(sum(weights)) if case.loss == "per_token" else 1.0
    gradients = sums or {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return Outcome(losses, {name: (g / divisor).double().numpy() for name, g in gradients.items()}, {})


# -------------------------------------------------------------------------------------------------- the pipeline's run


def _wrap(case: Case, config: Any, chunks: list[torch.nn.Module]) -> list[torch.nn.Module]:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.transformer.module import Float16Module

    if config.bf16 or config.fp16:
        chunks = [Float16Module(config, chunk) for chunk in chunks]
    if not case.ddp:
        return chunks
    settings = DistributedDataParallelConfig(
        overlap_grad_reduce=case.ddp == "overlap",
        grad_reduce_in_fp32=config.bf16,
        bucket_size=_BUCKET,
    )
    config.finalize_model_grads_func = finalize_model_grads
    return [DistributedDataParallel(config, settings, chunk) for chunk in chunks]


def _gradients(chunks: list[torch.nn.Module]) -> dict[str, numpy.ndarray]:
    from dualpipe.megatron.gradients import gradient_of
    from megatron.core.utils import get_attr_wrapped_model

    found: dict[str, numpy.ndarray] = {}
    for chunk in chunks:
        model = get_attr_wrapped_model(chunk, "pre_process", return_model_obj=True)
        for name, parameter in global_names(model).items():
            gradient = gradient_of(parameter)
            if gradient is not None:
                found[name] = gradient.double().numpy().copy()
    return found


def run_case(case: Case) -> Outcome:
    """In every rank of a world of case.world_size."""
    from dualpipe.megatron import build_chunks, get_forward_backward_func
    from megatron.core import parallel_state

    config = make_config(case)
    if case.grad_scale != 1.0:
        config.grad_scale_func = lambda loss: loss * case.grad_scale
    chunks = _wrap(case, config, build_chunks(case.schedule, functools.partial(provide, case), config))
    replica = parallel_state.get_data_parallel_rank()
    iterators = [batches(case, replica) for _ in chunks]
    function = get_forward_backward_func(case.schedule, overlap_layers=case.plan)
    arguments: dict[str, Any] = dict(
        forward_step_func=functools.partial(forward_step, case),
        data_iterator=iterators,
        model=chunks,
        num_microbatches=case.num_microbatches,
        seq_length=SEQUENCE,
        micro_batch_size=MICRO_BATCH,
    )
    losses: list[Any] = []
    for step in range(case.steps):
        for chunk in chunks if step == 0 or not case.accumulate else ():
            chunk.zero_grad_buffer() if case.ddp else chunk.zero_grad()
        losses = function(**arguments)
    outcome = Outcome([reported_loss(case, entry) for entry in losses], _gradients(chunks), {})
    if case.watch:
        outcome.notes = _WATCHERS[case.watch](case, config, chunks, function, arguments)
    return outcome


def _watch_evaluation(case: Case, config: Any, chunks: Any, function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Losses and outputs of evaluations; gradients and parameters stay as they are."""
    before = _gradients(chunks)
    arguments = {**arguments, "data_iterator": [batches(case, 0) for _ in chunks], "forward_only": True}
    with torch.no_grad():
        losses = function(**arguments)
    arguments["data_iterator"] = [batches(case, 0) for _ in chunks]
    with torch.no_grad():
        outputs = function(**arguments, collect_non_loss_data=True)
    after = _gradients(chunks)
    return {
        "losses": [reported_loss(case, entry) for entry in losses],
        "means": [float(output.mean()) for output in outputs],
        "gradients_stayed": all(numpy.array_equal(before[name], after[name]) for name in before),
    }


def _watch_optimizer(case: Case, config: Any, chunks: Any, function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Megatron's norm, and its step: copies of a parameter stay equal."""
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=0.01, clip_grad=0.0), chunks)
    optimizer.step()
    weights = {}
    for chunk in chunks:
        inner = chunk
        while hasattr(inner, "module"):
            inner = inner.module
        weights.update({name: value.detach().double().numpy().copy() for name, value in global_names(inner).items()})
    return {"norm": float(optimizer.get_grad_norm()), "weights": weights}


def _watch_expert_bias(
    case: Case, config: Any, chunks: Any, function: Any, arguments: dict[str, Any]
) -> dict[str, Any]:
    """By layer, what a step has moved the router's biases by."""
    layers = [module for chunk in chunks for module in chunk.modules() if hasattr(module, "router")]
    return {str(layer.layer_number): layer.router.expert_bias.tolist() for layer in layers}


def _watch_router_counts(
    case: Case, config: Any, chunks: Any, function: Any, arguments: dict[str, Any]
) -> dict[str, Any]:
    """By layer, the tokens of each expert that its router has counted and nobody has taken yet."""
    layers = [module for chunk in chunks for module in chunk.modules() if hasattr(module, "router")]
    return {str(layer.layer_number): layer.router.local_tokens_per_expert.tolist() for layer in layers}


def _watch_order(case: Case, config: Any, chunks: Any, function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the engine ran, and how pairs ran."""
    statistics = function.statistics()
    return {"cells": [span[0] for span in statistics.spans], "overlapped": statistics.overlapped_pairs}


def _watch_buckets(case: Case, config: Any, chunks: Any, function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The order in which reductions of another step begin and are awaited, and how many buckets there are."""
    groups = [group for chunk in chunks for group in chunk.bucket_groups + chunk.expert_parallel_bucket_groups]
    events: list[str] = []

    def logged(group: Any, event: str) -> Callable[..., None]:
        method = getattr(group, event)

        def call(*args: Any, **kwargs: Any) -> None:
            before = group.grad_reduce_handle
            method(*args, **kwargs)
            if group.grad_reduce_handle is not before:  # Megatron also calls what then does nothing.
                events.append(event)

        return call

    for group in groups:
        for event in ("start_grad_sync", "finish_grad_sync"):
            setattr(group, event, logged(group, event))
    for chunk in chunks:
        chunk.zero_grad_buffer()
    function(**{**arguments, "data_iterator": [batches(case, 0) for _ in chunks]})
    return {"events": events, "buckets": len(groups)}


_WATCHERS: dict[str, Callable[..., dict[str, Any]]] = {
    "buckets": _watch_buckets,
    "evaluation": _watch_evaluation,
    "expert_bias": _watch_expert_bias,
    "optimizer": _watch_optimizer,
    "order": _watch_order,
    "router_counts": _watch_router_counts,
}


def run_cases(cases: list[Case]) -> list[Outcome]:
    """One case after another in this process, which belongs to an initialised world."""
    cpu_shim.install()
    torch.set_num_threads(1)
    from megatron.core import parallel_state

    outcomes = []
    for case in cases:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=case.tp,
            pipeline_model_parallel_size=case.pp,
            expert_model_parallel_size=case.ep,
        )
        try:
            outcomes.append(run_whole(case) if case.schedule == "whole" else run_case(case))
        except Exception:
            outcomes.append(Outcome([], {}, {}, traceback.format_exc()))
        parallel_state.destroy_model_parallel()
        dist.barrier()
    return outcomes


def difference(found: numpy.ndarray, wanted: numpy.ndarray) -> float:
    """|found - wanted| / |wanted|."""
    scale = float(numpy.linalg.norm(wanted))
    return float(numpy.linalg.norm(found - wanted)) / (scale or 1.0)


def shard_of(whole: numpy.ndarray, part: numpy.ndarray, rank: int, size: int) -> numpy.ndarray:
    """The tensor-parallel part of a gradient that has `part`'s shape."""
    for axis in range(whole.ndim):
        if whole.shape[axis] != part.shape[axis]:
            return numpy.split(whole, size, axis)[rank]
    return whole


