"""What is refused, word for word; arguments; seams; layers that defer, alone."""

from __future__ import annotations

import argparse
import dataclasses
import types
from typing import Any

import dualpipe.megatron as host
import pytest
import torch
from dualpipe.megatron import refusals, seams
from dualpipe.megatron.chunks import copy_to_mirrors, message_device
from dualpipe.megatron.data import StepIterator
from dualpipe.megatron.placement import stages_of_rank
from megatron_cases import Case, RunCase
from world import Run

CONFIG = types.SimpleNamespace(
    moe_router_load_balancing_type="aux_loss", num_moe_experts=4, expert_model_parallel_size=1
)

REFUSED = [
    ("mtp_num_layers", 1, "multi-token prediction needs the embedding beside the head", "None"),
    ("hybrid_context_parallel", True, "it is a schedule of its own", "False"),
    ("num_microbatches_with_partial_activation_checkpoints", 2, "its window is that of 1F1B", "recompute_granularity"),
    ("defer_embedding_wgrad_compute", True, "the engine defers weight gradients itself", "False"),
    ("delay_wgrad_compute", True, "the engine defers weight gradients itself", "False"),
    ("fine_grained_activation_offloading", True, "its order of offloads is that of 1F1B", "False"),
    ("cpu_offloading", True, "its order of offloads is that of one micro-batch at a time", "False"),
    ("moe_paged_stash", True, "its stash is a stack, and two directions are live at once", "False"),
    ("cuda_graph_impl", "local", "its graphs are captured in 1F1B's order", "none"),
    ("has_cond_embedder", True, "its embedders are reduced over loop placement", "False"),
    ("flextron", True, "its routers are reduced over loop placement", "False"),
    ("gtp_weight_remat_size", 2, "its gradients are finished by 1F1B", "1"),
    ("expert_gtp_weight_remat_size", 2, "its gradients are finished by 1F1B", "1"),
    ("param_sync_func", print, "it is called at 1F1B's micro-batches", "None"),
    ("pipeline_model_parallel_layout", "Et*4|t*4L", "a layout lists stages in loop order", "None"),
    (
        "moe_router_load_balancing_type",
        "global_aux_loss",
        "each mirror of a router sees half of the global batch",
        "aux_loss",
    ),
]


def changed(**values: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{**vars(CONFIG), **values})


def text(name: str, given: Any, why: str, instead: str) -> str:
    return f"[dualpipe] {name} cannot be combined with this schedule: {why}; got {given}, use {instead}"


@pytest.mark.parametrize(("name", "given", "why", "instead"), REFUSED, ids=[row[0] for row in REFUSED])
def test_config_that_does_not_fit(name: str, given: Any, why: str, instead: str) -> None:
    refusals.check_config("dualpipe", CONFIG)
    with pytest.raises(ValueError) as caught:
        refusals.check_config("dualpipe", changed(**{name: given}))
    assert str(caught.value) == text(name, given, why, instead)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("use_megatron_fsdp", "it gathers and frees parameters around whole forwards and backwards"),
        ("overlap_param_gather", "parameters are gathered in 1F1B's order of chunks"),
    ],
)
def test_wrapper_that_does_not_fit(name: str, why: str) -> None:
    chunk = types.SimpleNamespace(ddp_config=types.SimpleNamespace(**{name: True}))
    with pytest.raises(ValueError) as caught:
        refusals.check_chunks("dualpipe", [chunk])
    assert str(caught.value) == text(name, True, why, "False")


@pytest.mark.parametrize(
    ("settings", "name", "given", "why", "instead"),
    [
        (
            {},
            "overlap_layers",
            "expert_model_parallel_size 1",
            "the plan frees what it dispatched, which with one expert-parallel rank is what arrives",
            "2 or more, or overlap_layers=False",
        ),
        (
            {"expert_model_parallel_size": 2, "recompute_granularity": "full"},
            "overlap_layers with recompute_granularity",
            "full",
            "nodes of the plan keep their graphs from forward to backward",
            "None",
        ),
        (
            {"expert_model_parallel_size": 2, "fp8": "hybrid"},
            "overlap_layers with fp8",
            "hybrid",
            "Megatron's combined 1F1B enters its context around a plan, and plans run without that here",
            "None",
        ),
    ],
)
def test_plan_that_cannot_run(settings: dict[str, Any], name: str, given: str, why: str, instead: str) -> None:
    with pytest.raises(ValueError) as caught:
        refusals.check_overlap("dualpipe", changed(**settings))
    assert str(caught.value) == text(name, given, why, instead)


