"""What this package uses of torch beyond its public names, checked at import and, where torch sets it on an object
alone, on the first object.

An unknown version of torch warns; a seam that is gone stops with its name.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch

from dualpipe._seams import missing

TESTED = ("2.15",)

_SCHEDULES, _STAGE = "torch.distributed.pipelining.schedules", "torch.distributed.pipelining.stage"

# (module, attribute path). The README says what each is for.
SEAMS: tuple[tuple[str, str], ...] = (
    *((_SCHEDULES, f"PipelineScheduleMulti.{name}")
      for name in ("step", "eval", "_step_microbatches", "_check_inputs", "_update_losses")),
    (_SCHEDULES, "_Action.from_str"),
    (_SCHEDULES, "get_schedule_class"),
    (_STAGE, "PipelineStageInfo"),
    *((_STAGE, f"_PipelineStageBase.{name}")
      for name in ("forward_maybe_with_nosync", "_call_with_forward_context", "perform_reduce_grad", "_parent_group",
                   "is_first", "is_last", "forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")),
    *(("torch.distributed.fsdp", f"FSDPModule.{name}")
      for name in ("set_reshard_after_backward", "set_requires_gradient_sync", "set_manual_backward_finalization",
                   "reshard")),
    ("torch.nn.parallel", "DistributedDataParallel.no_sync"),
    ("torch.distributed", "ProcessGroup._device_types"),
    *(("torch.utils._pytree", name) for name in ("TreeSpec", "tree_flatten", "tree_unflatten")),
)

# What torch sets on its objects, by the class that does.
SCHEDULE = ("PipelineScheduleMulti", ("_stages", "_n_microbatches", "_loss_fn", "_has_backward", "_internal_losses",
                                      "_finalize_gradients", "scale_grads", "pp_group_size", "rank"))
STAGE = ("_PipelineStageBase", ("submod", "stage_index", "num_stages", "device", "group", "group_rank", "group_size",
                                "output_chunks", "dw_builder", "_forward_contexts", "stage_index_to_group_rank"))
DDP = ("DistributedDataParallel", ("module", "process_group", "parameters_to_ignore", "_comm_hooks", "mixed_precision"))


def installed_version() -> str:
    return torch.__version__


def check_torch() -> None:
    """Raises ``ImportError`` for missing seams, warns of a version that was not tested."""
    found, lacking = installed_version(), missing(SEAMS)
    if lacking:
        raise ImportError(_sentence(lacking))
    if not found.startswith(tuple(f"{version}." for version in TESTED)):
        warnings.warn(f"dualpipe.pipelining was tested with torch {', '.join(TESTED)}, got {found}; its tests "
                      "(tests/python/pipelining) tell whether it holds", stacklevel=3)


def check_object(value: object, seam: tuple[str, Iterable[str]]) -> None:
    """``seam``: ``SCHEDULE``, ``STAGE`` or ``DDP``. Raises ``AttributeError`` with what this object does not have."""
    owner, names = seam
    lacking = [f"{owner}.{name}" for name in names if not hasattr(value, name)]
    if lacking:
        raise AttributeError(_sentence(lacking))


def _sentence(lacking: Iterable[str]) -> str:
    return (f"dualpipe.pipelining needs {', '.join(lacking)}, which torch {installed_version()} does not have; torch "
            f"{TESTED[-1]} does")
