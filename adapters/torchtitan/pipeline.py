"""Pipelining functions for ``ModelSpec``: torchtitan's arguments and results, our schedules.

The model is cut by torchtitan's own helpers; which rank holds which stage is ours, since torchtitan derives it from
names that torch knows.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torchtitan.distributed import pipeline_parallel as titan
from torchtitan.protocols.model_spec import ModelSpec

from dualpipe.pipelining import EngineSchedule, ScheduleDualPipe, get_schedule_class

_logger = logging.getLogger(__name__)

PipeliningResult = tuple[Any, list[nn.Module], bool, bool]


def is_ours(name: str) -> bool:
    """Whether ``pipeline_parallel_schedule`` names a schedule of the engine."""
    try:
        return issubclass(get_schedule_class(name), EngineSchedule)
    except ValueError:
        return False


def _by_torchs_name(parallelism: Any) -> Any:
    """The same configuration, with the name that torch has for a schedule in place of the command's (builtin_1f1b)."""
    try:
        schedule = get_schedule_class(parallelism.pipeline_parallel_schedule)
    except ValueError:
        return parallelism  # Torchtitan says which names there are.
    return dataclasses.replace(parallelism, pipeline_parallel_schedule=schedule.__name__.removeprefix("Schedule"))


def with_dualpipe(spec: ModelSpec) -> ModelSpec:
    """The same model with a pipelining function that knows our schedules and leaves the others to its own.

    Raises ``ValueError`` for a model that cannot be pipelined, or not by torchtitan's functions for LLMs and VLMs.
    """
    ours = {titan.pipeline_llm: pipeline_llm, titan.pipeline_vlm: pipeline_vlm}
    if spec.pipelining_fn not in ours:
        raise ValueError(f"[dualpipe.torchtitan] pipelining_fn of {spec.name} must be torchtitan's pipeline_llm or "
                         f"pipeline_vlm, got {spec.pipelining_fn}; build stages yourself and use dualpipe.pipelining")
    return dataclasses.replace(spec, pipelining_fn=ours[spec.pipelining_fn])


def pipeline_vlm(model: nn.Module, *, parallelism: Any, **options: Any) -> PipeliningResult:
    """As torchtitan's: the vision encoder goes to the first stage."""
    if not is_ours(parallelism.pipeline_parallel_schedule):
        return titan.pipeline_vlm(model, parallelism=_by_torchs_name(parallelism), **options)
    if parallelism.module_fqns_per_model_part is None and model.vision_encoder is not None:
        names = _names_per_stage(parallelism, options["parallel_dims"].pp, options["model_config"])
        names[0].insert(0, "vision_encoder")
        parallelism = dataclasses.replace(parallelism, module_fqns_per_model_part=names)
    return pipeline_llm(model, parallelism=parallelism, **options)


def pipeline_llm(
    model: nn.Module,
    *,
    parallel_dims: Any,
    training: Any,
    parallelism: Any,
    compile_config: Any,
    ac_config: Any,
    dump_folder: str,
    device: torch.device,
    model_config: Any,
    parallelize_fn: Callable[..., nn.Module],
    loss_fn: Callable[..., Any],
) -> PipeliningResult:
    """Takes and gives what torchtitan's function of this name does: (schedule, model parts, has first, has last stage).

    Model parts are in ascending order of their stage, so the last part of a rank with the last stage holds the head.
    Under DualPipe both ends have a first and a last stage, and torchtitan feeds both.
    """
    options = {"parallel_dims": parallel_dims, "training": training, "parallelism": parallelism,
               "compile_config": compile_config, "ac_config": ac_config, "dump_folder": dump_folder}
    if not is_ours(parallelism.pipeline_parallel_schedule):
        options["parallelism"] = _by_torchs_name(parallelism)
        return titan.pipeline_llm(model, device=device, model_config=model_config, parallelize_fn=parallelize_fn,
                                  loss_fn=loss_fn, **options)
    _refuse_tied_weights(model_config)
    names = _names_per_stage(parallelism, parallel_dims.pp, model_config)
    stages = _split(model, parallel_dims, parallelism, device, names)
    for stage in stages:
        stage.submod = parallelize_fn(stage.submod, **options)
    schedule = _build_schedule(stages, training, parallelism, loss_fn)
    return (schedule, [stage.submod for stage in stages], any(stage.is_first for stage in stages),
            any(stage.is_last for stage in stages))


