"""Losses and every gradient of a step under each schedule, against the whole model in one process."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy
import pytest
from megatron_cases import EMBEDDING, MICRO_BATCH, SEQUENCE, Case, Outcome, RunCase, difference, shard_of

SCHEDULES = ("dualpipev", "dualpipe", "zb1p")
BOUND = {"float32": 1e-5, "float64": 1e-10, "bfloat16": 1e-5}

DENSE = Case("", bias=True)
TIED = Case("", dtype="float64", tied=True, ddp="plain", bias=True)
DOUBLE = Case("", dtype="float64")
MOE = Case("", moe=True)
RECOMPUTE = Case("", recompute="full", moe=True)
SELECTIVE = Case("", recompute="selective", bias=True)
MIXED = Case("", dtype="bfloat16", ddp="plain")
PER_TOKEN = Case("", loss="per_token", ddp="plain")
TOKENS = Case("", loss="tokens")
OVERLAP = Case("", dp=2, ddp="overlap", tied=True, steps=2)
EXPERTS = Case("", dp=2, ep=2, moe=True, ddp="overlap")
PLANS = Case("", dp=2, ep=2, moe=True, ddp="plain", plan=True)
TENSOR = Case("", tp=2, bias=True, tied=True, ddp="plain")
DEEP = Case("", pp=4, layers=8)
# Gradients of an earlier call stay: mirrors and tied weights sum what the later one adds.
ACCUMULATED = Case("", dtype="float64", steps=2, accumulate=True)
ACCUMULATED_TIED = Case("", dtype="float64", tied=True, ddp="plain", steps=2, accumulate=True)
ACCUMULATED_REPLICAS = Case("", dtype="float64", dp=2, ddp="plain", steps=2, accumulate=True)
SCALED = Case("", dtype="float64", grad_scale=8.0)

# By the tests' cross entropy: Megatron's is float32, and adds up in another order where the vocabulary is divided.
TENSOR_DOUBLE = dataclasses.replace(TENSOR, dtype="float64", loss="exact")

CASES = {
    "dense": DENSE,
    "float64": DOUBLE,
    "tied": TIED,
    "moe": MOE,
    "recompute": RECOMPUTE,
    "selective_recompute": SELECTIVE,
    "mixed_precision": MIXED,
    "per_token_loss": PER_TOKEN,
    "token_counts": TOKENS,
    "data_parallel_overlap": OVERLAP,
    "expert_parallel": EXPERTS,
    "schedule_plans": PLANS,
    "tensor_parallel": TENSOR,
    "four_ranks": DEEP,
    "accumulated": ACCUMULATED,
    "accumulated_tied": ACCUMULATED_TIED,
    "accumulated_replicas": ACCUMULATED_REPLICAS,
    "scaled_losses": SCALED,
    "tensor_parallel_float64": TENSOR_DOUBLE,
}
IN_BOTH = (
    "moe",
    "recompute",
    "selective_recompute",
    "per_token_loss",
    "token_counts",
    "data_parallel_overlap",
    "expert_parallel",
    "schedule_plans",
    "four_ranks",
)
CASES |= {f"{name}_float64": dataclasses.replace(CASES[name], dtype="float64") for name in IN_BOTH}


def with_schedule(case: Case, schedule: str) -> Case:
    return dataclasses.replace(case, schedule=schedule)


def expected(reference: Outcome, name: str) -> numpy.ndarray:
    tied = name == "output_layer.weight" and name not in reference.gradients
    return reference.gradients[EMBEDDING if tied else name]


def check_gradients(case: Case, outcomes: list[Outcome], reference: Outcome) -> None:
    """Every gradient that a rank holds, and every parameter on some rank."""
    bound = BOUND[case.dtype]
    for rank, outcome in enumerate(outcomes):
        for name, found in outcome.gradients.items():
            wanted = shard_of(expected(reference, name), found, rank % case.tp, case.tp)
            assert difference(found, wanted) <= bound, (rank, name)
    held = set().union(*(outcome.gradients for outcome in outcomes))
    assert held >= set(reference.gradients)


def check_losses(case: Case, outcomes: list[Outcome], reference: Outcome) -> None:
    """Of all micro-batches of a replica, in order, on the last ranks of its pipeline; nowhere else."""
    count, last = case.num_microbatches, (case.pp - 1) * case.tp * case.dp
    for rank, outcome in enumerate(outcomes):
        replica = rank // case.tp % case.dp
        wanted = reference.losses[replica * count : (replica + 1) * count] if rank >= last else []
        assert outcome.losses == pytest.approx(wanted, rel=BOUND[case.dtype], abs=0.0), rank


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CASES)
def test_step_equals_the_whole_model(
    name: str, schedule: str, run: RunCase, whole: Callable[[Case], Outcome]
) -> None:
    case = with_schedule(CASES[name], schedule)
    outcomes, reference = run(case), whole(CASES[name])
    check_losses(case, outcomes, reference)
    check_gradients(case, outcomes, reference)


def test_1f1b_of_the_engine(run: RunCase, whole: Callable[[Case], Outcome]) -> None:
    case = with_schedule(DENSE, "1f1b")
    outcomes, reference = run(case), whole(DENSE)
    check_losses(case, outcomes, reference)
    check_gradients(case, outcomes, reference)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_evaluation(schedule: str, dtype: str, run: RunCase, whole: Callable[[Case], Outcome]) -> None:
    """Losses on the last rank alone, non-loss data too; gradients stay."""
    case = dataclasses.replace(MOE, dtype=dtype)
    first, last = run(dataclasses.replace(with_schedule(case, schedule), watch="evaluation"))
    wanted, bound = whole(case).losses, min(1e-6, BOUND[dtype])
    assert first.notes["losses"] == [] and first.notes["means"] == []
    assert last.notes["losses"] == pytest.approx(wanted, rel=bound)
    assert last.notes["means"] == pytest.approx(wanted, rel=bound)
    assert first.notes["gradients_stayed"] and last.notes["gradients_stayed"]


def norm_of(reference: Outcome) -> float:
    return math.sqrt(sum(float(numpy.square(gradient).sum()) for gradient in reference.gradients.values()))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_optimizer(schedule: str, run: RunCase, whole: Callable[[Case], Outcome]) -> None:
    """Megatron's own norm counts each parameter once; copies are equal to the bit after its step."""
    case = Case("", tied=True, ddp="plain")
    outcomes = run(dataclasses.replace(with_schedule(case, schedule), watch="optimizer"))
    wanted = norm_of(whole(case))
    seen: dict[str, numpy.ndarray] = {}
    for outcome in outcomes:
        assert outcome.notes["norm"] == pytest.approx(wanted, rel=1e-5)
        for name, weight in outcome.notes["weights"].items():
            known = seen.setdefault(EMBEDDING if name == "output_layer.weight" else name, weight)
            assert numpy.array_equal(known, weight), name


