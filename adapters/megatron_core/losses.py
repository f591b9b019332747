"""Losses where Megatron expects them: on the last rank of the pipeline, in the order of the micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree


def _moved(value: Any, device: torch.device | str) -> Any:
    return pytree.tree_map(lambda leaf: leaf.detach().to(device) if isinstance(leaf, torch.Tensor) else leaf, value)


def gather_losses(
    results: Mapping[int, Any], elsewhere: bool, group: dist.ProcessGroup, device: torch.device
) -> list[Any]:
    """Moves what loss functions returned to the pipeline's last rank.

    `results` are those of this rank, by micro-batch; `elsewhere`: rank 0 has some too. Collective over ranks 0 and the
    last, no others. Returns all of them on the last rank, [] on the others. Tensors arrive on `device`.
    """
    rank, last = group.rank(), group.size() - 1
    found = dict(results)
    if elsewhere and last > 0 and rank == 0:
        dist.send_object_list([_moved(found, "cpu")], group=group, group_dst=last)
    if elsewhere and last > 0 and rank == last:
        received: list[Any] = [None]
        dist.recv_object_list(received, group=group, group_src=0)
        found.update(_moved(received[0], device))
    return [found[k] for k in sorted(found)] if rank == last else []
