"""dualpipe.core: losses, gradients, outputs and figures of a step, against the whole model in one process."""

from __future__ import annotations

import os
from types import SimpleNamespace

import core_mistakes as mistakes
import core_scenarios as scenarios
import pytest
import torch
from torch import nn
from world import Run

from dualpipe import core

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
# The schedule, micro-batches, and ranks.
CASES = [
    ("1f1b", 4, 2),
    ("zb1p", 4, 2),
    ("interleaved_1f1b", 4, 2),
    ("dualpipe", 6, 2),
    ("dualpipev", 5, 2),
    ("1f1b", 8, 4),
    ("zb1p", 8, 4),
    ("dualpipe", 10, 4),
    ("dualpipev", 9, 4),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("schedule", "micro_batches", "ranks"), CASES)
def test_a_step_equals_the_whole_model(
    world: Run, schedule: str, micro_batches: int, ranks: int, dtype: torch.dtype
) -> None:
    for rank, result in enumerate(world(ranks, scenarios.gradients_and_losses, schedule, micro_batches, dtype)):
        assert result["gradients"] <= TOLERANCE[dtype], rank
        assert result["losses"] <= TOLERANCE[dtype], rank
        assert result["outputs"] <= TOLERANCE[dtype], rank
        assert abs(result["mean_loss"]) <= TOLERANCE[dtype], rank
        assert result["spans"] == result["row"], rank
        assert result["place"] == (rank, ranks, schedule, micro_batches, scenarios.stage_count(schedule, ranks))


def test_every_parameter_has_its_logical_name(world: Run) -> None:
    names = ["norm.weight", "norm.bias", "up.weight", "up.bias", "down.weight", "down.bias"]
    for result in world(2, scenarios.gradients_and_losses, "dualpipe", 6, torch.float64):
        assert sorted(result["names"]) == sorted(f"stage{s}.{name}" for s in result["stages"] for name in names)


def test_gradients_of_several_steps_add_up(world: Run) -> None:
    for result in world(2, scenarios.gradients_and_losses, "dualpipe", 6, torch.float64, 3):
        assert result["gradients"] <= 1e-10


def test_sums_are_divided_by_their_weights(world: Run) -> None:
    for result in world(2, scenarios.weighted_sum):
        assert result["gradients"] <= 1e-10
        assert result["losses"] <= 1e-10


def test_evaluation_needs_no_criterion_and_leaves_no_gradient(world: Run) -> None:
    first, second = world(2, scenarios.evaluation)
    assert len(first["losses"]) == len(first["outputs"]) == 4
    assert max(first["losses"] + first["outputs"]) <= 1e-10
    assert second["losses"] == second["outputs"] == []
    assert first["bare_losses"] == first["gradients"] == second["gradients"] == 0


def test_stages_pass_several_tensors_of_any_kind_and_length(world: Run) -> None:
    first, second = world(2, scenarios.several_tensors)
    assert max(first["gradients"], second["gradients"]) <= 1e-10
    assert first["seen"] == second["seen"] == [0, 1, 2, 3]
    assert (first["losses"], second["losses"]) == (0, 4)
    assert all(name.startswith("layers.0/") for name in first["names"])


def test_layers_that_split_themselves_reach_the_engines_store(world: Run) -> None:
    first, second = world(2, scenarios.store_puts)
    assert first["gradients"] <= 1e-10 and second["gradients"] <= 1e-10
    # The first stage has no I that anybody waits for, but its W is put off all the same.
    assert second["puts"] == 2 * 4 and second["bytes"] > 0
    assert first["puts"] in (0, 2 * 4)


@pytest.mark.parametrize("defer", [False, True], ids=["at_once", "deferred"])
def test_an_optimizer_step_clips_the_global_norm_and_skips_what_is_not_finite(world: Run, defer: bool) -> None:
    results = world(4, scenarios.optimizer_steps, defer)
    assert len({result["norms"][0] for result in results}) == 1
    for result in results:
        assert result["skipped"] == [False, True]
        assert result["norm_error"] <= 1e-12
        assert result["moved"] <= 1e-12
        assert result["unmoved"]
        assert bool(result["pending"]) == defer
        assert result["left"] == ""


