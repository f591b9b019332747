"""Trains a small transformer with torch.distributed.pipelining, each micro-batch through all ranks.

    torchrun --nproc-per-node 4 train.py

SCHEDULE names one of torch's schedules, OUTPUT a folder for metrics.jsonl.
"""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

SCHEDULE, OUTPUT = os.environ.get("SCHEDULE", "Interleaved1F1B"), os.environ.get("OUTPUT")
STEPS, LAYERS, HIDDEN, HEADS, VOCABULARY, SEQUENCE = int(os.environ.get("STEPS", "12")), 6, 32, 4, 96, 16
MICRO_BATCHES, ROWS, LR, CLIP = 8, 4, 3e-3, 1.0


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))

    def forward(self, x):
        heads = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def build_layer(index):
    """One of the model's LAYERS + 2 parts; its weights depend on its index alone."""
    torch.manual_seed(index)
    if index == 0:
        return nn.Embedding(VOCABULARY, HIDDEN)
    return Block() if index <= LAYERS else nn.Linear(HIDDEN, VOCABULARY)


def build_stage(stage, num_stages):
    bounds = [round(s * (LAYERS + 2) / num_stages) for s in (stage, stage + 1)]
    return nn.Sequential(*(build_layer(index) for index in range(*bounds)))


def batch_of(step):
    """The whole batch, the same on every rank: each token follows from the one before, most of the time."""
    generator = torch.Generator().manual_seed(step)
    shape = (MICRO_BATCHES * ROWS, SEQUENCE + 1)
    jumps = torch.randint(VOCABULARY, shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.1)
    tokens = (7 * torch.arange(SEQUENCE + 1) + jumps.cumsum(1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def global_norm(stages):
    """Of the whole model, whose stages the ranks share."""
    squares = sum(p.grad.square().sum() for stage in stages for p in stage.submod.parameters())
    dist.all_reduce(squares)
    return squares.sqrt().item()


class MetricsFile:
    """Rank 0 appends a line per step to metrics.jsonl."""

    def __init__(self):
        self.file = open(os.path.join(OUTPUT, "metrics.jsonl"), "w") if OUTPUT and dist.get_rank() == 0 else None

    def record(self, **metrics):
        if self.file:
            print(json.dumps(metrics), file=self.file, flush=True)


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    mine, num_stages = ([rank], size) if SCHEDULE in ("1F1B", "GPipe") else ([rank, size + rank], 2 * size)
    stages = [PipelineStage(build_stage(s, num_stages).to(device), s, num_stages, device) for s in mine]
    given = stages if len(stages) > 1 else stages[0]
    schedule = get_schedule_class(SCHEDULE)(given, MICRO_BATCHES, loss_fn=loss_of)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=LR)
    log = MetricsFile()
    for step in range(1, STEPS + 1):
        began = time.perf_counter()
        tokens, labels = (t.to(device) for t in batch_of(step))
        losses = []
        schedule.step(*([tokens] if any(s.is_first for s in stages) else []),
                      target=labels if any(s.is_last for s in stages) else None, losses=losses, return_outputs=False)
        total = torch.tensor([sum(loss.item() for loss in losses), len(losses)], dtype=torch.float64, device=device)
        dist.all_reduce(total)
        norm = global_norm(stages)
        for p in parameters:
            p.grad.mul_(min(1.0, CLIP / (norm + 1e-6)))
        optimizer.step()
        optimizer.zero_grad()
        loss, ms = (total[0] / total[1]).item(), 1e3 * (time.perf_counter() - began)
        log.record(iteration=step, lm_loss=loss, grad_norm=norm, lr=LR, ms=ms)
        if rank == 0:
            print(f"step {step}: loss {loss:.4f}, gradient norm {norm:.4f}, {ms:.0f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
