"""dualpipe.torchtitan with torchtitan's pipelining function and debug models, on 2 and 4 Gloo processes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import dualpipe
import pytest
import titan_scenarios as scenarios
import torch
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
from torch import Tensor
from world import Run

from dualpipe.torchtitan import seams

NAMES = ["DualPipe", "DualPipeV", "ZB1P"]
STAND_INS = (str(Path(__file__).resolve().parent / "stand_ins"),)


@pytest.fixture(scope="module")
def wanted() -> dict[int, tuple[list[float], dict[str, Tensor]]]:
    """By the number of replicas: losses and gradients of the whole model in one process."""
    return {replicas: whole_model(replicas) for replicas in (1, 2)}


def whole_model(replicas: int) -> tuple[list[float], dict[str, Tensor]]:
    return losses_and_gradients(scenarios.debug_model(scenarios.debug_spec()), scenarios.ROWS * replicas)


def losses_and_gradients(
    model: torch.nn.Module, rows: int, images: bool = False
) -> tuple[list[float], dict[str, Tensor]]:
    """Plain autograd, row by row."""
    loss_fn = scenarios.CrossEntropyLoss.Config().build()
    losses = []
    batch, batch_labels = scenarios.batch_of(rows)
    batch, keywords = scenarios.with_images(batch) if images else (batch, [{}] * rows)
    for tokens, labels, options in zip(batch.split(1), batch_labels.split(1), keywords, strict=True):
        loss, _ = loss_fn(model(tokens, **options), labels, torch.tensor(float(rows * scenarios.SEQUENCE)))
        loss.backward()
        losses.append(loss.item())
    return losses, {name: p.grad for name, p in model.named_parameters()}


@functools.cache
def whole_vision_model() -> tuple[list[float], dict[str, Tensor]]:
    model = scenarios.debug_model(scenarios.debug_spec("kimi"))
    return losses_and_gradients(model, scenarios.ROWS, images=True)


@functools.cache
def whole_model_cast(param_dtype: torch.dtype) -> tuple[list[float], dict[str, Tensor]]:
    """As FSDP's policy says, without FSDP: parameters are cast, their gradients are kept and summed in float32."""
    model = scenarios.debug_model(scenarios.debug_spec())
    for parameter in model.parameters():
        parameter.data = parameter.data.to(param_dtype)
        parameter.grad_dtype = torch.float32
    return losses_and_gradients(model, scenarios.ROWS)


@functools.cache
def whole_moe_model() -> tuple[list[float], dict[str, Tensor]]:
    """Both replicas' rows at a time, as the experts of two ranks see them: torchtitan's compute in bfloat16, so that
    how many rows are summed before a gradient is rounded shows."""
    model = scenarios.debug_model(scenarios.debug_spec("qwen3_moe"))
    loss_fn = scenarios.CrossEntropyLoss.Config().build()
    batch = scenarios.batch_of(2 * scenarios.ROWS)
    losses = torch.zeros(2, scenarios.ROWS)
    for k in range(scenarios.ROWS):
        tokens, labels = (t[k :: scenarios.ROWS] for t in batch)
        count = torch.tensor(float(batch[0].numel()))
        logits = model(tokens).split(1)
        both = torch.stack([loss_fn(x, y, count)[0] for x, y in zip(logits, labels.split(1), strict=True)])
        both.sum().backward()
        losses[:, k] = both.detach()
    return losses.flatten().tolist(), {name: p.grad for name, p in model.named_parameters()}


def check(ranks: list[dict[str, Any]], losses: list[float], gradients: dict[str, Tensor]) -> None:
    seen = set()
    for result in ranks:
        if result["losses"] is not None:
            first = scenarios.ROWS * result["replica"]
            assert result["losses"] == pytest.approx(losses[first : first + scenarios.ROWS], rel=1e-5)
            assert result["evaluated"] == pytest.approx(result["losses"], rel=1e-5)
            assert result["has_head"][-1]
        for name, gradient in result["gradients"].items():
            seen.add(name)
            assert ((gradient - gradients[name]).norm() / gradients[name].norm()).item() <= 1e-5, name
    assert seen == set(gradients)
    assert any(result["losses"] is not None for result in ranks)


@pytest.mark.parametrize("name, size", [*((name, 2) for name in NAMES), ("DualPipe", 4)])
def test_equals_the_whole_model(world: Run, wanted: dict[int, Any], name: str, size: int) -> None:
    ranks = world(size, scenarios.train, name, size)
    check(ranks, *wanted[1])
    assert {result["schedule"] for result in ranks} == {"dualpipe.pipelining.schedules"}


