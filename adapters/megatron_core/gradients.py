"""From what the chunks computed to what Megatron's optimizer expects: mirrors and tied weights summed, tokens counted,
`config.finalize_model_grads_func` called as the built-in schedules call it.

Gradients are `main_grad` where DistributedDataParallel made buffers, else `.grad`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.utils import get_attr_wrapped_model

from .placement import ChunkPlacement

# What a router counts over a global batch, of which each mirror has seen its half.
_ROUTER_COUNTS: tuple[str, ...] = ("local_tokens_per_expert", "qb_beta_accum", "qb_beta_count")
_BUCKET_BYTES = 64 << 20


def placement_of(chunk: torch.nn.Module) -> ChunkPlacement:
    """How a (wrapped) chunk was placed; raises `ValueError` for one that `build_chunks` did not build."""
    try:
        return get_attr_wrapped_model(chunk, "dualpipe_placement")
    except RuntimeError:
        raise ValueError(
            "[model] chunks must come from dualpipe.megatron.build_chunks under this schedule, got one that did not; "
            "for example build_chunks('dualpipev', provider, config)"
        ) from None


def main_grad_of(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """The buffer that DistributedDataParallel made for a parameter's gradient; None without it."""
    return getattr(parameter, "main_grad", None)


def gradient_of(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """The tensor that holds a parameter's gradient; None where nothing was computed."""
    main_grad = main_grad_of(parameter)
    return parameter.grad if main_grad is None else main_grad


def _gradients(chunk: torch.nn.Module) -> list[torch.Tensor]:
    """Of every trained parameter, in the order of names; those that nothing was computed for are made zeros."""
    gradients = []
    for parameter in chunk.parameters():
        if not parameter.requires_grad:
            continue
        if gradient_of(parameter) is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(gradient_of(parameter))
    return gradients


def router_counts(chunk: torch.nn.Module) -> list[torch.Tensor]:
    """Buffers of a chunk's routers that count over a global batch."""
    counts = []
    for module in chunk.modules():
        found = (getattr(module, name, None) for name in _ROUTER_COUNTS)
        counts += [count for count in found if isinstance(count, torch.Tensor)]
    return counts


def _buckets(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Neighbours of one dtype, up to _BUCKET_BYTES (a larger tensor is a bucket of its own)."""
    buckets: list[list[torch.Tensor]] = []
    size = 0
    for tensor in tensors:
        size += tensor.nbytes
        if not buckets or buckets[-1][0].dtype != tensor.dtype or size > _BUCKET_BYTES:
            buckets.append([])
            size = tensor.nbytes
        buckets[-1].append(tensor)
    return buckets


def exchange(sent: torch.Tensor, peer: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Sends a contiguous tensor to `peer` of the group and returns the peer's, of the same shape and dtype."""
    received = torch.empty_like(sent)
    send = dist.P2POp(dist.isend, sent, group=group, group_peer=peer)
    receive = dist.P2POp(dist.irecv, received, group=group, group_peer=peer)
    order = [send, receive] if group.rank() < peer else [receive, send]
    for work in dist.batch_isend_irecv(order):
        work.wait()
    return received


def _add_from_mirror(tensors: Sequence[torch.Tensor], peer: int, group: dist.ProcessGroup) -> None:
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        flat += exchange(flat, peer, group)
        for tensor, total in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
            tensor.copy_(total.view_as(tensor))


@torch.no_grad()
def sum_mirrors(chunks: Sequence[torch.nn.Module], group: dist.ProcessGroup) -> None:
    """Adds up the halves of the two copies of each stage (dualpipe), and what their routers counted.

    Collective over the pipeline; both copies end with equal bits. Before any data-parallel reduction.
    """
    peer = group.size() - 1 - group.rank()
    for chunk in sorted(chunks, key=lambda chunk: placement_of(chunk).stage):
        _add_from_mirror(_gradients(chunk) + router_counts(chunk), peer, group)


@torch.no_grad()
def sum_tied_weights(chunks: Sequence[torch.nn.Module]) -> None:
    """Gives the embedding and the output head's copy of it, where one rank holds both, the sum of their gradients."""
    tied = tied_weights(chunks)
    if tied is None:
        return
    first, last = (gradient_of(weight) for weight in tied)
    if first is None or last is None:
        return
    first += last
    last.copy_(first)


def tied_weights(chunks: Sequence[torch.nn.Module]) -> tuple[torch.nn.Parameter, torch.nn.Parameter] | None:
    """Embedding weight and the head's copy, where the model ties them and this rank holds both in two chunks."""
    ends = {}
    for chunk in chunks:
        placement = placement_of(chunk)
        if placement.is_first != placement.is_last:
            ends[placement.is_first] = get_attr_wrapped_model(chunk, "pre_process", return_model_obj=True)
    if len(ends) < 2 or not getattr(ends[True], "share_embeddings_and_output_weights", False):
        return None
    return ends[True].embedding.word_embeddings.weight, ends[False].output_layer.weight


def total_tokens(tokens: Sequence[torch.Tensor], device: torch.device, group: dist.ProcessGroup) -> torch.Tensor:
    """Tokens that the loss functions of this pipeline counted, over all its ends. Collective over the pipeline."""
    total = torch.zeros([], dtype=torch.int, device=device)
    for count in tokens:
        total += count.to(device=device, dtype=torch.int)
    dist.all_reduce(total, group=group)
    return total
