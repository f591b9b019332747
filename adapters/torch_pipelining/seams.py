"""What this package uses of torch beyond its public names, checked once at import.

An unknown version of torch warns; a seam that is gone stops the import with its name.
"""

from __future__ import annotations

import warnings

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import schedules, stage
from torch.nn.parallel import DistributedDataParallel

TESTED = ("2.15",)

_SEAMS: dict[object, tuple[str, ...]] = {
    schedules: ("PipelineScheduleMulti", "_Action", "get_schedule_class"),
    schedules.PipelineScheduleMulti: ("_step_microbatches", "_check_inputs", "_update_losses", "step", "eval"),
    stage._PipelineStageBase: ("forward_maybe_with_nosync", "perform_reduce_grad", "_call_with_forward_context",
                               "_parent_group", "is_first", "is_last", "clear_runtime_states"),
    FSDPModule: ("set_reshard_after_backward", "set_requires_gradient_sync", "set_manual_backward_finalization"),
    DistributedDataParallel: ("no_sync",),
}


def missing_seams() -> list[str]:
    """``"PipelineScheduleMulti._step_microbatches"`` and the like, of what this torch does not have."""
    return [f"{getattr(owner, '__name__', owner)}.{name}" for owner, names in _SEAMS.items() for name in names
            if not hasattr(owner, name)]


def check_torch() -> None:
    """Raises ``ImportError`` for missing seams, warns of a version that was not tested."""
    missing = missing_seams()
    if missing:
        raise ImportError(f"dualpipe.pipelining needs {', '.join(missing)}, which torch {torch.__version__} does not "
                          f"have; torch {TESTED[-1]} does")
    if not torch.__version__.startswith(tuple(f"{version}." for version in TESTED)):
        warnings.warn(f"dualpipe.pipelining was tested with torch {', '.join(TESTED)}, got {torch.__version__}; its "
                      "tests (tests/python/pipelining) tell whether it holds", stacklevel=3)
