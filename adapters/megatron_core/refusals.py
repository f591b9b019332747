"""What cannot be combined with the schedules of this package, and why. Refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megatron.core.process_groups_config import ProcessGroupCollection

from .placement import keeps_ends_together

# Attribute of the TransformerConfig, what refuses it, why, what works.
_CONFIG: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (
    ("mtp_num_layers", bool, "multi-token prediction needs the embedding beside the head", "None"),
    ("hybrid_context_parallel", bool, "it is a schedule of its own", "False"),
    (
        "num_microbatches_with_partial_activation_checkpoints",
        lambda value: value is not None,
        "its window is that of 1F1B",
        "recompute_granularity",
    ),
    (
        "defer_embedding_wgrad_compute",
        bool,
        "the engine defers weight gradients itself",
        "False",
    ),
    ("delay_wgrad_compute", bool, "the engine defers weight gradients itself", "False"),
    ("fine_grained_activation_offloading", bool, "its order of offloads is that of 1F1B", "False"),
    ("cpu_offloading", bool, "its order of offloads is that of one micro-batch at a time", "False"),
    ("moe_paged_stash", bool, "its stash is a stack, and two directions are live at once", "False"),
    ("cuda_graph_impl", lambda value: value not in (None, "none"), "its graphs are captured in 1F1B's order", "none"),
    ("has_cond_embedder", bool, "its embedders are reduced over loop placement", "False"),
    ("flextron", bool, "its routers are reduced over loop placement", "False"),
    ("gtp_weight_remat_size", lambda value: value not in (None, 1), "its gradients are finished by 1F1B", "1"),
    ("expert_gtp_weight_remat_size", lambda value: value not in (None, 1), "its gradients are finished by 1F1B", "1"),
    ("param_sync_func", lambda value: value is not None, "it is called at 1F1B's micro-batches", "None"),
)


def _refuse(schedule: str, name: str, given: Any, why: str, instead: str) -> None:
    raise ValueError(f"[{schedule}] {name} cannot be combined with this schedule: {why}; got {given}, use {instead}")


def check_config(schedule: str, config: Any) -> None:
    """Raises `ValueError` for the first setting of a TransformerConfig that does not go with `schedule`."""
    for name, refuses, why, instead in _CONFIG:
        value = getattr(config, name, None)
        if refuses(value):
            _refuse(schedule, name, value, why, instead)
    layout = getattr(config, "pipeline_model_parallel_layout", None)
    if layout is not None and keeps_ends_together(schedule):
        _refuse(schedule, "pipeline_model_parallel_layout", layout, "a layout lists stages in loop order", "None")
    balancing = getattr(config, "moe_router_load_balancing_type", "")
    kinds = [balancing] if isinstance(balancing, str) else list(balancing)
    if schedule == "dualpipe" and "global_aux_loss" in kinds:
        why = "each mirror of a router sees half of the global batch"
        _refuse(schedule, "moe_router_load_balancing_type", "global_aux_loss", why, "aux_loss")


def check_overlap(schedule: str, config: Any) -> None:
    """Raises `ValueError` where Megatron's layer schedule plan cannot run the chunks."""
    if config.num_moe_experts and config.expert_model_parallel_size == 1:
        why = "the plan frees what it dispatched, which with one expert-parallel rank is what arrives"
        _refuse(schedule, "overlap_layers", "expert_model_parallel_size 1", why, "2 or more, or overlap_layers=False")
    for name, why in (
        ("recompute_granularity", "nodes of the plan keep their graphs from forward to backward"),
        ("fp8", "Megatron's combined 1F1B enters its context around a plan, and plans run without that here"),
    ):
        if getattr(config, name, None) is not None:
            _refuse(schedule, f"overlap_layers with {name}", getattr(config, name), why, "None")


def check_chunks(schedule: str, chunks: Sequence[Any]) -> None:
    """Raises `ValueError` where a chunk's wrapper does not go with `schedule`."""
    for chunk in chunks:
        ddp = getattr(chunk, "ddp_config", None)
        if ddp is None:
            continue
        if getattr(ddp, "use_megatron_fsdp", False):
            why = "it gathers and frees parameters around whole forwards and backwards"
            _refuse(schedule, "use_megatron_fsdp", True, why, "False")
        if getattr(ddp, "overlap_param_gather", False):
            why = "parameters are gathered in 1F1B's order of chunks"
            _refuse(schedule, "overlap_param_gather", True, why, "False")


def check_accumulation(schedule: str, chunks: Sequence[Any]) -> None:
    """Raises `ValueError` where DDP would not reduce what a step adds to the gradients of an earlier call."""
    for chunk in chunks:
        if getattr(getattr(chunk, "ddp_config", None), "overlap_grad_reduce", False):
            why = (
                "DDP then reduces a buffer once per zero_grad_buffer(), and this one holds an earlier call's gradients"
            )
            _refuse(schedule, "overlap_grad_reduce", True, why, "zero_grad_buffer() before the call, or False")


def check_call(schedule: str, arguments: dict[str, Any]) -> None:
    """Raises `ValueError` for an argument of the forward-backward function that has no meaning here."""
    for name, why in (
        ("adjust_tensor_shapes_fn", "shapes come with the first message"),
        ("p2p_communicator", "the engine sends by itself"),
    ):
        if arguments[name] is not None:
            _refuse(schedule, name, arguments[name], why, "None")
    groups = arguments["pg_collection"]
    if groups is not None and not isinstance(groups, ProcessGroupCollection):
        why = "a pipeline over several modules has no placement of stages"
        _refuse(schedule, "pg_collection", type(groups).__name__, why, "a ProcessGroupCollection")
    length = arguments["decoder_seq_length"]
    if length is not None and length != arguments["seq_length"]:
        why = "encoder and decoder would be two pipelines"
        _refuse(schedule, "decoder_seq_length", length, why, "None")
