"""Exceptions: what went in comes out, with its place; others are told."""

from __future__ import annotations

from pathlib import Path

import core_mistakes as mistakes
import pytest
from world import Run


def test_other_threads_run_while_a_step_waits(world: Run) -> None:
    _, ticks = world(2, mistakes.ticks_while_waiting, 0.5)
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
    other, mine = fresh_world(2, mistakes.failing_step, where, True)
    assert (mine["type"], mine["message"], mine["code"]) == ("UserMistake", message, code)
    assert mine["notes"] == [f"rank 1, stage 1, micro-batch 2 ({cell})"]
    assert function in mine["functions"]
    assert mine["again"] == other["again"] == "PipelineError"
    assert other["type"] == "PipelineError"
    assert other["record"][:2] == (1, cell) and message in other["record"][2]
    assert other["seconds"] < 10


def test_what_is_no_tensor_is_told_by_its_stage(fresh_world: Run) -> None:
    _, mine = fresh_world(2, mistakes.failing_step, "kind", True)
    assert mine["type"] == "TypeError"
    assert mine["message"] == (
        "[stage 1] what forward returns must be a tensor or a sequence of tensors and None, got dict"
    )
    assert mine["notes"] == ["rank 1, stage 1, micro-batch 2 (1F2)"]


def test_a_store_of_the_host_tells_the_others(fresh_world: Run, tmp_path: Path) -> None:
    other, mine = fresh_world(2, mistakes.failing_store, str(tmp_path / "failures"))
    assert (mine["type"], mine["code"], mine["notes"]) == ("UserMistake", 4, ["rank 1, saving"])
    assert other["type"] == "PipelineError"
    assert other["record"][:2] == (1, "saving") and "the disk is full" in other["record"][2]


MISTAKES = {
    "no sequence": "TypeError: [step] inputs must be a sequence with an entry per micro-batch, got int",
    "entry": "TypeError: [step] an entry of labels must be a tensor or a sequence of tensors and None, got str",
    "no criterion": "ScheduleError: [step] a criterion is wanted, got None; evaluate() goes without",
    "count": "ScheduleError: [step] inputs must hold one entry for each of this rank's 4 micro-batches, got 1",
    "reference criterion": "ScheduleError: [dualpipev] a criterion is wanted in training, got None; or use "
    "torch.no_grad()",
    "scatter": "TypeError: [scatter] tensors and None are wanted, got str",
}


def test_a_step_called_wrongly_on_one_rank_ends_on_all(fresh_world: Run) -> None:
    mine, other = fresh_world(2, mistakes.mistaken_steps)
    assert {name: f"{told['type']}: {told['message']}" for name, told in mine.items()} == MISTAKES
    for name, told in other.items():
        assert mine[name]["notes"] == ["rank 0, the start of a step"], name
        assert (told["type"], told["record"][:2]) == ("PipelineError", (0, "the start of a step")), name
        assert mine[name]["message"] in told["record"][2], name
        assert max(mine[name]["seconds"], told["seconds"]) < 20, name
