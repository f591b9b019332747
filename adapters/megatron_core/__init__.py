"""DualPipe, DualPipeV and ZB1P for Megatron-Core: chunks placed where the schedule wants them, and a forward-backward
function with Megatron's signature that runs the C++ engine.

    args = dualpipe.megatron.parse_arguments(parser)                                    # --pipeline-schedule dualpipe
    chunks = dualpipe.megatron.build_chunks(args.pipeline_schedule, provider, config)   # then wrap them as ever
    forward_backward = dualpipe.megatron.get_forward_backward_func(args.pipeline_schedule)

Everything else of a training script stays. README.md lists what is used of megatron-core, and what is refused.
"""

from __future__ import annotations

from .arguments import add_arguments, parse_arguments, resolve_arguments
from .chunks import build_chunk, build_chunks
from .forward_backward import ForwardBackward, get_forward_backward_func
from .placement import SCHEDULES, ChunkPlacement, ChunkSpec, chunk_specs, embedding_ranks
from .run_log import RunLog
from .seams import SEAMS, TESTED_VERSIONS
from .weight_gradients import defer_weight_gradients

__all__ = [
    "SCHEDULES",
    "SEAMS",
    "TESTED_VERSIONS",
    "ChunkPlacement",
    "ChunkSpec",
    "ForwardBackward",
    "RunLog",
    "add_arguments",
    "build_chunk",
    "build_chunks",
    "chunk_specs",
    "defer_weight_gradients",
    "embedding_ranks",
    "get_forward_backward_func",
    "parse_arguments",
    "resolve_arguments",
]