def test_router_biases_see_the_whole_batch(run: RunCase) -> None:
    """Under dualpipe each mirror routes half of the micro-batches; both copies move as under dualpipev."""
    settings = (("moe_router_enable_expert_bias", True), ("moe_router_score_function", "sigmoid"))
    case = Case("", moe=True, ddp="plain", settings=settings, watch="expert_bias")
    wanted = {layer: bias for found in run(with_schedule(case, "dualpipev")) for layer, bias in found.notes.items()}
    assert len(wanted) == 4 and any(value != 0 for bias in wanted.values() for value in bias)
    for outcome in run(with_schedule(case, "dualpipe")):
        assert outcome.notes == wanted


def test_router_counts_of_two_calls_add_up(run: RunCase) -> None:
    """Without finalize_model_grads_func nobody takes them away in between."""
    settings = (("moe_router_enable_expert_bias", True), ("moe_router_score_function", "sigmoid"))
    case = Case("", moe=True, settings=settings, steps=2, accumulate=True, watch="router_counts")
    wanted = {layer: count for found in run(with_schedule(case, "dualpipev")) for layer, count in found.notes.items()}
    per_step = case.num_microbatches * MICRO_BATCH * SEQUENCE * 2  # Two experts per token.
    assert [sum(counts) for counts in wanted.values()] == [2 * per_step] * 4
    for outcome in run(with_schedule(case, "dualpipe")):
        assert outcome.notes == wanted


@pytest.mark.parametrize("schedule", ["dualpipev", "dualpipe"])
def test_pairs_run_by_schedule_plans(schedule: str, run: RunCase) -> None:
    """The engine's pairs are run by Megatron's plan, in the order of the schedule."""
    outcomes = run(dataclasses.replace(with_schedule(PLANS, schedule), watch="order"))
    for outcome in outcomes:
        pairs = [cell for cell in outcome.notes["cells"] if cell.endswith("OVERLAP_F_B")]
        assert outcome.notes["overlapped"] == len(pairs) > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_buckets_are_reduced_beside_each_other(schedule: str, run: RunCase) -> None:
    """All reductions of both chunks have begun when the first is waited for."""
    case = Case("", dp=2, ddp="overlap", watch="buckets")
    for rank, outcome in enumerate(run(with_schedule(case, schedule))):
        buckets = outcome.notes["buckets"]
        assert outcome.notes["events"] == ["start_grad_sync"] * buckets + ["finish_grad_sync"] * buckets
        chunks = 1 if schedule == "zb1p" else 2
        assert buckets > chunks if rank < case.dp else buckets == chunks, rank


@pytest.mark.parametrize("schedule", ["dualpipev", "zb1p"])
def test_order_is_that_of_the_plan(schedule: str, run: RunCase) -> None:
    import dualpipe

    outcomes = run(dataclasses.replace(with_schedule(DENSE, schedule), watch="order"))
    rows = dualpipe.plan(schedule, 2, 8)
    for outcome, row in zip(outcomes, rows, strict=True):
        assert outcome.notes["cells"] == list(row)
