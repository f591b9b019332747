"""example/train.py as it is under torch's schedule, and under ours behind its diff, and the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path

from example_runs import (
    COMPARED,
    changed_lines,
    check_comparison,
    check_same_training,
    compare,
    copy_example,
    metrics_of,
    torchrun,
)

# Elements of the example's parts: embedding, six blocks (norms, two matrices of attention, two of the MLP), head.
BLOCK = 2 * 2 * 32 + (32 * 96 + 96) + (32 * 32 + 32) + (32 * 128 + 128) + (128 * 32 + 32)
PARTS = [96 * 32, *[BLOCK] * 6, 32 * 96 + 96]


def test_the_example_trains_alike_before_and_after_its_diff(tmp_path: Path) -> None:
    assert changed_lines("torch_pipelining") <= 10
    plain = copy_example("torch_pipelining", tmp_path / "plain", patched=False)
    torchrun(plain, 4, OUTPUT=str(plain.parent))
    patched = copy_example("torch_pipelining", tmp_path / "patched", patched=True)
    torchrun(patched, 4, OUTPUT=str(patched.parent))
    ours = metrics_of(patched.parent)
    check_same_training(metrics_of(plain.parent), ours)
    assert all(abs(line["tokens_per_second"] * line["ms"] / (8 * 4 * 16 * 1e3) - 1) <= 1e-9 for line in ours)
    for rank in range(4):
        header, *steps = (json.loads(line) for line in (patched.parent / f"timeline_rank{rank}.jsonl").open())
        assert (header["schedule"], header["rank"], header["stages"]) == ("DualPipe", rank, sorted([rank, 3 - rank]))
        held = sum(PARTS[2 * s] + PARTS[2 * s + 1] for s in header["stages"])
        assert (header["parameter_bytes"], header["optimizer_bytes"]) == (4 * held, 8 * held)  # AdamW's two moments.
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
    patched = copy_example("torch_pipelining", tmp_path / "patched", patched=True)
    check_comparison(compare(patched, 2, COMPARED, STEPS="5"), COMPARED)


def test_the_example_runs_torchs_schedules_of_one_stage(tmp_path: Path) -> None:
    """As it is, and the patched one by the command's name for the same schedule."""
    plain = copy_example("torch_pipelining", tmp_path / "plain", patched=False)
    torchrun(plain, 2, OUTPUT=str(plain.parent), SCHEDULE="1F1B", STEPS="5")
    patched = copy_example("torch_pipelining", tmp_path / "patched", patched=True)
    torchrun(patched, 2, OUTPUT=str(patched.parent), DUALPIPE_SCHEDULE="builtin_1f1b", STEPS="5")
    check_same_training(metrics_of(plain.parent), metrics_of(patched.parent))
    header, *steps = (json.loads(line) for line in (patched.parent / "timeline_rank1.jsonl").open())
    assert (header["schedule"], header["num_stages"], header["stages"]) == ("builtin_1f1b", 2, [1])
    cells = [f"1{kind}{k}" for k in range(8) for kind in "FB"]  # The last stage: each backward behind its forward.
    assert [span[0] for span in steps[-1]["spans"]] == cells
