"""What ranks of these tests do. Every function runs on all ranks of a world and gives plain values back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from core_parts import Block, PlainReferenceBlock, ReferenceBlock, make_data, make_stages, mean_square
from gloo_threads import policies
from torch import Tensor, nn
from whole_model import relative_error, whole_step, worst_error

from dualpipe import DualPipe, DualPipeV, core
from dualpipe.core import GradientGroup, Pipeline, Stage, module_stage, stages_of

BIDIRECTIONAL = "dualpipe"
CLIP = 0.05  # Below every norm that these models have.


def stage_count(schedule: str, ranks: int) -> int:
    return {"dualpipev": 2 * ranks, "interleaved_1f1b": 2 * ranks}.get(schedule, ranks)


def mean_criterion(outputs: core.Tensors, labels: core.Tensors) -> Tensor:
    return mean_square(outputs[0], labels[0])


def picked(values: Sequence[Tensor], micro_batches: Sequence[int]) -> list[tuple[Tensor]]:
    return [(values[k],) for k in micro_batches]


def local_stages(schedule: str, micro_batches: int, stages: Sequence[nn.Module]) -> list[Stage]:
    """This rank's copies of a whole model's stages."""
    numbers = stages_of(schedule, dist.get_world_size(), micro_batches, dist.get_rank())
    return [module_stage(stages[s]) for s in numbers]


def gradients_and_losses(
    schedule: str, micro_batches: int, dtype: torch.dtype, steps: int = 1, **options: Any
) -> dict[str, Any]:
    """Errors of a training step against the whole model; gradients of several steps add up."""
    stages = make_stages(Block, stage_count(schedule, dist.get_world_size()), dtype)
    inputs, labels = make_data(micro_batches, dtype)
    wanted = whole_step(stages, inputs, labels, mean_square, steps / micro_batches)
    pipeline = Pipeline(
        schedule,
        dist.group.WORLD,
        local_stages(schedule, micro_batches, stages),
        num_microbatches=micro_batches,
        mean_loss_on_every_rank=True,
        **options,
    )
    for _ in range(steps):
        result = pipeline.step(
            picked(inputs, pipeline.input_micro_batches),
            picked(labels, pipeline.loss_micro_batches),
            mean_criterion,
            return_outputs=True,
        )
    losses = [wanted.losses[k] for k in pipeline.loss_micro_batches]
    outputs = [wanted.outputs[k] for k in pipeline.loss_micro_batches]
    return {
        "gradients": worst_error(pipeline.gradients, wanted.gradients, [name for name, _ in pipeline.parameters]),
        "names": [name for name, _ in pipeline.parameters],
        "losses": max([relative_error(a, b) for a, b in zip(result.losses, losses, strict=True)], default=0.0),
        "outputs": max([relative_error(a[0], b) for a, b in zip(result.outputs, outputs, strict=True)], default=0.0),
        "mean_loss": result.mean_loss - (sum(wanted.losses) / micro_batches).item(),
        "spans": [span[0] for span in result.statistics.spans],
        "row": core.plan(schedule, dist.get_world_size(), micro_batches)[dist.get_rank()],
        "stages": pipeline.stages,
        "place": (pipeline.rank, pipeline.size, pipeline.schedule, pipeline.num_microbatches, pipeline.num_stages),
    }


def weighted_sum() -> dict[str, float]:
    """A criterion that returns sums, over micro-batches of different weight."""
    schedule, micro_batches = BIDIRECTIONAL, 8
    stages = make_stages(Block, dist.get_world_size(), torch.float64)
    inputs, labels = make_data(micro_batches, torch.float64)
    weights = [float(k % 3) for k in range(micro_batches)]  # Some weigh nothing.
    total = sum(weights)

    def masked(output: Tensor, label: Tensor) -> Tensor:
        k = next(i for i, known in enumerate(labels) if known is label)
        return weights[k] * mean_square(output, label)

    wanted = whole_step(stages, inputs, labels, masked, 1 / total)
    pipeline = Pipeline(
        schedule, dist.group.WORLD, local_stages(schedule, micro_batches, stages), num_microbatches=micro_batches
    )
    tagged = [(labels[k], torch.tensor(weights[k])) for k in pipeline.loss_micro_batches]
    result = pipeline.step(
        picked(inputs, pipeline.input_micro_batches),
        tagged,
        lambda outputs, labels: labels[1].double() * mean_square(outputs[0], labels[0]),
        weight=lambda labels: labels[1].item(),
    )
    means = [wanted.losses[k] / weights[k] if weights[k] else 0.0 for k in pipeline.loss_micro_batches]
    return {
        "gradients": worst_error(pipeline.gradients, wanted.gradients, [name for name, _ in pipeline.parameters]),
        "losses": max([abs(float(a) - float(b)) for a, b in zip(result.losses, means, strict=True)], default=0.0),
    }


def evaluation() -> dict[str, Any]:
    """Losses and outputs without a graph, then without a criterion."""
    schedule, micro_batches = "dualpipev", 4
    stages = make_stages(Block, 2 * dist.get_world_size(), torch.float64)
    inputs, labels = make_data(micro_batches, torch.float64)
    wanted = whole_step(stages, inputs, labels, mean_square, 1.0)
    pipeline = Pipeline(
        schedule, dist.group.WORLD, local_stages(schedule, micro_batches, stages), num_microbatches=micro_batches
    )
    given = picked(inputs, pipeline.input_micro_batches)
    result = pipeline.evaluate(given, picked(labels, pipeline.loss_micro_batches), mean_criterion)
    bare = pipeline.evaluate(given)
    return {
        "losses": [relative_error(a, b) for a, b in zip(result.losses, wanted.losses)],
        "outputs": [relative_error(a[0], b) for a, b in zip(bare.outputs, wanted.outputs)],
        "bare_losses": len(bare.losses),
        "gradients": len(pipeline.gradients),
    }


class MaskedStage(Stage):
    """Takes and gives (activation, integer positions, None) and notes what it is told."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.seen: list[int] = []

    def named_parameters(self):  # type: ignore[no-untyped-def]
        return self.block.named_parameters()

    def logical_name(self, stage: int, local_name: str) -> str:
        return f"layers.{stage}/{local_name}"

    def begin_micro_batch(self, micro_batch: int) -> None:
        self.seen.append(micro_batch)

    def forward(self, inputs: core.Tensors) -> core.Outputs:
        x, positions, nothing = inputs
        assert nothing is None and positions.dtype == torch.int64
        return self.block(x) * (positions >= 0).to(x.dtype)[:, None, None], positions, None