@pytest.mark.parametrize("name", NAMES)
def test_two_replicas_by_fsdp(world: Run, wanted: dict[int, Any], name: str) -> None:
    check(world(4, scenarios.train, name, 2), *wanted[2])


@pytest.mark.parametrize("name", NAMES)
def test_recompute(world: Run, wanted: dict[int, Any], name: str) -> None:
    check(world(2, scenarios.train, name, 2, recompute=True), *wanted[1])


@pytest.mark.parametrize("name", [*NAMES, "Interleaved1F1B"])
def test_mixed_precision_equals_the_whole_model_cast_alike(world: Run, name: str) -> None:
    """bf16 by FSDP's policy, under torchtitan's own schedule too."""
    check(world(2, scenarios.train, name, 2, dtype="bfloat16"), *whole_model_cast(torch.bfloat16))


@pytest.mark.parametrize("name", NAMES)
def test_experts_on_two_ranks(world: Run, name: str) -> None:
    """MoE by torchtitan's own dispatcher, PP=2 x EP=2 over two replicas."""
    check(world(4, scenarios.train, name, 2, model="qwen3_moe", expert_parallel_degree=2), *whole_moe_model())


@pytest.mark.parametrize("name", NAMES)
def test_two_replicas_under_torchtitans_default_backend(fresh_world: Run, wanted: dict[int, Any], name: str) -> None:
    """Of one process torchtitan keeps the first meshes."""
    check(fresh_world(4, scenarios.train, name, 2, backend="spmd_types"), *wanted[2])


@pytest.mark.parametrize("name", NAMES)
def test_a_model_with_a_vision_encoder(world: Run, name: str) -> None:
    losses, gradients = whole_vision_model()
    assert gradients["vision_encoder.patch_embed.weight"].norm() > 0
    check(world(2, scenarios.train, name, 2, model="kimi"), losses, gradients)


@pytest.mark.parametrize("name, times", [("DualPipe", 2**0.5), ("DualPipeV", 1.0), ("ZB1P", 1.0)])
def test_the_norm_that_the_trainer_logs(world: Run, wanted: dict[int, Any], name: str, times: float) -> None:
    whole = sum(g.double().square().sum().item() for g in wanted[1][1].values()) ** 0.5
    for result in world(2, scenarios.train, name, 2):
        assert result["norms"]["logged"] == pytest.approx(times * whole, rel=2e-4)  # The trainer sums in float32.
        assert result["norms"]["model"] == pytest.approx(whole, rel=1e-5)
        assert result["norms"]["clipped"] == pytest.approx(whole / 2, rel=1e-5)
        assert result["norms"]["clipped by us"] == pytest.approx(whole / 4, rel=1e-5)


def test_how_to_clip_under_dualpipe_is_said_where_it_differs(world: Run) -> None:
    assert world(2, scenarios.warnings_of, "DualPipe") == [[
        "DualPipe holds every stage on two ranks, and torchtitan sums squares over all ranks: the grad_norm that it "
        "logs is sqrt(2) times the model's. To clip at 1 set training.max_norm to 1.414."]] * 2
    assert world(2, scenarios.warnings_of, "DualPipeV") == [[], []]


@pytest.mark.parametrize("name", ["Interleaved1F1B", "interleaved_1f1b", "builtin_1f1b"])
def test_other_schedules_are_torchtitans_own(world: Run, wanted: dict[int, Any], name: str) -> None:
    """By torch's names, and by those of the command."""
    ranks = world(2, scenarios.train, name, 2)
    check(ranks, *wanted[1])
    assert {result["schedule"] for result in ranks} == {"torch.distributed.pipelining.schedules"}


def test_mirrors_of_ranks_seeded_apart_are_made_equal(world: Run) -> None:
    first, second = world(2, scenarios.train, "DualPipe", 2, reseed=True)
    assert set(first["values"]) == set(second["values"])
    for name, value in first["values"].items():
        assert torch.equal(value, second["values"][name])
        assert torch.equal(first["gradients"][name], second["gradients"][name])


