"""Exceptions: what went in comes out, with its place; others are told."""

from __future__ import annotations

from pathlib import Path

import core_scenarios as scenarios
import pytest
from world import Run


def test_other_threads_run_while_a_step_waits(world: Run) -> None:
    _, ticks = world(2, scenarios.ticks_while_waiting, 0.5)
    assert ticks >= 50  # 200 in two steps of half a second, were the machine idle.


@pytest.mark.parametrize(
    ("where", "message", "code", "cell", "function"),
    [
        ("forward", "in a forward", 1, "1F2", "forward"),
        ("criterion", "in a loss", 2, "1F2", "criterion"),
        ("backward", "in a backward", 3, "1B2", "backward"),
    ],
)
def test_an_exception_comes_out_as_it_went_in(
    fresh_world: Run, where: str, message: str, code: int, cell: str, function: str
) -> None:
    other, mine = fresh_world(2, scenarios.failing_step, where, True)
    assert (mine["type"], mine["message"], mine["code"]) == ("UserMistake", message, code)
    assert mine["notes"] == [f"rank 1, stage 1, micro-batch 2 ({cell})"]
    assert function in mine["functions"]
    assert mine["again"] == other["again"] == "PipelineError"
    assert other["type"] == "PipelineError"
    assert other["record"][:2] == (1, cell) and message in other["record"][2]
    assert other["seconds"] < 10


def test_what_is_no_tensor_is_told_by_its_stage(fresh_world: Run) -> None:
    _, mine = fresh_world(2, scenarios.failing_step, "kind", True)
    assert mine["type"] == "TypeError"
    assert mine["message"] == (
        "[stage 1] what forward returns must be a tensor or a sequence of tensors and None, got dict"
    )
    assert mine["notes"] == ["rank 1, stage 1, micro-batch 2 (1F2)"]


def test_a_store_of_the_host_tells_the_others(fresh_world: Run, tmp_path: Path) -> None:
    other, mine = fresh_world(2, scenarios.failing_store, str(tmp_path / "failures"))
    assert (mine["type"], mine["code"], mine["notes"]) == ("UserMistake", 4, ["rank 1, saving"])
    assert other["type"] == "PipelineError"
    assert other["record"][:2] == (1, "saving") and "the disk is full" in other["record"][2]