def several_tensors() -> dict[str, Any]:
    """A stage of several tensors, integers and None among them, with lengths that vary."""
    schedule, micro_batches, ranks = "1f1b", 4, dist.get_world_size()
    stages = make_stages(Block, ranks, torch.float64)
    seeds = [torch.Generator().manual_seed(k) for k in range(micro_batches)]
    inputs = [torch.randn(k + 1, 2, 6, dtype=torch.float64, generator=seed) for k, seed in enumerate(seeds)]
    wanted = whole_step(stages, inputs, [torch.zeros_like(x) for x in inputs], mean_square, 1 / micro_batches)
    mine = MaskedStage(stages[dist.get_rank()])
    pipeline = Pipeline(
        schedule, dist.group.WORLD, [mine], num_microbatches=micro_batches, variable_seq_lengths=True
    )
    given = [(inputs[k], torch.arange(k + 1), None) for k in pipeline.input_micro_batches]
    result = pipeline.step(
        given,
        [()] * len(pipeline.loss_micro_batches),
        lambda outputs, labels: outputs[0].square().mean(),
        weight=lambda labels: 1.0,
    )
    return {
        "names": sorted(pipeline.gradients),
        "gradients": max(
            relative_error(gradient, wanted.gradients[name.replace("layers.", "stage").replace("/", ".")])
            for name, gradient in pipeline.gradients.items()
        ),
        "seen": mine.seen,
        "losses": len(result.losses),
    }


# --- the reference's face


