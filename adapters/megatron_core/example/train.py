"""Trains a small GPT with mixture-of-experts layers on Megatron-Core: pipeline, expert and data parallelism.

    torchrun --nproc-per-node 2 train.py --pipeline-model-parallel-size 2

Runs Megatron's 1F1B, with --virtual-pipeline-model-parallel-size its interleaved 1F1B. Every rank that data parallelism
gives other samples reads its own; initial weights depend on the seed and on what a parameter is, not on the division.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

VOCABULARY = 64


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pipeline-model-parallel-size", type=int, default=2)
    parser.add_argument("--virtual-pipeline-model-parallel-size", type=int)
    parser.add_argument("--expert-model-parallel-size", type=int, default=1)
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=32)
    parser.add_argument("--num-experts", type=int, default=4)
    parser.add_argument("--seq-length", type=int, default=16)
    parser.add_argument("--micro-batch-size", type=int, default=2)
    parser.add_argument("--num-microbatches", type=int, default=8)
    parser.add_argument("--train-iters", type=int, default=10)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--output", default="output")
    return parser.parse_args()


def initialize(args: argparse.Namespace) -> torch.device:
    use_cuda = torch.cuda.is_available()
    if use_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if use_cuda else "gloo")
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
    )
    if use_cuda:
        tensor_parallel.model_parallel_cuda_manual_seed(args.seed)
    return torch.device("cuda" if use_cuda else "cpu")


def make_config(args: argparse.Namespace) -> TransformerConfig:
    return TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        num_attention_heads=4,
        num_moe_experts=args.num_experts,
        moe_router_topk=2,
        moe_aux_loss_coeff=1e-2,
        moe_token_dispatcher_type="alltoall",
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        add_bias_linear=False,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        batch_p2p_comm=False,
        batch_p2p_sync=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
    )


def initialize_weights(model: GPTModel, seed: int) -> None:
    first_layer = model.decoder.layers[0].layer_number - 1
    experts = model.config.num_moe_experts // model.config.expert_model_parallel_size
    first_expert = parallel_state.get_expert_model_parallel_rank() * experts
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        name = re.sub(r"(?<=layers\.)\d+", lambda found: str(int(found[0]) + first_layer), name)
        name = re.sub(r"(?<=experts\.)\d+", lambda found: str(int(found[0]) + first_expert), name)
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))
        values = torch.empty(parameter.shape).normal_(0.0, 0.02, generator=generator)
        parameter.data.copy_(values)


def model_provider(
    args: argparse.Namespace, *, config: TransformerConfig, pre_process: bool, post_process: bool, **placement: object
) -> GPTModel:
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(num_experts=args.num_experts, moe_grouped_gemm=False),
        vocab_size=VOCABULARY,
        max_sequence_length=args.seq_length,
        pre_process=pre_process,
        post_process=post_process,
        **placement,
    )
    initialize_weights(model, args.seed)
    return model


def build_chunks(provider: functools.partial, config: TransformerConfig) -> list[GPTModel]:
    chunks = []
    for vp_stage in range(config.virtual_pipeline_model_parallel_size or 1):
        virtual = vp_stage if config.virtual_pipeline_model_parallel_size else None
        ends = {"ignore_virtual": False, "vp_stage": virtual}
        first = parallel_state.is_pipeline_first_stage(**ends)
        last = parallel_state.is_pipeline_last_stage(**ends)
        chunks.append(provider(config=config, pre_process=first, post_process=last, vp_stage=virtual))
    return chunks


def samples(args: argparse.Namespace, device: torch.device) -> Iterator[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(args.seed + parallel_state.get_data_parallel_rank())
    shape = (args.micro_batch_size, args.seq_length + 1)
    while True:
        start = torch.randint(0, VOCABULARY, (args.micro_batch_size, 1), generator=generator)
        step = torch.randint(1, 4, (args.micro_batch_size, 1), generator=generator)
        text = (start + step * torch.arange(shape[1])).remainder(VOCABULARY).to(device)
        yield {"tokens": text[:, :-1].contiguous(), "labels": text[:, 1:].contiguous()}


def loss_func(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.float().mean()
    return loss, {"lm loss": loss.detach().clone()}


def forward_step(data_iterator: Iterator[dict[str, torch.Tensor]], model: torch.nn.Module) -> tuple:
    batch = next(data_iterator)
    tokens = batch["tokens"]
    length = tokens.size(1)
    positions = torch.arange(length, device=tokens.device).expand_as(tokens)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=tokens.device).triu(1)
    return model(tokens, positions, mask, labels=batch["labels"]), loss_func


def mean_loss(losses: list[dict[str, torch.Tensor]], device: torch.device) -> float:
    loss = torch.zeros(1, device=device)
    if parallel_state.is_pipeline_last_stage(ignore_virtual=True):
        loss += torch.stack([entry["lm loss"] for entry in losses]).mean()
        dist.all_reduce(loss, group=parallel_state.get_data_parallel_group())
        loss /= parallel_state.get_data_parallel_world_size()
    source = parallel_state.get_pipeline_model_parallel_last_rank()
    dist.broadcast(loss, source, group=parallel_state.get_pipeline_model_parallel_group())
    return loss.item()


class RunLog:
    """metrics.jsonl in the output folder, by rank 0."""

    def __init__(self, output: str) -> None:
        Path(output).mkdir(parents=True, exist_ok=True)
        self._file = open(Path(output) / "metrics.jsonl", "w") if dist.get_rank() == 0 else None

    def record(self, **values: float) -> None:
        if self._file:
            print(json.dumps(values), file=self._file, flush=True)
            print(f"iteration {values['iteration']} | lm loss {values['lm_loss']:.6f} | {values['ms']:.1f} ms")


def main() -> None:
    args = parse_arguments()
    device = initialize(args)
    config = make_config(args)
    chunks = build_chunks(functools.partial(model_provider, args), config)
    ddp = DistributedDataParallelConfig(overlap_grad_reduce=True)
    model = [DistributedDataParallel(config, ddp, chunk.to(device), disable_bucketing=True) for chunk in chunks]
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = [chunk.no_sync for chunk in model] if len(model) > 1 else model[0].no_sync
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=args.lr, clip_grad=0.0), model)
    iterators = [samples(args, device) for _ in model]
    forward_backward = get_forward_backward_func()
    log = RunLog(args.output)

    for iteration in range(1, args.train_iters + 1):
        began = time.perf_counter()
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step,
            data_iterator=iterators,
            model=model,
            num_microbatches=args.num_microbatches,
            seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size,
        )
        optimizer.step()
        loss, norm = mean_loss(losses, device), float(optimizer.get_grad_norm())
        ms = (time.perf_counter() - began) * 1e3
        log.record(iteration=iteration, lm_loss=loss, grad_norm=norm, lr=args.lr, ms=ms)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
