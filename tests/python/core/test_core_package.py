"""The package itself: plans and their files, the command, the refusal of another torch, type hints."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from example_runs import ROOT, torchrun
from hypothesis import given, settings
from hypothesis import strategies as st

import dualpipe
from dualpipe import ScheduleError, plan, read_csv, schedule_names, utils, write_csv
from dualpipe.core import stages_of
from dualpipe.run_files import (
    HostStatistics,
    RunFiles,
    TimelineHeader,
    asked_folder,
    asked_schedule,
    state_bytes,
    tokens_per_second,
)

PACKAGE = Path(dualpipe.__file__).parent


@st.composite
def planned(draw: st.DrawFn) -> tuple[str, int, int]:
    """A schedule that exists, its ranks and its micro-batches."""
    schedule = draw(st.sampled_from(schedule_names()))
    ranks = 2 * draw(st.integers(1, 4))
    more = draw(st.integers(0, 6))
    micro_batches = ranks * (2 + more) if schedule == "interleaved_1f1b" else 2 * (ranks + more)
    return schedule, ranks, micro_batches


@settings(deadline=None, max_examples=60)
@given(planned())
def test_a_plan_survives_a_file(case: tuple[str, int, int]) -> None:
    import tempfile

    rows = plan(*case)
    assert len(rows) == case[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.csv"
        write_csv(rows, path)
        assert read_csv(path) == rows
        assert plan(str(path), case[1], case[2]) == rows
        write_csv(plan(*case, lowered=True), path)
        assert read_csv(path) == rows


def test_torch_reads_what_is_written(tmp_path: Path) -> None:
    from torch.distributed.pipelining.schedules import _Action

    rows = plan("dualpipev", 2, 5)
    for row in rows:
        assert [str(_Action.from_str(cell)) for cell in row] == row


def test_stages_are_known_ahead() -> None:
    assert stages_of("dualpipe", 4, 8, 1) == [1, 2]
    assert stages_of("dualpipev", 4, 8, 1) == [1, 6]
    assert stages_of("interleaved_1f1b", 2, 4, 1, virtual_pipeline_model_parallel_size=3) == [1, 3, 5]


def test_a_plan_that_cannot_be_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"^\[dualpipev\] num_microbatches must be at least 2 x ranks = 8, got 6$"):
        plan("dualpipev", 4, 6)


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--schedule", "dualpipe", "--pipeline-model-parallel-size", "4", "--num-microbatches", "8"],
        ["schedules"],
        ["plan", "--schedule", "nonsense"],
    ],
)
def test_the_command_is_that_of_cpp(arguments: list[str]) -> None:
    twin = subprocess.run([sys.executable, "-m", "dualpipe", *arguments], capture_output=True, text=True)
    own = subprocess.run([str(PACKAGE / "bin" / "dualpipe"), *arguments], capture_output=True, text=True)
    assert (twin.returncode, twin.stdout, twin.stderr) == (own.returncode, own.stdout, own.stderr)
    assert twin.stdout or twin.stderr


def test_the_command_plans_what_python_plans() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "dualpipe", "plan", "--schedule", "dualpipe", "--pipeline-model-parallel-size", "4",
         "--num-microbatches", "8", "--format", "csv"],
        capture_output=True, text=True, check=True,
    )
    assert [line.split(",") for line in run.stdout.splitlines()] == plan("dualpipe", 4, 8)


@pytest.mark.parametrize("revision", ["0123", torch.version.git_version], ids=["other", "same_sources"])
def test_another_torch_is_refused_in_one_sentence(tmp_path: Path, revision: str) -> None:
    copy = tmp_path / "dualpipe"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "bin", "megatron", "pipelining",
                                                                 "torchtitan"))
    (copy / "_build_info.py").write_text(f'TORCH_VERSION = "2.15.0+cu999"\nTORCH_REVISION = "{revision}"\n')
    run = subprocess.run([sys.executable, "-P", "-c", "import dualpipe"], capture_output=True, text=True,
                         env={"PYTHONPATH": str(tmp_path), "PATH": ""})
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == (
        f"ImportError: dualpipe was built for torch 2.15.0+cu999, but torch {torch.__version__} is installed: build it "
        "again with `pip install --no-build-isolation --force-reinstall --no-deps` from its sources."
    )


def test_it_is_typed_and_brings_no_libtorch() -> None:
    assert (PACKAGE / "py.typed").exists()
    assert [path.name for path in PACKAGE.rglob("lib*.so*")] == []


def test_the_store_outside_an_engine_is_a_queue_of_groups() -> None:
    done: list[int] = []
    store = utils.WeightGradStore
    store.clear()
    assert not store.enabled
    store.enabled = True
    assert store.enabled
    for i in range(2):
        store.put(lambda i=i: done.append(i))
        store.flush()
    store.enabled = False
    store.pop()
    assert done == [0]
    store.pop()
    assert done == [0, 1]
    with pytest.raises(AssertionError):
        store.pop()
    store.put(lambda: done.append(2))
    store.flush()
    store.clear()
    with pytest.raises(AssertionError):
        store.pop()


def test_scatter_and_gather_are_inverse() -> None:
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    parts = utils.scatter((x, None, y), 3, 0)
    assert [tuple(part[0].shape) for part in parts] == [(2, 2)] * 3 and all(part[1] is None for part in parts)
    whole = utils.gather(parts, 0)
    assert torch.equal(whole[0], x) and whole[1] is None and torch.equal(whole[2], y)
    assert utils.scatter((), 2, 0) == [(), ()]


def test_run_backward_passes_what_needs_no_gradient() -> None:
    x = torch.ones(3, requires_grad=True)
    utils.run_backward([x * 2.0, torch.ones(1)], [torch.full((3,), 5.0), torch.ones(1)])
    assert torch.equal(x.grad, torch.full((3,), 10.0))
    utils.run_backward([], [])


def test_declarations_of_shapes_are_accepted() -> None:
    dualpipe.set_p2p_tensor_shapes([(2, 3, 4)])
    dualpipe.set_p2p_tensor_dtype(torch.bfloat16)
    with pytest.raises(TypeError, match="a torch.dtype is wanted, got 'bf16'"):
        dualpipe.set_p2p_tensor_dtype("bf16")  # type: ignore[arg-type]


def test_run_files_of_a_hosts_own_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = TimelineHeader("builtin_1f1b", 0, 2, 0, 2, 4, 2, [0], optimizer_bytes=8)
    files = RunFiles(tmp_path, header, record_from=2)
    for iteration in (1, 2):
        statistics = HostStatistics(5.0, [("0F0", 0.0, 0.5, 0.0), ("0B0", 0.75, 1.0, 0.125)])
        files.record(iteration, 2.5, float("inf"), 0.1, 12.0, statistics)
    files.close()
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(
        f'{{"iteration":{i},"lm_loss":2.5,"grad_norm":null,"lr":0.1,"ms":12.0}}\n' for i in (1, 2)
    )
    assert (tmp_path / "timeline_rank0.jsonl").read_text() == (
        '{"format":"dualpipe-timeline","version":1,"schedule":"builtin_1f1b","rank":0,"world_size":2,"pipeline_rank":0,'
        '"pipeline_model_parallel_size":2,"num_microbatches":4,"num_stages":2,"stages":[0],"optimizer_bytes":8}\n'
        '{"iteration":2,"began":5.0,"seconds":1.0,"spans":[["0F0",0.0,0.5],["0B0",0.75,1.0,0.125]]}\n'
    )
    monkeypatch.setenv("DUALPIPE_SCHEDULE", "zb1p")
    monkeypatch.setenv("DUALPIPE_OUTPUT", str(tmp_path))
    assert (asked_schedule("1f1b"), asked_folder()) == ("zb1p", tmp_path)
    monkeypatch.delenv("DUALPIPE_SCHEDULE")
    monkeypatch.delenv("DUALPIPE_OUTPUT")
    assert (asked_schedule("1f1b"), asked_folder()) == ("1f1b", None)


def test_a_header_may_be_made_when_the_timeline_begins(tmp_path: Path) -> None:
    """Bytes of an optimizer's state are known behind its first step; counters are no state to speak of."""
    weight = torch.nn.Parameter(torch.ones(3, 4, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight])
    files = RunFiles(tmp_path, TimelineHeader("1f1b", 0, 1, 0, 1, 1, 1, [0]), record_from=2)
    for iteration in (1, 2, 3):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        files.record(iteration, 1.0, 1.0, 0.1, 1.0, HostStatistics(5.0), header=lambda: TimelineHeader(
            "1f1b", 0, 1, 0, 1, 1, 1, [0], optimizer_bytes=state_bytes(optimizer)))
    files.close()
    header, *steps = (json.loads(line) for line in (tmp_path / "timeline_rank0.jsonl").open())
    assert header["optimizer_bytes"] == 2 * 12 * 8
    assert [step["iteration"] for step in steps] == [2, 3]
    assert state_bytes(optimizer, torch.optim.SGD([weight])) == 2 * 12 * 8


def test_tokens_per_second_where_tokens_are_known() -> None:
    assert tokens_per_second(512, 250.0) == 2048.0
    assert tokens_per_second(None, 250.0) is None


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_twin_of_custom_overlap_waits_less_by_its_hook(ranks: int) -> None:
    output = torchrun(ROOT / "examples" / "custom_overlap" / "custom_overlap.py", ranks)
    assert output.count("of the sequence's: passed") == ranks
    assert "by hook" in output and "0 of" in output
