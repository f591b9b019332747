"""Declarations that scripts for the reference make, and that this engine does not need.

It agrees on the shapes and dtypes of messages by itself at the first step, and lets them change from micro-batch to
micro-batch with `variable_seq_lengths=True`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def set_p2p_tensor_shapes(shapes: Sequence[Sequence[int]]) -> None:
    """Accepted, and not needed. Raises TypeError for what is no list of shapes."""
    for shape in shapes:
        torch.Size(shape)


def set_p2p_tensor_dtype(dtype: torch.dtype) -> None:
    """Accepted, and not needed. Raises TypeError for what is no dtype."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"[set_p2p_tensor_dtype] a torch.dtype is wanted, got {dtype!r}; for example torch.bfloat16")
