"""example/train.py as it is under torch's schedule, and under ours behind its diff, and the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path

from example_runs import (
    changed_lines,
    check_comparison,
    check_same_training,
    compare,
    copy_example,
    metrics_of,
    torchrun,
)


def test_the_example_trains_alike_before_and_after_its_diff(tmp_path: Path) -> None:
    assert changed_lines("torch_pipelining") <= 10
    plain = copy_example("torch_pipelining", tmp_path / "plain", patched=False)
    torchrun(plain, 4, OUTPUT=str(plain.parent))
    patched = copy_example("torch_pipelining", tmp_path / "patched", patched=True)
    torchrun(patched, 4, DUALPIPE_OUTPUT=str(patched.parent))
    ours = metrics_of(patched.parent)
    check_same_training(metrics_of(plain.parent), ours)
    assert all(abs(line["tokens_per_second"] * line["ms"] / (8 * 4 * 16 * 1e3) - 1) <= 1e-9 for line in ours)
    for rank in range(4):
        header, *steps = (json.loads(line) for line in (patched.parent / f"timeline_rank{rank}.jsonl").open())
        assert (header["schedule"], header["rank"], header["stages"]) == ("DualPipe", rank, sorted([rank, 3 - rank]))
        assert [step["iteration"] for step in steps] == [8, 9, 10, 11, 12]
        assert any("OVERLAP_F_B" in span[0] for span in steps[0]["spans"])


def test_the_patched_example_records_torchs_own_schedules_too(tmp_path: Path) -> None:
    patched = copy_example("torch_pipelining", tmp_path / "patched", patched=True)
    torchrun(patched, 2, DUALPIPE_OUTPUT=str(patched.parent), DUALPIPE_SCHEDULE="InterleavedZeroBubble")
    header, *steps = (json.loads(line) for line in (patched.parent / "timeline_rank1.jsonl").open())
    assert (header["schedule"], header["stages"], len(steps)) == ("InterleavedZeroBubble", [1, 3], 5)
    cells = [span[0] for span in steps[-1]["spans"]]
    assert sorted(cell for cell in cells if "F" in cell) == sorted(f"{s}F{k}" for s in (1, 3) for k in range(8))
    assert {cell[1] for cell in cells} == {"F", "I", "W"}
    assert all(span[1] <= span[2] for span in steps[-1]["spans"])


def test_one_command_compares_torchs_schedules_with_ours(tmp_path: Path) -> None:
    schedules = ["Interleaved1F1B", "DualPipe"]
    patched = copy_example("torch_pipelining", tmp_path / "patched", patched=True)
    check_comparison(compare(patched, 2, schedules, STEPS="5"), schedules)