def test_refusals(world: Run) -> None:
    assert world(2, scenarios.refusals, 2)[0] == {
        "layers": "[dualpipe.torchtitan] DualPipe on 2 ranks has 2 stages, got pipeline_parallel_layers_per_stage = 1 "
                  "for 8 layers (embedding and head count as the configuration says); leave it out, or give 4",
        "names": "[dualpipe.torchtitan] module_fqns_per_model_part must name 4 parts for DualPipeV on 2 ranks, got 2",
        "micro-batch": "[dualpipe.torchtitan] local_batch_size must be a multiple of "
                       "pipeline_parallel_microbatch_size, got 8 and 3",
        "few": "[dualpipe] num_microbatches must be at least 2 x ranks = 4, got 2",
        "tied": "[dualpipe.torchtitan] enable_weight_tying must be False, got True: each part of the model gets a copy "
                "of its own, and torchtitan ties no weights under pipeline parallel; dualpipe.pipelining does, over "
                "stages of yours",
        "unknown": "Unknown schedule name 'DualPipeX'. The valid options are ['1F1B', 'Interleaved1F1B', 'GPipe', "
                   "'LoopedBFS', 'InterleavedZeroBubble', 'PipelineScheduleSingle', 'PipelineScheduleMulti', "
                   "'ZBVZeroBubble', 'DualPipeV']",
        "spec": "[dualpipe.torchtitan] pipelining_fn of llama3 must be torchtitan's pipeline_llm or pipeline_vlm, got "
                "None; build stages yourself and use dualpipe.pipelining",
    }


def test_the_example_trains_alike_before_and_after_its_diff(tmp_path: Path) -> None:
    assert changed_lines("torchtitan") <= 10
    plain = copy_example("torchtitan", tmp_path / "plain", patched=False)
    torchrun(plain, 2, STAND_INS, OUTPUT=str(plain.parent), STEPS="5")
    patched = copy_example("torchtitan", tmp_path / "patched", patched=True)
    torchrun(patched, 2, STAND_INS, OUTPUT=str(patched.parent), STEPS="5")
    check_same_training(metrics_of(plain.parent), metrics_of(patched.parent))
    timelines = sorted(path.name for path in patched.parent.glob("timeline_rank*.jsonl"))
    assert timelines == ["timeline_rank0.jsonl", "timeline_rank1.jsonl"]
    assert all(line["tokens_per_second"] > 0 for line in metrics_of(patched.parent))


def test_one_command_compares_torchtitans_schedules_with_ours(tmp_path: Path) -> None:
    patched = copy_example("torchtitan", tmp_path / "patched", patched=True)
    check_comparison(compare(patched, 2, COMPARED, STAND_INS, STEPS="5"), COMPARED)


@pytest.mark.parametrize("name, order", [("DualPipe", "dualpipe"), ("DualPipeV", "dualpipev"), ("ZB1P", "1f1b")])
def test_a_schedule_file_beside_one_of_our_names(
    world: Run, wanted: dict[int, Any], tmp_path: Path, name: str, order: str
) -> None:
    """The file's order runs, over the placement of the schedule that is named."""
    rows = dualpipe.plan(order, 2, scenarios.ROWS)
    path = tmp_path / "mine.csv"
    dualpipe.write_csv([[cell for pair in row for cell in halves_of(pair)] for row in rows], path)
    ranks = world(2, scenarios.train, name, 2, pipeline_parallel_schedule_csv=str(path))
    check(ranks, *wanted[1])
    assert [result["cells"] for result in ranks] == dualpipe.read_csv(path)
    planned = dualpipe.plan(name.lower(), 2, scenarios.ROWS)
    assert not any("OVERLAP" in cell for result in ranks for cell in result["cells"])
    assert [result["cells"] for result in ranks] != planned


def halves_of(cell: str) -> list[str]:
    """The two actions of an overlapped pair, "(0F3;1B2)OVERLAP_F_B"; of any other cell itself."""
    return cell.removesuffix("OVERLAP_F_B").strip("()").split(";")


def test_a_schedule_file_of_another_placement_is_refused(world: Run, tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    dualpipe.write_csv(dualpipe.plan("dualpipev", 2, scenarios.ROWS), path)
    assert world(2, scenarios.refused_file, str(path))[0] == (
        f"[ScheduleDualPipe] {path} must run this rank's stages [0, 1] in row 0, got [0, 3]"
    )


def test_unknown_version_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams, "version", lambda name: "9.9.0")
    with pytest.warns(UserWarning, match="dualpipe.torchtitan was tested with torchtitan 0.3.0, got 9.9.0; its tests"):
        seams.check_torchtitan()


def test_missing_seam_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    seams.check_torchtitan()
    monkeypatch.delattr("torchtitan.distributed.pipeline_parallel._split_module")
    with pytest.raises(ImportError) as caught:
        seams.check_torchtitan()
    assert str(caught.value) == (
        "dualpipe.torchtitan needs torchtitan.distributed.pipeline_parallel._split_module, which torchtitan 0.3.0 does "
        "not have; torchtitan 0.3.0 does"
    )
