"""The example as users run it: as it is under Megatron's schedules, with the diff under ours, and by `dualpipe ab`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import dualpipe
import pytest
import torch
import torch.distributed as dist
from dualpipe.megatron.builtin import BuiltinForwardBackward
from dualpipe.megatron.run_log import RunLog, optimizer_bytes
from example_runs import COMPARED, changed_lines, check_comparison, check_same_training, copy_example, metrics_of
from gloo_threads import policies

ITERATIONS = 10
TOKENS_PER_STEP = 8 * 2 * 16  # Micro-batches, rows, positions; one replica.
ON_CPU = str(Path(__file__).resolve().parent / "run_on_cpu.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def train(script: Path, output: Path, *arguments: str, ranks: int = 2) -> list[dict[str, Any]]:
    """Its metrics; `output` is made by the script."""
    command = [*TORCHRUN, str(ranks), ON_CPU, str(script), "--train-iters", str(ITERATIONS), "--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
    return metrics_of(output)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The script as it is, and with the diff applied."""
    folder = tmp_path_factory.mktemp("example")
    return copy_example("megatron_core", folder / "plain", False), copy_example("megatron_core", folder / "ours", True)


@pytest.fixture(scope="module")
def built_in(scripts: tuple[Path, Path]) -> list[dict[str, Any]]:
    return train(scripts[0], scripts[0].parent / "output")


def test_links_of_a_schedule_of_megatron_that_is_compared_are_like_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUALPIPE_GLOO_THREADS", "yield")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert policies() == {os.SCHED_OTHER}
        RunLog(tmp_path, BuiltinForwardBackward("builtin_1f1b", lambda: []), 5)
        assert policies() == {os.SCHED_BATCH}
    finally:
        dist.destroy_process_group()


def test_diff_is_short() -> None:
    assert changed_lines("megatron_core") <= 10


def test_interleaved_1f1b(scripts: tuple[Path, Path], built_in: list[dict[str, Any]]) -> None:
    interleaved = train(scripts[0], scripts[0].parent / "interleaved", "--virtual-pipeline-model-parallel-size", "2")
    check_same_training(built_in, interleaved)


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipev"])
def test_same_training(schedule: str, scripts: tuple[Path, Path], built_in: list[dict[str, Any]]) -> None:
    ours = train(scripts[1], scripts[1].parent / schedule, "--pipeline-schedule", schedule)
    check_same_training(built_in, ours)
    tokens = TOKENS_PER_STEP * 1e3
    assert all(line["tokens_per_second"] == pytest.approx(tokens / line["ms"]) for line in ours)


def test_one_command_compares_all(scripts: tuple[Path, Path], tmp_path: Path) -> None:
    """Four schedules by one command line, with measured actions of each."""
    command = " ".join([*TORCHRUN, "2", ON_CPU, str(scripts[1]), "--train-iters", "5"])
    program = Path(dualpipe.__file__).parent / "bin" / "dualpipe"
    arguments = ["--schedules", ",".join(COMPARED), "--rounds", "1", "--warmup", "2", "--output", str(tmp_path / "ab")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.run(
        [str(program), "ab", "--command", command, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    check_comparison(json.loads((tmp_path / "ab" / "comparison.json").read_text()), COMPARED)


def test_what_an_optimizer_holds() -> None:
    """Two moments of each element, and the fp32 copies that a mixed-precision optimizer updates in place of bf16."""
    model = [torch.nn.Parameter(torch.ones(3, 5, dtype=torch.bfloat16)), torch.nn.Parameter(torch.ones(8))]
    shard = model[1].detach()[:4]
    masters = [torch.nn.Parameter(model[0].detach().float()), torch.nn.Parameter(shard)]
    parts = [torch.optim.AdamW([master]) for master in masters]
    chained = types.SimpleNamespace(chained_optimizers=[types.SimpleNamespace(optimizer=part) for part in parts])
    assert optimizer_bytes(chained, model) == 4 * 15  # Before the first step: the copies alone.
    for master, part in zip(masters, parts, strict=True):
        master.grad = torch.ones_like(master)
        part.step()
    assert optimizer_bytes(chained, model) == 4 * 15 + 2 * 4 * 15 + 2 * 4 * 4
    assert optimizer_bytes(parts[1], model) == 2 * 4 * 4
