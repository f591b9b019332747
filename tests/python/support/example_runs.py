"""Example scripts of the adapters, run as users run them: copied, patched with ``git apply``, started by torchrun."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
COMPARED = ("builtin_1f1b", "interleaved_1f1b", "dualpipe", "dualpipev")  # By the README's one command, for every host.


def example_file(adapter: str, name: str) -> Path:
    return ROOT / "adapters" / adapter / "example" / name


def copy_example(adapter: str, folder: Path, patched: bool) -> Path:
    """``folder/train.py``, with the adapter's diff applied or as it is."""
    folder.mkdir(parents=True)
    shutil.copy(example_file(adapter, "train.py"), folder)
    if patched:
        apply_diff(adapter, folder)
    return folder / "train.py"


def apply_diff(adapter: str, folder: Path, *options: str) -> None:
    """Patches ``folder/train.py``; git also ends well where it skipped a patch, so the file is looked at."""
    before = (folder / "train.py").read_text()
    run = subprocess.run(["git", "apply", *options, str(example_file(adapter, "dualpipe.diff"))], cwd=folder,
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert (folder / "train.py").read_text() != before, "git apply changed nothing"


def changed_lines(adapter: str) -> int:
    """Added and removed lines of the adapter's diff."""
    lines = example_file(adapter, "dualpipe.diff").read_text().splitlines()
    return sum(line[:1] in ("+", "-") and line[:3] not in ("+++", "---") for line in lines)


def _environment(paths: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """``paths`` go ahead of PYTHONPATH."""
    known = filter(None, [os.environ.get("PYTHONPATH")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables,
            "PYTHONPATH": os.pathsep.join([*paths, *known])}


def torchrun(script: Path, ranks: int, paths: tuple[str, ...] = (), limit_s: float = 150, **variables: str) -> str:
    """Output of a run that ended well. ``paths`` go ahead of PYTHONPATH."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "0",
               "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(script)]
    run = subprocess.run(command, cwd=script.parent, env=_environment(paths, variables), capture_output=True, text=True,
                         timeout=limit_s)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def compare(script: Path, ranks: int, schedules: Sequence[str], paths: tuple[str, ...] = (),
            **variables: str) -> dict[str, Any]:
    """comparison.json of one round of `dualpipe ab` over a script that torchrun starts."""
    folder = script.parent / "ab"
    command = " ".join([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
                        str(script)])
    run = subprocess.run([sys.executable, "-m", "dualpipe", "ab", "--command", command, "--schedules",
                          ",".join(schedules), "--rounds", "1", "--warmup", "2", "--output", str(folder)],
                         env=_environment(paths, variables), capture_output=True, text=True, timeout=480)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads((folder / "comparison.json").read_text())


def check_comparison(comparison: dict[str, Any], schedules: Sequence[str]) -> None:
    """Every schedule ran, trained alike from the first step on (by Adam, in float32), and was measured."""
    assert comparison["mismatches"] == []
    assert [found["schedule"] for found in comparison["runs"]] == list(schedules)
    for found in comparison["runs"]:
        assert found["failure"] is None
        assert found["first_loss_difference"] <= 1e-5 and found["first_grad_norm_difference"] <= 1e-5
        assert found["measured"] is not None and 0 <= found["bubble"] < 1
        assert found["optimizer_bytes"] == 2 * found["parameter_bytes"] > 0


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_same_training(built_in: list[dict[str, Any]], ours: list[dict[str, Any]]) -> None:
    """First loss and norm within 1e-5, the loss curve within 1e-4, and a loss that falls."""
    assert len(built_in) == len(ours)
    for key in ("lm_loss", "grad_norm"):
        assert abs(ours[0][key] / built_in[0][key] - 1) <= 1e-5, key
    for theirs, mine in zip(built_in, ours, strict=True):
        assert abs(mine["lm_loss"] / theirs["lm_loss"] - 1) <= 1e-4, theirs["iteration"]
    assert ours[-1]["lm_loss"] < ours[0]["lm_loss"]