@pytest.mark.parametrize(
    ("name", "given", "shown", "why", "instead"),
    [
        ("adjust_tensor_shapes_fn", 7, 7, "shapes come with the first message", "None"),
        ("p2p_communicator", 7, 7, "the engine sends by itself", "None"),
        (
            "pg_collection",
            7,
            "int",
            "a pipeline over several modules has no placement of stages",
            "a ProcessGroupCollection",
        ),
        ("decoder_seq_length", 7, 7, "encoder and decoder would be two pipelines", "None"),
    ],
)
def test_call_that_does_not_fit(name: str, given: int, shown: Any, why: str, instead: str) -> None:
    plain = dict(
        adjust_tensor_shapes_fn=None, p2p_communicator=None, pg_collection=None, decoder_seq_length=None, seq_length=8
    )
    refusals.check_call("dualpipe", plain)
    with pytest.raises(ValueError) as caught:
        refusals.check_call("dualpipe", {**plain, name: given})
    assert str(caught.value) == text(name, shown, why, instead)


def test_schedule_that_is_unknown() -> None:
    with pytest.raises(ValueError) as caught:
        host.get_forward_backward_func("gpipe")
    assert str(caught.value) == (
        "[pipeline_schedule] must be one of builtin_1f1b, interleaved_1f1b, dualpipe, dualpipev, zb1p, 1f1b, got "
        "gpipe; for example dualpipe"
    )


def parse(*argv: str) -> argparse.Namespace:
    return host.parse_arguments(argparse.ArgumentParser(), argv)


def test_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUALPIPE_SCHEDULE", raising=False)
    virtual = "--virtual-pipeline-model-parallel-size=3"
    assert parse().pipeline_schedule == "builtin_1f1b"
    assert parse(virtual).pipeline_schedule == "interleaved_1f1b"
    assert parse("--pipeline-schedule=dualpipev").virtual_pipeline_model_parallel_size is None
    assert parse("--pipeline-schedule=interleaved_1f1b").virtual_pipeline_model_parallel_size == 2
    with pytest.raises(ValueError) as caught:
        parse("--pipeline-schedule=dualpipev", virtual)
    assert str(caught.value) == (
        "[dualpipev] virtual_pipeline_model_parallel_size is of interleaved_1f1b alone, got 3; leave it out"
    )
    monkeypatch.setenv("DUALPIPE_SCHEDULE", "dualpipe")
    args = parse("--pipeline-schedule=interleaved_1f1b", virtual)
    assert (args.pipeline_schedule, args.virtual_pipeline_model_parallel_size) == ("dualpipe", None)


def test_placement() -> None:
    assert [stages_of_rank("dualpipev", rank, 2) for rank in range(2)] == [([0, 3], 4), ([1, 2], 4)]
    assert [stages_of_rank("dualpipe", rank, 4) for rank in (0, 3)] == [([0, 3], 4), ([3, 0], 4)]
    assert stages_of_rank("zb1p", 1, 2) == ([1], 2)


def test_embedding_ranks() -> None:
    assert host.embedding_ranks("zb1p") == {}
    ranks = host.embedding_ranks("dualpipev")
    assert [choose([4, 5, 6]) for choose in ranks.values()] == [[4], [4]]


def test_step_iterator() -> None:
    """Each direction takes its half of every step; what a chunk does not read it leaves alone."""
    source = iter(range(16))
    upper = StepIterator(source, 4, 8, 8)
    assert list(upper) == [4, 5, 6, 7]
    lower = StepIterator(source, 0, 4, 8)
    assert list(lower) == [8, 9, 10, 11]
    StepIterator(source, 4, 8, 8).finish()
    lower.finish()
    assert list(source) == []


def test_unknown_version_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.megatron.core, "__version__", "0.99.0")
    with pytest.warns(UserWarning) as caught:
        seams.check_seams()
    said = [str(warning.message) for warning in caught]
    assert [line for line in said if line.startswith("dualpipe")] == [
        "dualpipe.megatron was tested with megatron-core 0.19.2, not with 0.99.0"
    ]


def test_missing_seam_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.pipeline_parallel import schedules

    monkeypatch.setattr(seams.megatron.core, "__version__", "0.19.2")
    seams.check_seams()
    monkeypatch.delattr(schedules, "forward_step")
    with pytest.raises(RuntimeError) as caught:
        seams.check_seams()
    assert str(caught.value) == (
        "[dualpipe.megatron] megatron-core 0.19.2 lacks megatron.core.pipeline_parallel.schedules.forward_step, which "
        "this adapter needs; versions that have it: 0.19.2"
    )


