"""Messages between two ranks of a pipeline beside the engine's own: losses of the two ends, shards of mirrors.

They run between steps, when the engine has nothing under way, on the host's pipeline group. The tag is below the
engine's, which all have bit 30 set; NCCL, which ignores tags, has groups of its own in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_TAG = 0x0D0A


class Link:
    """This rank and one other of ``group``. ``peer`` is a rank of the group."""

    def __init__(self, group: dist.ProcessGroup, peer: int) -> None:
        self._group = group
        self.peer = peer
        self.is_lower = dist.get_rank(group) < peer

    def swap(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Collective over the two: gives the other rank's tensors, which have the shapes and dtypes of these."""
        received = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]
        self.exchange(tensors, received)
        return received

    def exchange(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> None:
        """Collective over the two: ``outgoing`` here fills ``incoming`` there, contiguous tensors of equal shapes."""
        operations = [self._operation(dist.isend, tensor.contiguous(), i) for i, tensor in enumerate(outgoing)]
        operations += [self._operation(dist.irecv, tensor, i) for i, tensor in enumerate(incoming)]
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()

    def _operation(self, operation: Callable[..., Any], tensor: Tensor, index: int) -> dist.P2POp:
        return dist.P2POp(operation, tensor, group=self._group, group_peer=self.peer, tag=_TAG + index)