def _refuse_tied_weights(model_config: Any) -> None:
    if getattr(model_config, "enable_weight_tying", False):
        raise ValueError("[dualpipe.torchtitan] enable_weight_tying must be False, got True: each part of the model "
                         "gets a copy of its own, and torchtitan ties no weights under pipeline parallel; "
                         "dualpipe.pipelining does, over stages of yours")


def _names_per_stage(parallelism: Any, size: int, model_config: Any) -> list[list[str]]:
    """Module names of every stage: the user's, or torchtitan's division into as many stages as the schedule has."""
    name = parallelism.pipeline_parallel_schedule
    _, num_stages = get_schedule_class(name).stage_indices(0, size)
    given = parallelism.module_fqns_per_model_part
    if given is not None:
        if len(given) != num_stages:
            raise ValueError(f"[dualpipe.torchtitan] module_fqns_per_model_part must name {num_stages} parts for "
                             f"{name} on {size} ranks, got {len(given)}")
        return [list(part) for part in given]
    layers = len(model_config.layers)
    first, last = (parallelism.pipeline_parallel_first_stage_less_layers,
                   parallelism.pipeline_parallel_last_stage_less_layers)
    _check_layers_per_stage(parallelism, name, size, layers + first + last, num_stages)
    return titan._generate_llm_fqn_per_model_part(num_stages, layers, first, last)


def _check_layers_per_stage(parallelism: Any, name: str, size: int, layers: int, num_stages: int) -> None:
    per_stage = parallelism.pipeline_parallel_layers_per_stage
    if per_stage is not None and math.ceil(layers / per_stage) != num_stages:
        raise ValueError(f"[dualpipe.torchtitan] {name} on {size} ranks has {num_stages} stages, got "
                         f"pipeline_parallel_layers_per_stage = {per_stage} for {layers} layers (embedding and head "
                         f"count as the configuration says); leave it out, or give {math.ceil(layers / num_stages)}")


def _split(model: nn.Module, parallel_dims: Any, parallelism: Any, device: torch.device,
           names: list[list[str]]) -> list[PipelineStage]:
    mesh = parallel_dims.get_mesh("pp")
    schedule = get_schedule_class(parallelism.pipeline_parallel_schedule)
    mine, num_stages = schedule.stage_indices(mesh.get_local_rank(), mesh.size())
    return [PipelineStage(titan._split_module(model, names[index]), index, num_stages, device,
                          group=mesh.get_group("pp")) for index in mine]


def _build_schedule(stages: list[PipelineStage], training: Any, parallelism: Any, loss_fn: Callable[..., Any]) -> Any:
    rows, size = training.local_batch_size, parallelism.pipeline_parallel_microbatch_size
    if rows % size != 0:
        raise ValueError(f"[dualpipe.torchtitan] local_batch_size must be a multiple of "
                         f"pipeline_parallel_microbatch_size, got {rows} and {size}")
    schedule_class = get_schedule_class(parallelism.pipeline_parallel_schedule)
    mirrors: dict[str, Any] = {}
    if schedule_class is ScheduleDualPipe:
        mirrors["broadcast_mirrors"] = True  # torchtitan initializes each pipeline rank from a seed of its own.
        _explain_norm(training.max_norm)

    def scalar_loss(*args: Any, **kwargs: Any) -> Tensor:
        return loss_fn(*args, **kwargs)[0]

    schedule = schedule_class(stages, rows // size, loss_fn=scalar_loss, scale_grads=False, **mirrors)
    if parallelism.pipeline_parallel_schedule_csv:
        schedule._load_csv(parallelism.pipeline_parallel_schedule_csv)
    return schedule


def _explain_norm(max_norm: float) -> None:
    _logger.warning(
        "DualPipe holds every stage on two ranks, and torchtitan sums squares over all ranks: the grad_norm that it "
        "logs is sqrt(2) times the model's. To clip at %g set training.max_norm to %.4g.",
        max_norm, math.sqrt(2) * max_norm)
