"""DualPipe and its kin for PyTorch: bidirectional, zero-bubble and 1F1B pipelines over one C++ engine.

`dualpipe.DualPipe` and `dualpipe.DualPipeV` have the face of deepseek-ai/DualPipe; `dualpipe.core` is the engine
itself, for any schedule; `dualpipe.pipelining`, `dualpipe.torchtitan` and `dualpipe.megatron` plug it into those
frameworks.
"""

from __future__ import annotations

import torch

from dualpipe._build_info import TORCH_REVISION, TORCH_VERSION

if torch.version.git_version != TORCH_REVISION or str(torch.__version__) != TORCH_VERSION:
    raise ImportError(
        f"dualpipe was built for torch {TORCH_VERSION}, but torch {torch.__version__} is installed: build it again "
        "with `pip install --no-build-isolation --force-reinstall --no-deps` from its sources."
    )

from dualpipe._core import __version__
from dualpipe.comm import set_p2p_tensor_dtype, set_p2p_tensor_shapes
from dualpipe.dualpipe import DualPipe
from dualpipe.dualpipev import DualPipeV
from dualpipe.errors import PipelineError, ScheduleError
from dualpipe.plans import plan, read_csv, schedule_names, write_csv
from dualpipe.utils import WeightGradStore

__all__ = [
    "DualPipe",
    "DualPipeV",
    "PipelineError",
    "ScheduleError",
    "WeightGradStore",
    "__version__",
    "plan",
    "read_csv",
    "schedule_names",
    "set_p2p_tensor_dtype",
    "set_p2p_tensor_shapes",
    "write_csv",
]
