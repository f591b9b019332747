"""DualPipe: two copies of the model, whose micro-batches travel in opposite directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from dualpipe._reference import ReferencePipeline


class DualPipe(ReferencePipeline):
    """The bidirectional schedule with the reference's face. Rank r holds stage r and stage P-1-r, in that order.

    step() takes the first half of the micro-batches on the first rank and the second half on the last one; labels and
    losses of each half are on the other end. P is even, num_chunks is even and at least 2 P.

    Each mirror (rank r and rank P-1-r hold the same two stages) keeps the gradients of its own half of the
    micro-batches, as in the reference: the sum is the caller's, or `reduce_mirrors=True`.
    """

    schedule = "dualpipe"

    def __init__(
        self,
        modules: Sequence[nn.Module],
        batch_dim: int = 0,
        process_group: dist.ProcessGroup | None = None,
        rank_mapping: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        """See ReferencePipeline."""
        super().__init__(modules, batch_dim, process_group, rank_mapping, **options)
        self.is_in_second_half = self.rank >= self.num_ranks // 2
        self.is_middle_rank = self.rank in (self.num_ranks // 2 - 1, self.num_ranks // 2)