def reference_step(face: str, hooked: bool, mapping: tuple[int, ...] | None) -> dict[str, Any]:
    """What a script for the reference does: a training step, gradients of both mirrors, an inference step."""
    ranks, micro_batches = dist.get_world_size(), 10
    kind = ReferenceBlock if hooked else PlainReferenceBlock
    count = ranks if face == "DualPipe" else 2 * ranks
    stages = make_stages(kind, count, torch.float64)
    inputs, labels = make_data(micro_batches, torch.float64)
    wanted = whole_step(stages, inputs, labels, mean_square, 1.0)
    half = micro_batches // 2
    low = whole_step(stages, inputs[:half], labels[:half], mean_square, 1.0)
    high = whole_step(stages, inputs[half:], labels[half:], mean_square, 1.0)

    before = ReferenceBlock.pairs
    rank = mapping[dist.get_rank()] if mapping else dist.get_rank()
    numbers = [rank, count - 1 - rank]
    modules = nn.Sequential(*(stages[s] for s in numbers))
    model = (DualPipe if face == "DualPipe" else DualPipeV)(modules, rank_mapping=mapping)
    whole_x, whole_y = torch.cat(inputs), torch.cat(labels)
    x: Tensor | None = None
    y: Tensor | None = None
    losses: Tensor | None = None
    if face == "DualPipeV" and rank == 0:
        x, y, losses = whole_x, whole_y, torch.stack(wanted.losses)
    elif face == "DualPipe" and rank == 0:
        x, y, losses = whole_x.chunk(2)[0], whole_y.chunk(2)[1], torch.stack(high.losses)
    elif face == "DualPipe" and rank == ranks - 1:
        x, y, losses = whole_x.chunk(2)[1], whole_y.chunk(2)[0], torch.stack(low.losses)
    loss, outputs = model.step(x, num_chunks=micro_batches, criterion=mean_square, labels=(y,), return_outputs=False)
    trained = model.pipeline(micro_batches).statistics
    trained_losses_equal = loss is None if losses is None else torch.equal(loss, losses)
    errors = []
    for s, module in zip(numbers, modules):
        own = wanted
        if face == "DualPipe":
            own = low if s == rank else high
        errors += [relative_error(p.grad, own.gradients[f"stage{s}.{n}"]) for n, p in module.named_parameters()]
    model.zero_grad()
    with torch.no_grad():
        inferred, out = model.step(x, num_chunks=micro_batches, criterion=mean_square, labels=(y,), return_outputs=True)
    wanted_out = None
    if losses is not None:
        wanted_out = torch.cat((wanted if face == "DualPipeV" else high if rank == 0 else low).outputs)
    return {
        "trained_losses_equal": trained_losses_equal,
        "no_outputs": outputs is None,
        "gradients": max(errors),
        "inferred_equal": inferred is None if losses is None else torch.equal(inferred, losses),
        "outputs_equal": out is None if wanted_out is None else torch.equal(out, wanted_out),
        "no_gradients": all(p.grad is None for p in modules.parameters()),
        "pairs": ReferenceBlock.pairs - before,
        "planned": sum(span[0].endswith("OVERLAP_F_B") for span in trained.spans),
        "overlapped": trained.overlapped_pairs,
        "place": (model.rank, model.is_first_rank, model.is_last_rank, model.first_rank, model.last_rank),
    }


def reference_mirrors_reduced() -> float:
    """reduce_mirrors=True: both mirrors hold the gradients of the whole batch."""
    ranks, micro_batches = dist.get_world_size(), 8
    stages = make_stages(Block, ranks, torch.float64)
    inputs, labels = make_data(micro_batches, torch.float64)
    wanted = whole_step(stages, inputs, labels, mean_square, 1.0)
    rank = dist.get_rank()
    model = DualPipe((stages[rank], stages[ranks - 1 - rank]), reduce_mirrors=True)
    half = micro_batches // 2
    x, y = torch.cat(inputs), torch.cat(labels)
    first, last = slice(None, half * 3), slice(half * 3, None)
    parts = {0: (x[first], y[last]), ranks - 1: (x[last], y[first])}
    given, wanted_labels = parts.get(rank, (None, None))
    model.step(given, num_chunks=micro_batches, criterion=mean_square, labels=(wanted_labels,))
    return max(
        relative_error(p.grad, wanted.gradients[f"stage{s}.{n}"])
        for s in (rank, ranks - 1 - rank)
        for n, p in stages[s].named_parameters()
    )