def call_wrongly(case: Case) -> list[str]:
    """In every rank: what is said to chunks and iterators that do not fit."""
    import functools

    import cpu_shim
    from megatron.core import parallel_state
    from megatron_cases import forward_step, make_config, provide

    cpu_shim.install()
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=case.pp)
    config = make_config(case)
    chunks = host.build_chunks(case.schedule, functools.partial(provide, case), config)
    function = host.get_forward_backward_func(case.schedule)
    plain = torch.nn.Linear(2, 2)
    plain.config = config
    said = []
    one = iter(())
    for model, iterators in (
        (chunks[::-1], None),
        (chunks, [iter(())]),
        (chunks, [one, one]),
        ([plain, plain], None),
    ):
        try:
            function(
                forward_step_func=forward_step,
                data_iterator=iterators,
                model=model,
                num_microbatches=8,
                seq_length=8,
                micro_batch_size=2,
            )
        except ValueError as error:
            said.append(str(error))
    parallel_state.destroy_model_parallel()
    return said


def test_models_and_iterators_that_do_not_fit(world: Run) -> None:
    _, said = world(2, call_wrongly, Case("dualpipev"))
    assert said == [
        "[dualpipev] model must be the chunks of stages [1, 2] in this order on pipeline rank 1, got stages [2, 1]; "
        "for example what build_chunks returned, each wrapped",
        "[dualpipev] data_iterator must be a list of 2, one per chunk, got 1; for example "
        "[iter(loader) for _ in model]",
        "[dualpipev] data_iterator must be an iterator of its own for each chunk, which reads all micro-batches of a "
        "step, got one for both; for example [iter(loader) for _ in model]",
        "[model] chunks must come from dualpipe.megatron.build_chunks under this schedule, got one that did not; for "
        "example build_chunks('dualpipev', provider, config)",
    ]


def test_messages_of_the_group_take_what_lies_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks on the CPU beside a group of NCCL alone: weights of mirrors go over the device."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    weight = torch.zeros(2)
    by_nccl = types.SimpleNamespace(_device_types=[torch.device("cuda")])
    by_gloo = types.SimpleNamespace(_device_types=[torch.device("cpu")])
    assert message_device(weight, by_nccl) == torch.device("cuda", 3)
    assert message_device(weight, by_gloo) == torch.device("cpu")
    assert message_device(weight.to("meta"), by_gloo) == torch.device("cpu")


def test_mirrors_are_copied_over_the_groups_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks whose group serves another device: each message is there, and comes back."""
    group = types.SimpleNamespace(_device_types=[torch.device("meta")], rank=lambda: 0, size=lambda: 2)
    chunks = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    for stage, chunk in enumerate(chunks):
        chunk.dualpipe_placement = types.SimpleNamespace(is_mirror=stage == 1, stage=stage)
    seen: list[str] = []
    monkeypatch.setattr(torch.distributed, "send", lambda tensor, **_: seen.append(f"send {tensor.device}"))
    monkeypatch.setattr(torch.distributed, "recv", lambda tensor, **_: seen.append(f"recv {tensor.device}"))
    monkeypatch.setattr(torch.Tensor, "copy_", lambda tensor, value: seen.append(f"{value.device} to {tensor.device}"))
    copy_to_mirrors(chunks, group)
    assert seen == ["send meta"] * 2 + ["recv meta", "meta to cpu"] * 2


def test_too_few_micro_batches(run: RunCase) -> None:
    with pytest.raises(AssertionError, match="num_microbatches must be at least 2 x ranks = 4, got 2"):
        run(dataclasses.replace(Case("dualpipev"), num_microbatches=2))


def test_overlapped_reductions_want_zeroed_buffers(run: RunCase) -> None:
    """Megatron's buckets are reduced once per zero_grad_buffer(): a second call would not be, without a word."""
    text = (
        r"\[zb1p\] overlap_grad_reduce cannot be combined with this schedule: DDP then reduces a buffer once per "
        r"zero_grad_buffer\(\), and this one holds an earlier call's gradients; got True, use zero_grad_buffer\(\) "
        r"before the call, or False"
    )
    with pytest.raises(AssertionError, match=text):
        run(Case("zb1p", ddp="overlap", steps=2, accumulate=True))
