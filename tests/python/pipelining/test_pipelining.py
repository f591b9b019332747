"""Schedules of dualpipe.pipelining against the whole model in one process, on 2 and 4 Gloo processes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pipelining_mistakes as mistakes
import pipelining_scenarios as scenarios
import pytest
import torch
from pipelining_parts import batch_of, distance, tolerance, whole_model, whole_model_cast
from torch import Tensor
from world import Run

NAMES = ["dualpipe", "dualpipev", "zb1p"]
DTYPES = [torch.float32, torch.float64]


def check_gradients(ranks: list[dict[str, Any]], wanted: dict[str, Tensor], dtype: torch.dtype,
                    bound: float | None = None) -> None:
    """Every gradient of every rank, and every parameter on some rank."""
    seen = set()
    for rank, result in enumerate(ranks):
        for name, gradient in result["gradients"].items():
            seen.add(name)
            assert gradient.dtype == dtype
            assert distance(gradient, wanted[name]) <= (bound or tolerance(dtype)), (rank, name)
    assert seen == set(wanted)


def check_losses(ranks: list[dict[str, Any]], wanted: list[float], dtype: torch.dtype, step: int = 0) -> None:
    found = [result["losses"][step] for result in ranks if result["losses"][step]]
    assert found
    for losses in found:
        assert losses == pytest.approx(wanted, rel=tolerance(dtype))


def sum_of(gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: sum(g[name] for g in gradients) for name in gradients[0]}


def norm_of(gradients: dict[str, Tensor]) -> float:
    return sum(g.double().square().sum().item() for g in gradients.values()) ** 0.5


# Losses, gradients, outputs.


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [2, 4])
def test_two_steps_equal_the_whole_model(world: Run, size: int, name: str, dtype: torch.dtype, mean: bool) -> None:
    count, micro_batches = 2 * size + 2, 2 * size
    ranks = world(size, scenarios.train, name, dtype, count, micro_batches, steps=2, scale_grads=mean)
    steps = [whole_model(*batch_of(2 * micro_batches, seed=s), count, micro_batches, dtype, mean=mean) for s in (0, 1)]
    wanted = sum_of([gradients for _, gradients, _ in steps])
    check_gradients(ranks, wanted, dtype)
    for step, (losses, _, _) in enumerate(steps):
        check_losses(ranks, losses, dtype, step)
    for result in ranks:
        assert result["norm"] == pytest.approx(norm_of(wanted), rel=tolerance(dtype))
    check_outputs(ranks, steps[1][2], micro_batches, dtype)


def check_outputs(ranks: list[dict[str, Any]], wanted: Tensor, micro_batches: int, dtype: torch.dtype) -> None:
    for result in ranks:
        check_output(result["output"], result["micro_batches"], wanted.chunk(micro_batches), dtype)
    assert {k for result in ranks for k in result["micro_batches"]} == set(range(micro_batches))


def check_output(
    output: Tensor | None, micro_batches: list[int], chunks: tuple[Tensor, ...], dtype: torch.dtype
) -> None:
    assert (output is None) == (not micro_batches)
    if output is not None:
        assert distance(output, torch.cat([chunks[k] for k in micro_batches])) <= tolerance(dtype)


def test_dualpipe_gives_each_end_all_losses_and_the_outputs_of_its_half(world: Run) -> None:
    ranks = world(4, scenarios.train, "dualpipe", torch.float64, 10, 8, steps=2, scale_grads=True)
    assert [result["micro_batches"] for result in ranks] == [[4, 5, 6, 7], [], [], [0, 1, 2, 3]]
    assert [len(result["losses"][0]) for result in ranks] == [8, 0, 0, 8]
    assert ranks[0]["losses"] == ranks[3]["losses"]


def test_mirrors_are_equal_to_the_bit(world: Run) -> None:
    ranks = world(4, scenarios.train, "dualpipe", torch.float32, 10, 8, steps=2, scale_grads=True)
    for rank, result in enumerate(ranks):
        mirror = ranks[3 - rank]["gradients"]
        assert all(torch.equal(gradient, mirror[name]) for name, gradient in result["gradients"].items())


@pytest.mark.parametrize("name", NAMES)
def test_more_micro_batches_than_the_least(world: Run, name: str) -> None:
    ranks = world(2, scenarios.train, name, torch.float64, 6, 10)
    losses, wanted, _ = whole_model(*batch_of(20), 6, 10, torch.float64)
    check_gradients(ranks, wanted, torch.float64)
    check_losses(ranks, losses, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_recompute(world: Run, name: str, dtype: torch.dtype) -> None:
    ranks = world(2, scenarios.train, name, dtype, 6, 4, recompute=True)
    losses, wanted, _ = whole_model(*batch_of(8), 6, 4, dtype)
    check_gradients(ranks, wanted, dtype)
    check_losses(ranks, losses, dtype)


@pytest.mark.parametrize("name, size", [("dualpipe", 4), ("dualpipev", 2), ("zb1p", 2)])
def test_reentrant_recompute_is_refused_by_autograd_in_the_first_i(fresh_world: Run, name: str, size: int) -> None:
    failures = [result["failure"] for result in fresh_world(size, scenarios.reentrant, name, 2 * size + 2, 2 * size)]
    refused = [(message, notes) for kind, message, notes in failures if kind == "RuntimeError"]
    assert refused and all(kind in ("RuntimeError", "PipelineError") for kind, _, _ in failures)
    for message, notes in refused:
        assert message.startswith("When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or "
                                  "passing an `inputs` parameter to .backward()")
        assert "use_reentrant=False" in message
        assert any(re.fullmatch(r"rank \d, stage \d, micro-batch \d \(\dI\d\)", note) for note in notes)


def test_reentrant_recompute_of_dualpipe_on_two_ranks(world: Run) -> None:
    """Its only I are of the first stage, whose inputs need no gradient."""
    ranks = world(2, scenarios.reentrant, "dualpipe", 6, 4)
    losses, wanted, _ = whole_model(*batch_of(8), 6, 4, torch.float64)
    check_gradients(ranks, wanted, torch.float64)
    check_losses(ranks, losses, torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_computes_what_the_whole_model_does_under_autocast(world: Run, name: str) -> None:
    ranks = world(2, scenarios.train, name, torch.float32, 6, 4, autocast=True)
    losses, wanted, _ = whole_model(*batch_of(8), 6, 4, torch.float32, autocast=True)
    check_gradients(ranks, wanted, torch.float32)
    check_losses(ranks, losses, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [2, 4])
def test_tied_embeddings(world: Run, size: int, name: str, dtype: torch.dtype) -> None:
    ranks = world(size, scenarios.tied, name, dtype, 2 * size + 2, 2 * size)
    losses, wanted, _ = whole_model(*batch_of(4 * size), 2 * size + 2, 2 * size, dtype, tied=True)
    check_gradients(ranks, wanted, dtype)
    check_losses(ranks, losses, dtype)
    assert ranks[0]["norm"] == pytest.approx(norm_of(wanted), rel=tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_evaluation(world: Run, name: str, dtype: torch.dtype) -> None:
    ranks = world(2, scenarios.evaluate, name, dtype, 6, 4)
    losses, _, outputs = whole_model(*batch_of(8), 6, 4, dtype)
    for result in ranks:
        assert result["untouched"] and not result["graph"]
        for output in result["outputs"]:
            check_output(output, result["micro_batches"], outputs.chunk(4), dtype)
    check_losses([{"losses": [result["losses"]]} for result in ranks], losses, dtype)


@pytest.mark.parametrize("name", NAMES)
def test_pre_split_inputs_keywords_and_structures(world: Run, name: str) -> None:
    ranks = world(2, scenarios.pre_split, name, torch.float64, 6, 4)
    losses, wanted, _ = whole_model(*batch_of(8), 6, 4, torch.float64)
    check_gradients(ranks, wanted, torch.float64)
    check_losses(ranks, losses, torch.float64)
    assert all(result["output"] is None for result in ranks)
    assert {"last"} in [result["names"] for result in ranks]


@pytest.mark.parametrize("name", ["dualpipe", "dualpipev"])
def test_stages_may_run_their_overlapped_pairs_themselves(world: Run, name: str) -> None:
    ranks = world(2, scenarios.overlapping, name, 6, 8)
    losses, wanted, outputs = whole_model(*batch_of(16), 6, 8, torch.float64)
    check_gradients(ranks, wanted, torch.float64)
    check_losses(ranks, losses, torch.float64)
    check_outputs(ranks, outputs, 8, torch.float64)
    for result in ranks:
        assert result["pairs"] == result["planned"] > 0


@pytest.mark.parametrize("kind, message", [
    ("keywords", "takes positional tensors alone, got keyword arguments scale; pass them as tensors from the first "
                 "stage on"),
    ("nested", "takes positional tensors alone, got arguments of type dict; pass their tensors one by one"),
    ("context", "runs a pair as a whole, got 1 of register_forward_context, which are for one forward; enter them in "
                "the function itself"),
])
def test_what_overlapped_pairs_have_no_place_for(fresh_world: Run, kind: str, message: str) -> None:
    messages = [result[kind] for result in fresh_world(2, scenarios.refused_of_overlapping)]
    assert any(f"has an overlapped_forward_backward, which {message}" in text for text in messages)


def test_halves_of_mirrors_add_up(world: Run) -> None:
    ranks = world(4, scenarios.halves, 10, 8)
    _, wanted, _ = whole_model(*batch_of(16), 10, 8, torch.float64)
    for rank, result in enumerate(ranks):
        for name, gradient in result["gradients"].items():
            other = ranks[3 - rank]["gradients"][name]
            assert distance(gradient + other, wanted[name]) <= 1e-10
            assert distance(gradient, wanted[name]) > 1e-3


# Data parallel and experts.


@pytest.mark.parametrize("mean, dtype", [(True, torch.float64), (False, torch.float64), (True, torch.float32)],
                         ids=["mean", "sum", "mean-float32"])
@pytest.mark.parametrize("wrapped_by", ["ddp", "fsdp", "fsdp_reshard", "replicate"])
@pytest.mark.parametrize("name", NAMES)
def test_two_replicas(world: Run, name: str, wrapped_by: str, mean: bool, dtype: torch.dtype) -> None:
    ranks = world(4, scenarios.replicated, name, dtype, 6, 4, 2, wrapped_by, scale_grads=mean)
    steps = [whole_model(*batch_of(16, seed=s), 6, 8, dtype, mean=mean) for s in (0, 1)]
    bound = tolerance(dtype)
    wanted = sum_of([gradients for _, gradients, _ in steps])
    wanted = wanted if mean else {name: g / 2 for name, g in wanted.items()}  # DDP and FSDP give the mean of replicas.
    check_gradients(ranks, wanted, dtype)
    for result in ranks:
        mine = slice(4 * result["replica"], 4 * result["replica"] + 4)
        for step, (losses, _, _) in enumerate(steps):
            assert result["losses"][step] in ([], pytest.approx(losses[mine], rel=bound))
        assert result["evaluated"] in ([], pytest.approx(steps[1][0][mine], rel=bound))
        assert result["norm"] == pytest.approx(norm_of(wanted), rel=bound)
    for found in ([result["losses"][0] for result in ranks], [result["losses"][1] for result in ranks],
                  [result["evaluated"] for result in ranks]):
        assert_known_on_some_rank_of_each_replica(ranks, found)


def assert_known_on_some_rank_of_each_replica(ranks: list[dict[str, Any]], losses: list[list[float]]) -> None:
    assert {result["replica"] for result, found in zip(ranks, losses, strict=True) if found} == {0, 1}


@pytest.mark.parametrize("name", NAMES)
def test_sums_over_replicas_start_before_the_schedule_ends(world: Run, name: str) -> None:
    ranks = world(4, scenarios.replicated, name, torch.float64, 6, 4, 2, "ddp", scale_grads=True)
    two_stages = name != "zb1p"  # A rank with one stage reduces it behind its last W.
    assert [result["overlapped"] for result in ranks] == [two_stages] * 4


@pytest.mark.parametrize("wrapped_by, param_dtype", [("fsdp", torch.float32), ("fsdp_bf16", torch.bfloat16)],
                         ids=["fsdp", "fsdp_bf16"])
@pytest.mark.parametrize("name", [*NAMES, "ZBVZeroBubble"])
def test_a_policy_of_fsdp_equals_the_whole_model_cast_alike(
    world: Run, name: str, wrapped_by: str, param_dtype: torch.dtype
) -> None:
    """Under torch's ZBVZeroBubble too: what is held against us holds for torch's own schedule."""
    ranks = world(4, scenarios.beside_torch, name, wrapped_by, 6, 4, 2)
    wholes = [whole_model_cast(*batch_of(8, seed=replica), 6, 4, param_dtype, twice=False) for replica in (0, 1)]
    check_gradients(ranks, {n: g / 2 for n, g in sum_of([g for _, g in wholes]).items()}, torch.float32)
    for result in ranks:
        assert result["torchs"] == (name == "ZBVZeroBubble")
        assert result["losses"] in ([], pytest.approx(wholes[result["replica"]][0], rel=1e-5))
    assert_known_on_some_rank_of_each_replica(ranks, [result["losses"] for result in ranks])


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_of_fsdp_where_a_weight_has_two_users(world: Run, name: str) -> None:
    """One process adds the two gradients of the weight in bfloat16, W adds them in float32: one rounding apart."""
    ranks = world(4, scenarios.replicated, name, torch.float32, 6, 4, 2, "fsdp_bf16")
    steps = [whole_model_cast(*batch_of(16, seed=s), 6, 8, torch.bfloat16) for s in (0, 1)]
    wanted = sum_of([gradients for _, gradients in steps])
    for result in ranks:
        mine = slice(4 * result["replica"], 4 * result["replica"] + 4)
        for step, (losses, _) in enumerate(steps):
            assert result["losses"][step] in ([], pytest.approx(losses[mine], rel=1e-5))
        for parameter, gradient in result["gradients"].items():
            has_two_users = ".inner." in parameter
            assert distance(gradient, wanted[parameter]) <= (2**-8 if has_two_users else 1e-5), parameter
    assert {parameter for result in ranks for parameter in result["gradients"]} == set(wanted)
    assert_known_on_some_rank_of_each_replica(ranks, [result["losses"][0] for result in ranks])


@pytest.mark.parametrize("wrapped_by", ["fsdp", "ddp"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_may_be_finalized_by_a_later_step(world: Run, name: str, wrapped_by: str) -> None:
    ranks = world(4, scenarios.replicated, name, torch.float64, 6, 4, 2, wrapped_by, finalize_first=False)
    wholes = [whole_model(*batch_of(16, seed=s), 6, 8, torch.float64)[1] for s in (0, 1)]
    check_gradients(ranks, sum_of(wholes), torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_tensor_parallel_within_stages(world: Run, name: str, dtype: torch.dtype) -> None:
    ranks = world(4, scenarios.tensor_parallel, name, dtype, 6, 4, 2)
    steps = [whole_model(*batch_of(8, seed=s), 6, 4, dtype) for s in (0, 1)]
    wanted = sum_of([gradients for _, gradients, _ in steps])
    check_gradients(ranks, wanted, dtype)
    for step, (losses, _, _) in enumerate(steps):
        check_losses(ranks, losses, dtype, step)
    assert all(result["sharded"] for result in ranks)
    assert [result["norm"] for result in ranks] == [pytest.approx(norm_of(wanted), rel=tolerance(dtype))] * 4


def test_a_norm_where_some_ranks_hold_shards(world: Run) -> None:
    ranks = world(2, scenarios.sharded_on_some_ranks, 6, 4)
    _, wanted, _ = whole_model(*batch_of(8), 6, 4, torch.float64)
    check_gradients(ranks, wanted, torch.float64)
    assert [result["norm"] for result in ranks] == [pytest.approx(norm_of(wanted), rel=1e-10)] * 2


@pytest.mark.parametrize("name", NAMES)
def test_tied_weights_are_no_shards(fresh_world: Run, name: str) -> None:
    stage = 3 if name == "dualpipev" else 1
    assert fresh_world(2, scenarios.sharded_ties, name, 6, 4) == [
        f"[Schedule{ {'dualpipe': 'DualPipe', 'dualpipev': 'DualPipeV', 'zb1p': 'ZB1P'}[name] }] tied weights must be "
        f"plain tensors, got a DTensor (fully_shard, tensor parallel) among 0.weight of stage 0 and 5.weight of stage "
        f"{stage}, which are one parameter, 0.weight: its own hooks reduce it, and nobody would add the copies up; use "
        "DistributedDataParallel, or leave them untied"] * 2


@pytest.mark.parametrize("name", NAMES)
def test_compiled_stages(fresh_world: Run, name: str) -> None:
    ranks = fresh_world(2, scenarios.compiled, name, 6, 4)
    losses, wanted, _ = whole_model(*batch_of(8), 6, 4, torch.float64)
    check_gradients(ranks, wanted, torch.float64)
    check_losses(ranks, losses, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_experts_on_two_ranks(world: Run, name: str, dtype: torch.dtype) -> None:
    ranks = world(4, scenarios.experts, name, dtype, 4, 2)
    losses, wanted = experts_in_one_process(2 if name != "dualpipev" else 4, dtype)
    for result in ranks:
        mine = losses[result["expert_rank"]]
        assert result["losses"] in ([], pytest.approx(mine, rel=tolerance(dtype)))
        for parameter, gradient in result["gradients"].items():
            key = parameter if "gate" in parameter else f"{parameter}.{result['expert_rank']}"
            assert distance(gradient, wanted[key]) <= tolerance(dtype), key
    assert {result["expert_rank"] for result in ranks if result["losses"]} == {0, 1}


def experts_in_one_process(num_stages: int, dtype: torch.dtype) -> tuple[list[list[float]], dict[str, Tensor]]:
    """Both replicas' micro-batches: half of each one's rows goes to each expert."""
    weights: dict[str, Tensor] = {}
    for s in range(num_stages):
        for name, seed in ((f"{s}.gate.weight", 1), (f"{s}.expert.weight.0", 2), (f"{s}.expert.weight.1", 3)):
            torch.manual_seed(100 * s + seed)
            weights[name] = torch.nn.Linear(scenarios.HIDDEN, scenarios.HIDDEN, bias=False, dtype=dtype).weight
    batch, target = scenarios.expert_batch(16, dtype)
    losses: list[list[float]] = []
    for x, t in zip(batch.chunk(2), target.chunk(2), strict=True):
        losses.append([])
        for x_k, t_k in zip(x.chunk(4), t.chunk(4), strict=True):
            for s in range(num_stages):
                halves = (x_k @ weights[f"{s}.gate.weight"].T).chunk(2)
                x_k = x_k + torch.cat([torch.tanh(h @ weights[f"{s}.expert.weight.{e}"].T)
                                       for e, h in enumerate(halves)])
            loss = (x_k - t_k).square().mean()
            (loss / 8).backward()
            losses[-1].append(loss.item())
    return losses, {name: w.grad for name, w in weights.items()}


# Files.


def test_files_go_both_ways(world: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    ranks = world(2, scenarios.files, str(tmp_path_factory.getbasetemp()), 6, 8)
    losses, wanted, _ = whole_model(*batch_of(16), 6, 8, torch.float64, twice=False)
    for label in [label for label in ranks[0] if "order" not in label]:
        results = [rank[label] for rank in ranks]
        check_losses(results, losses, torch.float64)
        check_gradients(results, wanted, torch.float64)
    for rank in ranks:
        assert rank["our order"] == rank["torch order"]
    assert any("OVERLAP_F_B" in cell for cell in ranks[0]["order"])


# Refusals.


HALVES = ("[ScheduleDualPipe] mirrors must sum their gradients before a norm, got reduce_mirrors = False; set "
          "reduce_mirrors=True, or sum and clip yourself")


def test_refusals(world: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    given = world(2, mistakes.refusals, str(tmp_path_factory.getbasetemp()))[0]
    assert given == {
        "stages": "[ScheduleDualPipe] rank 0 of 2 must give stages [0, 1] of 2, got [0, 3] of 4; stage_indices(0, 2) "
                  "names them",
        "one stage": "[ScheduleDualPipe] rank 0 of 2 must give stages [0, 1] of 2, got [0] of 2; stage_indices(0, 2) "
                     "names them",
        "no stages": "[ScheduleDualPipe] stages must be this rank's PipelineStage objects, got none",
        "micro-batches": "[dualpipe] num_microbatches must be at least 2 x ranks = 4, got 2",
        "odd": "[dualpipe] num_microbatches must be even, got 5; 6 works",
        "v micro-batches": "[dualpipev] num_microbatches must be at least 2 x ranks = 4, got 3",
        "dw_builder": "[ScheduleZB1P] stage 0 must have no dw_builder: the engine splits every backward itself; a "
                      "layer that knows a cheaper split calls dualpipe.utils.WeightGradStore.put() in its backward",
        "autograd": "[ScheduleZB1P] backward_requires_autograd must be True, got False: the engine's backward is "
                    "autograd's; torch's own schedules run other backwards",
        "name": "[dualpipe.pipelining] unknown schedule 'DualPipeX'; DualPipe, DualPipeV and ZB1P run in this "
                "package's engine, and torch's own names work, as 1F1B and Interleaved1F1B",
        "rows": "[ScheduleDualPipe] FILE must have a row for each of 2 ranks, got 1",
        "file micro-batches": "[ScheduleDualPipe] FILE must be for n_microbatches = 4, got 8 micro-batches in it",
        "format": "[ScheduleDualPipe] format must be 'compute_only', got 'compute_comms': torch adds its own "
                  "communication when it loads the file",
        "file stages": "[ScheduleFromFile] rank 0 of 2 must give stages [0, 1] of 2, got [0, 3] of 4; row 0 of the "
                       "file names them",
        "norm of halves": HALVES,
        "clip of halves": HALVES,
        "seam": f"dualpipe.pipelining needs _PipelineStageBase.dw_builder, which torch {torch.__version__} does not "
                "have; torch 2.15 does",
    }


TARGET = ("ValueError: [ScheduleDualPipe] rank 0 computes losses, so step() and eval() need target= or target_mbs= "
          "there, got neither; without loss_fn no target is needed")
MISTAKES = {
    "no_grad": "RuntimeError: step() requires gradients to be enabled for backward computation; it should not be used "
               "under torch.no_grad() context. Please call eval() instead.",
    "target": TARGET,
    "mixed": "ValueError: When using pre-split inputs, pass pre-split positional inputs through arg_mbs=... instead of "
             "positional args.",
    "count": "ValueError: Expecting 4 arg_mbs but got 1",
    "kind": "TypeError: arg_mbs must be a list but got a <class 'tuple'>",
    "eval": TARGET,
    "replaced": "RuntimeError: [ScheduleDualPipe] parameters of a stage were replaced after the first step, so their "
                "gradients would not be summed; load values in place, or make a new schedule",
}


def test_a_step_called_wrongly_on_one_rank_ends_on_all(fresh_world: Run) -> None:
    mine, other = fresh_world(2, mistakes.mistaken_steps)
    assert {name: f"{kind}: {message}" for name, (kind, message, _, _) in mine.items()} == MISTAKES
    assert set(other) == set(MISTAKES)
    for name, (kind, message, _, seconds) in other.items():
        assert mine[name][2] == ["rank 0, the start of a step"], name
        assert kind == "PipelineError" and mine[name][1] in message, name
        assert max(seconds, mine[name][3]) < 20, name


def test_refused_wrappers(world: Run) -> None:
    assert world(2, mistakes.refused_wrappers)[0] == {
        "some": "[ScheduleDualPipe] DistributedDataParallel must wrap every stage of a rank or none, got 1 of 2; wrap "
                "each of them with one process_group",
        "other ranks": "[ScheduleDualPipe] the stages of a rank must be replicated over the same ranks, got DDP over "
                       "[[0], [0, 1]]; give both the same process_group",
        "hook": "[ScheduleDualPipe] gradients are summed by the engine, which would pass by the communication hook "
                "that was registered on DDP; register none, or use fully_shard",
        "mixed precision": "[ScheduleDualPipe] DDP's mixed_precision casts in its reducer, which does not run here; "
                           "use torch.autocast in the loop, or fully_shard with a MixedPrecisionPolicy",
        "halves": "[ScheduleDualPipe] reduce_mirrors must be True under DDP, got False: replicas of mirrors would "
                  "train apart",
        "one rank": "[ScheduleDualPipe] rank 1 of the pipeline cannot start: [ScheduleDualPipe] "
                    "DistributedDataParallel must wrap every stage of a rank or none, got 1 of 2; wrap each of them "
                    "with one process_group",
    }


@pytest.mark.parametrize("value, kind, message", [
    ("raise", "IndexError", "list index out of range"),
    ("text", "TypeError", "[dualpipe.pipelining] stage 0 must return a tensor or a flat tuple of tensors, got a str; "
                          "pass what is no tensor through keyword arguments"),
    ("dtensor", "TypeError", "[dualpipe.pipelining] stage 0 must return a tensor or a flat tuple of tensors that are "
                             "no DTensors, got one of placements (Replicate(),); return .to_local() and make the next "
                             "stage's input with DTensor.from_local()"),
])
def test_errors_of_a_stage_keep_their_type(fresh_world: Run, value: str, kind: str, message: str) -> None:
    (first_kind, text, notes), (other_kind, _, _) = fresh_world(2, mistakes.failing, value)
    assert (first_kind, text) == (kind, message)
    assert any("rank 0, stage 0, micro-batch 0 (0F0)" in note for note in notes)
    assert other_kind == "PipelineError"


@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "fsdp"])
def test_unequal_mirrors_are_refused_or_made_equal(fresh_world: Run, sharded: bool) -> None:
    refused = fresh_world(2, scenarios.mirrors, False, sharded)
    assert all("must start with" in result["message"] for result in refused)
    ranks = fresh_world(2, scenarios.mirrors, True, sharded)
    assert [result["message"] for result in ranks] == ["nothing was refused"] * 2
    for name, value in ranks[0]["values"].items():
        assert torch.equal(value, ranks[1]["values"][name])


def test_contexts_compiled_stages_frozen_parts_and_replaced_parameters(fresh_world: Run) -> None:
    ranks = fresh_world(2, scenarios.small_promises, 6, 4)
    losses, wanted, _ = whole_model(*batch_of(8), 6, 4, torch.float64)
    frozen = {result["frozen"] for result in ranks}
    check_gradients(ranks, {n: g for n, g in wanted.items() if n.split(".")[0] not in frozen}, torch.float64)
    check_losses(ranks, losses, torch.float64)
    for rank, result in enumerate(ranks):
        assert sorted(result["entered"]) == [(rank, k) for k in range(4)]
        assert result["replaced"] == ("[ScheduleZB1P] parameters of a stage were replaced after the first step, so "
                                      "their gradients would not be summed; load values in place, or make a new "
                                      "schedule")


def test_links_of_a_schedule_of_torch_that_is_compared_are_like_ours(fresh_world: Run, tmp_path: Path) -> None:
    expected = ({os.SCHED_OTHER}, {os.SCHED_BATCH})
    assert fresh_world(2, scenarios.recorded_by_torch, str(tmp_path)) == [expected] * 2