def reference_optimizer(face: str) -> dict[str, float]:
    """A step of an optimizer that was registered with DualPipe or DualPipeV, against the whole model's."""
    ranks, rank, micro_batches, rate = dist.get_world_size(), dist.get_rank(), 8, 0.5
    count = ranks if face == "DualPipe" else 2 * ranks
    stages = make_stages(Block, count, torch.float64)
    inputs, labels = make_data(micro_batches, torch.float64)
    wanted = whole_step(stages, inputs, labels, mean_square, 1.0)
    norm = torch.stack([gradient.norm() for gradient in wanted.gradients.values()]).norm().item()
    numbers = (rank, count - 1 - rank)
    modules = tuple(stages[s] for s in numbers)
    named = {f"stage{s}.{name}": p for s in numbers for name, p in stages[s].named_parameters()}
    before = {name: p.detach().clone() for name, p in named.items()}
    model = DualPipe(modules, reduce_mirrors=True) if face == "DualPipe" else DualPipeV(modules)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    model.register_optimizer(optimizer, micro_batches, clip_grad=CLIP)
    x, y = torch.cat(inputs), torch.cat(labels)
    given: tuple[Tensor | None, Tensor | None] = (None, None)
    if face == "DualPipe":
        given = (x.chunk(2)[rank], y.chunk(2)[1 - rank])  # Of two ranks, which are both ends.
    elif rank == 0:
        given = (x, y)
    model.step(given[0], num_chunks=micro_batches, criterion=mean_square, labels=(given[1],))
    optimizer.step()
    factor = rate * CLIP / (norm + 1e-6)
    moved = [relative_error(before[name] - p.detach(), factor * wanted.gradients[name]) for name, p in named.items()]
    return {"moved": max(moved), "norm": norm}


def store_puts() -> dict[str, Any]:
    """How many closures the layers of this rank handed over, and what the engine held at most."""
    from core_parts import DeferredProduct

    schedule, micro_batches = "zb1p", 4
    stages = make_stages(PlainReferenceBlock, dist.get_world_size(), torch.float64)
    inputs, labels = make_data(micro_batches, torch.float64)
    wanted = whole_step(stages, inputs, labels, mean_square, 1 / micro_batches)
    before = DeferredProduct.puts
    pipeline = Pipeline(
        schedule, dist.group.WORLD, local_stages(schedule, micro_batches, stages), num_microbatches=micro_batches
    )
    result = pipeline.step(
        picked(inputs, pipeline.input_micro_batches), picked(labels, pipeline.loss_micro_batches), mean_criterion
    )
    return {
        "puts": DeferredProduct.puts - before,
        "bytes": result.statistics.peak_pending_weight_bytes,
        "gradients": worst_error(pipeline.gradients, wanted.gradients, [name for name, _ in pipeline.parameters]),
    }


# --- optimizers and data parallelism


def optimizer_steps(defer: bool) -> dict[str, Any]:
    """A step whose norm, clipping and new parameters are compared with the whole model's; then one not finite."""
    schedule, micro_batches, clip = BIDIRECTIONAL, 8, CLIP
    ranks = dist.get_world_size()
    whole = make_stages(Block, ranks, torch.float64)
    inputs, labels = make_data(micro_batches, torch.float64)
    wanted = whole_step(whole, inputs, labels, mean_square, 1 / micro_batches)
    norm = torch.stack([g.norm() for g in wanted.gradients.values()]).norm().item()

    stages = make_stages(Block, ranks, torch.float64)
    local = local_stages(schedule, micro_batches, stages)
    pipeline = Pipeline(
        schedule,
        dist.group.WORLD,
        local,
        num_microbatches=micro_batches,
        defer_tail_weight_gradients=defer,
    )
    optimizer = torch.optim.SGD([tensor for _, tensor in pipeline.parameters], lr=0.5)
    reports: list[core.OptimizerStep] = []
    core.register_optimizer(pipeline, optimizer, clip, reports.append)
    given = picked(inputs, pipeline.input_micro_batches), picked(labels, pipeline.loss_micro_batches)
    before = {name: tensor.detach().clone() for name, tensor in pipeline.parameters}
    pipeline.step(*given, mean_criterion)
    pending = pipeline.pending_weight_gradients
    optimizer.step()
    factor = clip / (norm + 1e-6)
    moved = max(
        relative_error(tensor.detach(), before[name] - 0.5 * factor * wanted.gradients[name])
        for name, tensor in pipeline.parameters
    )
    optimizer.zero_grad()
    after = {name: tensor.detach().clone() for name, tensor in pipeline.parameters}
    poisoned = [(x * float("nan"),) for (x,) in given[0]] if dist.get_rank() == 0 else given[0]
    pipeline.step(poisoned, given[1], mean_criterion)
    optimizer.step()
    return {
        "norms": [report.grad_norm for report in reports],
        "skipped": [report.skipped for report in reports],
        "norm_error": abs(reports[0].grad_norm / norm - 1),
        "moved": moved,
        "unmoved": all(torch.equal(tensor, after[name]) for name, tensor in pipeline.parameters),
        "pending": pending,
        "left": pipeline.pending_weight_gradients,
    }


