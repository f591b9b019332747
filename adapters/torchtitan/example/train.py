"""Trains torchtitan's Llama 3 debug model through its pipelining function, in a loop of its own.

    torchrun --nproc-per-node 4 train.py

SCHEDULE names a schedule, OUTPUT a folder for metrics.jsonl. Data parallel is what PIPELINE leaves of the processes.
"""

import json
import os
import time

import torch
import torch.distributed as dist
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.tools.utils import device_type

SCHEDULE, OUTPUT = os.environ.get("SCHEDULE", "Interleaved1F1B"), os.environ.get("OUTPUT")
STEPS, ROWS, SEQUENCE, LR, CLIP = int(os.environ.get("STEPS", "8")), 8, 32, 1e-3, 1.0


def batch_of(step, replica):
    """The batch of a replica, the same on every rank of its pipeline: mostly, a token follows from the one before."""
    generator = torch.Generator().manual_seed(1000 * step + replica)
    shape = (ROWS, SEQUENCE + 1)
    jumps = torch.randint(2048, shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.1)
    tokens = (7 * torch.arange(SEQUENCE + 1) + jumps.cumsum(1)) % 256
    return tokens[:, :-1], tokens[:, 1:]


def global_norm(parameters, parallel_dims):
    """Of the whole model, whose stages the pipeline's ranks share."""
    square = torch.nn.utils.get_total_norm([p.grad.double() for p in parameters]).full_tensor().square()
    dist.all_reduce(square, group=parallel_dims.get_mesh("pp").get_group())
    return square.sqrt().item()


class MetricsFile:
    """Rank 0 appends a line per step to metrics.jsonl."""

    def __init__(self):
        self.file = open(os.path.join(OUTPUT, "metrics.jsonl"), "w") if OUTPUT and dist.get_rank() == 0 else None

    def record(self, **metrics):
        if self.file:
            print(json.dumps(metrics), file=self.file, flush=True)


def build(device, parallel_dims, parallelism):
    """What pipelining_fn gives, of a model whose weights do not depend on the schedule."""
    spec = model_registry("debugmodel")
    for layer in spec.model.layers:  # No documents in these batches: causal attention, no block masks.
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    torch.manual_seed(0)
    with torch.device(device):
        model = spec.model.build()
        model.init_weights(buffer_device=device)
    training = TrainingConfig(local_batch_size=ROWS, seq_len=SEQUENCE, mixed_precision_param="float32", max_norm=CLIP)
    return spec.pipelining_fn(
        model, parallel_dims=parallel_dims, training=training, parallelism=parallelism,
        compile_config=CompileConfig(enable=False), ac_config=None, dump_folder=OUTPUT or ".", device=device,
        model_config=spec.model, parallelize_fn=spec.parallelize_fn, loss_fn=CrossEntropyLoss.Config().build())


def main():
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    device = torch.device(device_type, int(os.environ["LOCAL_RANK"])) if device_type == "cuda" else torch.device("cpu")
    size = int(os.environ.get("PIPELINE", dist.get_world_size()))
    parallelism = ParallelismConfig(pipeline_parallel_degree=size, pipeline_parallel_schedule=SCHEDULE,
                                    pipeline_parallel_first_stage_less_layers=1,
                                    pipeline_parallel_last_stage_less_layers=1, spmd_backend="partial_dtensor")
    parallel_dims = ParallelDims.from_config(parallelism, dist.get_world_size())
    parallel_dims.build_mesh()
    schedule, parts, has_first, has_last = build(device, parallel_dims, parallelism)
    replica = dist.get_rank() % parallel_dims.dp_shard
    tokens_of_all = torch.tensor(float(ROWS * SEQUENCE * parallel_dims.dp_shard), device=device)
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=LR)
    log = MetricsFile()
    for step in range(1, STEPS + 1):
        began = time.perf_counter()
        tokens, labels = (t.to(device) for t in batch_of(step, replica))
        losses = []
        schedule.step(*([tokens] if has_first else []), losses=losses, target=labels if has_last else None,
                      loss_kwargs={"global_valid_tokens": tokens_of_all}, return_outputs=False)
        total = torch.stack([sum(losses, torch.zeros((), device=device)).detach(),
                             torch.tensor(float(bool(losses)), device=device)])
        dist.all_reduce(total)
        norm = global_norm(parameters, parallel_dims)
        for p in parameters:
            p.grad.mul_(min(1.0, CLIP / (norm + 1e-6)))
        optimizer.step()
        optimizer.zero_grad()
        loss, ms = (total[0] / total[1] * parallel_dims.dp_shard).item(), 1e3 * (time.perf_counter() - began)
        log.record(iteration=step, lm_loss=loss, grad_norm=norm, lr=LR, ms=ms)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss:.4f}, gradient norm {norm:.4f}, {ms:.0f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
