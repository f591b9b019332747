"""DualPipe and DualPipeV as scripts for the reference use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import core_scenarios as scenarios
import pytest
from example_runs import torchrun
from world import Run


def check(results: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(results):
        assert result["trained_losses_equal"], rank
        assert result["no_outputs"], rank
        assert result["gradients"] <= 1e-10, rank
        assert result["inferred_equal"], rank
        assert result["outputs_equal"], rank
        assert result["no_gradients"], rank


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "hooked"])
@pytest.mark.parametrize("face", ["DualPipe", "DualPipeV"])
def test_a_script_for_the_reference_gets_what_it_expects(world: Run, face: str, hooked: bool, ranks: int) -> None:
    results = world(ranks, scenarios.reference_step, face, hooked, None)
    check(results)
    for rank, result in enumerate(results):
        assert result["place"] == (rank, rank == 0, rank == ranks - 1, 0, ranks - 1)
        wanted = result["planned"] if hooked else 0
        assert result["planned"] > 0 and result["pairs"] == result["overlapped"] == wanted, rank


@pytest.mark.parametrize("face", ["DualPipe", "DualPipeV"])
def test_ranks_may_be_mapped(world: Run, face: str) -> None:
    mapping = (2, 0, 3, 1)
    results = world(4, scenarios.reference_step, face, True, mapping)
    check(results)
    assert [result["place"][0] for result in results] == list(mapping)
    assert {result["place"][3:] for result in results} == {(1, 2)}


def test_mirrors_hold_the_sum_on_request(world: Run) -> None:
    assert max(world(4, scenarios.reference_mirrors_reduced)) <= 1e-10


def test_a_script_as_a_file_runs_as_it_is() -> None:
    output = torchrun(Path(__file__).resolve().parent / "reference_script.py", 2)
    wanted = [f"{face}, rank {rank}: passed" for face in ("DualPipe", "DualPipeV") for rank in range(2)]
    assert sorted(output.splitlines()) == wanted


@pytest.mark.parametrize("face", ["DualPipe", "DualPipeV"])
def test_an_optimizer_may_be_registered(world: Run, face: str) -> None:
    """Its step clips by the one norm of the whole model, with losses summed as the reference sums them."""
    results = world(2, scenarios.reference_optimizer, face)
    assert max(result["moved"] for result in results) <= 1e-12
    assert min(result["norm"] for result in results) > scenarios.CLIP  # So that clipping is seen.
