"""The names of megatron-core that this package uses beyond what a training script calls, and where it was tested.

A missing name stops with a `RuntimeError` that says which one; a version that was not tested warns once per process.
"""

from __future__ import annotations

import warnings
from typing import Any

import megatron.core

from dualpipe._seams import resolve

TESTED_VERSIONS: tuple[str, ...] = ("0.19.2",)

# (module, attribute path). The README says what each is for.
SEAMS: tuple[tuple[str, str], ...] = (
    ("megatron.core.parallel_state", "get_pipeline_model_parallel_group"),
    ("megatron.core.parallel_state", "is_pipeline_first_stage"),
    ("megatron.core.parallel_state", "is_pipeline_last_stage"),
    ("megatron.core.pipeline_parallel.schedules", "get_forward_backward_func"),
    ("megatron.core.pipeline_parallel.schedules", "forward_step"),
    ("megatron.core.pipeline_parallel.schedules", "forward_step_calc_loss"),
    ("megatron.core.pipeline_parallel.schedules", "check_first_val_step"),
    ("megatron.core.pipeline_parallel.schedules", "get_schedule_table"),
    ("megatron.core.process_groups_config", "ProcessGroupCollection.use_mpu_process_groups"),
    ("megatron.core.tensor_parallel.layers", "ColumnParallelLinear._forward_impl"),
    ("megatron.core.tensor_parallel.layers", "RowParallelLinear._forward_impl"),
    ("megatron.core.tensor_parallel.layers", "LinearWithGradAccumulationAndAsyncCommunication"),
    ("megatron.core.tensor_parallel.layers", "dist_all_gather_func"),
    ("megatron.core.tensor_parallel.layers", "dist_reduce_scatter_func"),
    ("megatron.core.models.gpt.gpt_model", "GPTModel.build_schedule_plan"),
    ("megatron.core.models.common.model_chunk_schedule_plan", "TransformerModelChunkSchedulePlan.run"),
    ("megatron.core.transformer.cuda_graphs", "set_current_microbatch"),
    ("megatron.core.utils", "get_attr_wrapped_model"),
    ("megatron.core.utils", "get_model_config"),
    ("torch.autograd", "_is_checkpoint_valid"),
)


def seam(module: str, path: str) -> Any:
    """The object behind a seam; raises `RuntimeError` with its name where it is missing."""
    try:
        return resolve(module, path)
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"[dualpipe.megatron] megatron-core {megatron.core.__version__} lacks {module}.{path}, which this adapter "
            f"needs; versions that have it: {', '.join(TESTED_VERSIONS)}"
        ) from error


def check_seams() -> None:
    """Warns about a version that was not tested, stops at the first missing seam."""
    version = megatron.core.__version__.partition("+")[0]
    if version not in TESTED_VERSIONS:
        warnings.warn(
            f"dualpipe.megatron was tested with megatron-core {', '.join(TESTED_VERSIONS)}, not with {version}",
            stacklevel=3,
        )
    for module, path in SEAMS:
        seam(module, path)