def test_replicas_sum_into_the_hosts_buffers(world: Run) -> None:
    assert max(world(4, scenarios.replicas)) <= 1e-5


def test_a_timeline_is_what_the_engine_itself_writes(world: Run) -> None:
    for our_header, header, our_step, step in world(2, scenarios.timeline_lines):
        assert our_header == header
        for key in ("exchange_seconds", "exposed_seconds", "phases"):  # Of phases, which Python stages have none of.
            step.pop(key, None)
        assert our_step == step


def test_callers_mistakes_are_told_word_for_word(world: Run) -> None:
    first, second = world(2, mistakes.refusals)
    assert first["odd"].startswith("ScheduleError: [rank 0] [dualpipe] num_microbatches must be even, got 5")
    assert second["odd"] == first["odd"]
    assert first["name"] == (
        "ScheduleError: [rank 0] [pipeline_schedule] must be one of 1f1b, dualpipe, dualpipev, interleaved_1f1b, zb1p "
        'or a .csv file, got "dualpip"; did you mean dualpipe?'
    )
    assert first["clip"] == (
        "ScheduleError: [optimizer_hook] clip_grad must be finite and at least 0 (no clipping), got -1; for example 1.0"
    )
    assert first["halves"] == (
        "ScheduleError: [optimizer_hook] mirrors must sum their gradients before a step, got reduce_mirrors = False; "
        "set reduce_mirrors=True, or sum and step yourself"
    )
    assert first["reference halves"] == first["halves"]
    assert first["norm"] == first["halves"].replace("optimizer_hook", "gradient_norm")
    assert first["sums"] == (
        "ScheduleError: [dualpipe] main_grads wants gradients that mirrors sum, got reduce_mirrors = False; set "
        "reduce_mirrors=True, or sum them yourself"
    )
    assert first["device"] == (
        "ScheduleError: [process_group] device must be one that the group has a backend for, cpu or cuda, got meta; "
        'init_process_group(backend="cpu:gloo,cuda:nccl") gives it both'
    )
    assert first["mapping"] == (
        "ScheduleError: [rank_mapping] must hold each of 0 .. 1 once, got [0, 0]; None keeps the ranks of the group"
    )
    assert first["modules"] == "ScheduleError: [dualpipev] modules must be two, got 1; for example (first, second)"


def test_messages_go_where_the_parameters_are() -> None:
    """Of a group with several backends; of one alone there is nothing to choose."""
    both = SimpleNamespace(_device_types=[torch.device("cpu"), torch.device("cuda")])
    alone = SimpleNamespace(_device_types=[torch.device("cuda")])
    on_meta = SimpleNamespace(_device_types=[torch.device("cpu"), torch.device("meta")])
    stages = [core.module_stage(nn.Linear(2, 2)), core.module_stage(nn.Linear(2, 2, device="meta"))]
    assert core.device_of_messages(both, stages, None) == torch.device("cpu")
    assert core.device_of_messages(both, stages, "cuda:1") == torch.device("cuda", 1)
    assert core.device_of_messages(on_meta, stages[1:], None) == torch.device("meta")
    assert core.device_of_messages(alone, stages, None) is None
    assert core.device_of_messages(both, [core.Stage()], None) is None


def test_a_step_runs_over_the_backend_that_was_asked_for(world: Run) -> None:
    for result in world(2, scenarios.gradients_and_losses, "dualpipe", 6, torch.float64, device="cpu"):
        assert result["gradients"] <= 1e-10


def test_gloo_threads_yield_once_their_group_has_a_pipeline(fresh_world: Run) -> None:
    assert fresh_world(2, scenarios.gloo_threads) == [({os.SCHED_OTHER}, {os.SCHED_BATCH})] * 2
