"""Builds the model's chunks where a schedule wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .gradients import placement_of, tied_weights
from .placement import ChunkSpec, chunk_specs, group_collection
from .refusals import check_config
from .seams import check_seams

ModelProvider = Callable[..., torch.nn.Module]


def build_chunk(provider: ModelProvider, spec: ChunkSpec) -> torch.nn.Module:
    """Calls `provider(config=, pre_process=, post_process=, vp_stage=, pg_collection=)` for one chunk.

    What it returns carries its placement as `dualpipe_placement`, except under the built-in schedules.
    """
    chunk = provider(
        config=spec.config,
        pre_process=spec.pre_process,
        post_process=spec.post_process,
        vp_stage=spec.vp_stage,
        pg_collection=spec.pg_collection,
    )
    if spec.placement is not None:
        chunk.dualpipe_placement = spec.placement
    return chunk


def _state(chunk: torch.nn.Module) -> list[torch.Tensor]:
    return [*chunk.parameters(), *chunk.buffers()]


def message_device(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.device:
    """Where a tensor has to be for a message of the group: where it is, or on the device that the group has."""
    served = {known.type for known in group._device_types}
    if tensor.device.type in served:
        return tensor.device
    return torch.device("cuda", torch.cuda.current_device()) if "cuda" in served else torch.device(min(served))


@torch.no_grad()
def copy_to_mirrors(chunks: Sequence[torch.nn.Module], group: dist.ProcessGroup) -> None:
    """Second copies of a stage (dualpipe) get the weights and buffers of the first. Collective over the pipeline.

    Chunks may be on another device than the group's messages (on the CPU, say, beside NCCL).
    """
    own, mirrored = sorted(chunks, key=lambda chunk: placement_of(chunk).is_mirror)
    last = group.size() - 1
    for sender in (min(group.rank(), last - group.rank()), max(group.rank(), last - group.rank())):
        for tensor in _state(own if sender == group.rank() else mirrored):
            device = message_device(tensor, group)
            if sender == group.rank():
                dist.send(tensor.to(device).contiguous(), group=group, group_dst=last - sender)
            else:
                received = torch.empty_like(tensor, device=device, memory_format=torch.contiguous_format)
                dist.recv(received, group=group, group_src=sender)
                tensor.copy_(received)


@torch.no_grad()
def tie_weights(chunks: Sequence[torch.nn.Module]) -> None:
    """Copies a tied embedding into the output head that megatron-core made for it, where this rank holds both."""
    tied = tied_weights(chunks)
    if tied is not None:
        tied[1].copy_(tied[0])


def _mark_mirrors(chunks: Sequence[torch.nn.Module]) -> None:
    """Megatron's norm and its count of zeros leave out parameters that are marked as shared."""
    for chunk in chunks:
        if placement_of(chunk).is_mirror:
            for parameter in chunk.parameters():
                parameter.shared = True


def build_chunks(schedule: str, provider: ModelProvider, config: Any, groups: Any = None) -> list[torch.nn.Module]:
    """The chunks of this rank under `schedule`, in chunk order, ready to be wrapped (Float16Module, DDP).

    Args: `provider` builds one chunk (see `build_chunk`), `config` is the host's TransformerConfig with the real
    pipeline size, `groups` a ProcessGroupCollection, by default that of `parallel_state`. Collective over the pipeline.
    Raises `ValueError` for what the schedule cannot be combined with.

    Both copies of a stage start from the same weights, whatever `provider` initialised them to, and so do a tied
    embedding and head; loading a checkpoint afterwards has to load both.
    """
    check_seams()
    groups = groups or group_collection()
    specs = chunk_specs(schedule, config, groups)
    if specs[0].placement is not None:
        check_config(schedule, config)
    chunks = [build_chunk(provider, spec) for spec in specs]
    if schedule == "dualpipe":
        copy_to_mirrors(chunks, groups.pp)
        _mark_mirrors(chunks)
    if specs[0].placement is not None:
        tie_weights(chunks)
    return chunks