def replicas() -> float:
    """Two pipelines of two ranks, each with its own data: gradients of the global batch, in the host's buffers."""
    ranks, micro_batches = 2, 4
    world = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    everyone = dist.new_group([0, 1, 2, 3])
    rank, replica = world % 2, world // 2
    stages = make_stages(Block, ranks, torch.float32)
    inputs, labels = make_data(2 * micro_batches, torch.float32)
    wanted = whole_step(stages, inputs, labels, mean_square, 1 / (2 * micro_batches))
    local = [module_stage(stages[s]) for s in stages_of("dualpipe", ranks, micro_batches, rank)]
    names = [f"stage{s}.{n}" for s in (0, 1) for n, _ in stages[s].named_parameters()]
    shapes = [p.shape for s in (0, 1) for p in stages[s].parameters()]
    buffers = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in zip(names, shapes, strict=True)}
    pipeline = Pipeline(
        "dualpipe",
        groups[replica],
        local,
        num_microbatches=micro_batches,
        main_grads=buffers,
        gradient_groups=[GradientGroup(everyone)],
        losses=everyone,
        world=everyone,
    )
    mine = slice(replica * micro_batches, (replica + 1) * micro_batches)
    pipeline.step(
        picked(inputs[mine], pipeline.input_micro_batches),
        picked(labels[mine], pipeline.loss_micro_batches),
        mean_criterion,
    )
    assert all(p.grad is None for s in stages for p in s.parameters())
    return worst_error(buffers, {n: g.double() for n, g in wanted.gradients.items()}, names)


# --- run files


def timeline_lines() -> tuple[Any, Any, Any, Any]:
    """Header and step of a timeline as Python and as C++ write them."""
    import json

    from dualpipe.run_files import TimelineHeader, header_line, step_line

    schedule, micro_batches = BIDIRECTIONAL, 4
    stages = make_stages(Block, dist.get_world_size(), torch.float64)
    inputs, labels = make_data(micro_batches, torch.float64)
    pipeline = Pipeline(
        schedule,
        dist.group.WORLD,
        local_stages(schedule, micro_batches, stages),
        num_microbatches=micro_batches,
        live_bytes=lambda: 64,
    )
    pipeline.step(
        picked(inputs, pipeline.input_micro_batches), picked(labels, pipeline.loss_micro_batches), mean_criterion
    )
    tensors = [tensor for _, tensor in pipeline.parameters]
    header = TimelineHeader(
        schedule=schedule,
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        pipeline_rank=pipeline.rank,
        pipeline_model_parallel_size=pipeline.size,
        num_microbatches=micro_batches,
        num_stages=pipeline.num_stages,
        stages=pipeline.stages,
        parameter_bytes=sum(t.nbytes for t in tensors),
        gradient_bytes=sum(g.nbytes for g in pipeline.gradients.values()),
    )
    ours = json.loads(json.dumps(step_line(7, pipeline.statistics)))
    engine = pipeline._engine
    theirs = json.loads(engine.timeline_step_line(7))
    return header_line(header), json.loads(engine.timeline_header_line()), ours, theirs


def gloo_threads() -> tuple[set[int], set[int]]:
    """Policies of Gloo's threads before and after their group has a pipeline."""
    before = policies()
    os.environ["DUALPIPE_GLOO_THREADS"] = "yield"  # As many processors as there may be.
    stages = local_stages("1f1b", 2, make_stages(Block, 2, torch.float32))
    Pipeline("1f1b", dist.group.WORLD, stages, num_microbatches=2)
    return before, policies()
