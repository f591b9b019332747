"""What the ranks of a test do. Each function runs on every rank of a world and gives what the test looks at.

Replica d of a pipeline of P ranks is global ranks d * P .. d * P + P - 1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from dualpipe.pipelining import (
    RunLog,
    ScheduleDualPipe,
    ScheduleDualPipeV,
    ScheduleFromFile,
    ScheduleZB1P,
    get_schedule_class,
    gradient_norm,
    make_schedule,
    stage_indices,
)
from dualpipe.utils import run_backward
from gloo_threads import policies
from pipelining_parts import HIDDEN, Layer, Parts, batch_of, build_stage, indices_of, loss_of

CPU = torch.device("cpu")
Wrap = Callable[[nn.Module], nn.Module]


def pipeline_mesh(size: int) -> tuple[dist.ProcessGroup, DeviceMesh]:
    """The pipeline of ``size`` ranks that this one is in, and the mesh of those that hold the same stages."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // size, size), mesh_dim_names=("dp", "pp"))
    return mesh["pp"].get_group(), mesh["dp"]


def stages_for(name: str, count: int, dtype: torch.dtype, group: dist.ProcessGroup | None = None,
               wrap: Wrap = lambda module: module, recompute: bool = False, twice: bool = True) -> list[PipelineStage]:
    mine, num_stages = stage_indices(name, dist.get_rank(group), dist.get_world_size(group))
    return [PipelineStage(wrap(build_stage(s, num_stages, count, dtype, recompute, twice)), s, num_stages, CPU,
                          group=group) for s in mine]


def feed(schedule: Any, tokens: Tensor, labels: Tensor, run: str = "step", **options: Any) -> tuple[Any, list[float]]:
    """One step as a loop over torch's schedules does it: whoever holds a first or last stage passes the whole batch."""
    stages = schedule._stages
    losses: list[Tensor] = []
    inputs = [tokens] if any(s.is_first for s in stages) else []
    target = {"target": labels} if any(s.is_last for s in stages) else {}
    output = getattr(schedule, run)(*inputs, losses=losses, **target, **options)
    return output, [loss.item() for loss in losses]


def gradients_of(stages: list[PipelineStage]) -> dict[str, Tensor]:
    return {name.removeprefix("module."): whole(p.grad) for stage in stages
            for name, p in stage.submod.named_parameters() if p.grad is not None}


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def message_of(body: Callable[[], object], kind: type[BaseException] = ValueError) -> str:
    try:
        body()
    except kind as error:
        return str(error)
    return "nothing was refused"


def failure_of(body: Callable[[], object]) -> tuple[str, str, list[str]]:
    """Type, message and notes of what it raises."""
    try:
        body()
    except Exception as error:
        return type(error).__name__, str(error), list(getattr(error, "__notes__", []))
    return "none", "", []


# Plain training.


def train(name: str, dtype: torch.dtype, count: int, micro_batches: int, steps: int = 1, recompute: bool = False,
          autocast: bool = False, **options: Any) -> dict[str, Any]:
    """Steps over different batches whose gradients accumulate."""
    stages = stages_for(name, count, dtype, recompute=recompute)
    schedule = get_schedule_class(name)(stages, micro_batches, loss_fn=loss_of, **options)
    losses = []
    for step in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output, step_losses = feed(schedule, *batch_of(2 * micro_batches, seed=step))
        losses.append(step_losses)
    return {"losses": losses, "gradients": gradients_of(stages), "output": output,
            "micro_batches": schedule.output_micro_batches, "norm": schedule.gradient_norm()}


def reentrant(name: str, count: int, micro_batches: int) -> dict[str, Any]:
    """Recompute by the reentrant checkpoint: losses and gradients, and type, message and notes of what failed."""
    stages = stages_for(name, count, torch.float64, recompute=True)
    for stage in stages:
        stage.submod.reentrant = True
    schedule = get_schedule_class(name)(stages, micro_batches, loss_fn=loss_of)
    losses: list[float] = []
    failure = failure_of(lambda: losses.extend(feed(schedule, *batch_of(2 * micro_batches))[1]))
    return {"failure": failure, "losses": [losses], "gradients": gradients_of(stages)}


def tied(name: str, dtype: torch.dtype, count: int, micro_batches: int) -> dict[str, Any]:
    """The head's weight is the embedding's: one tensor where a rank holds both, else two of one logical name."""
    stages = stages_for(name, count, dtype)
    parts = {index: part for stage in stages for index, part in stage.submod.items()}
    embedding, head = parts.get("0"), parts.get(str(count - 1))
    if embedding is not None and head is not None:
        head.weight = embedding.weight
    elif head is not None:
        head.weight = nn.Parameter(build_stage(0, count, count, dtype)["0"].weight.detach())
    last = f"{count - 1}.weight"
    schedule = get_schedule_class(name)(stages, micro_batches, loss_fn=loss_of,
                                        logical_name=lambda stage, local: "0.weight" if local == last else local)
    losses = feed(schedule, *batch_of(2 * micro_batches))[1]
    gradients = gradients_of(stages)
    if head is not None:
        gradients["0.weight"] = head.weight.grad
        gradients.pop(last, None)
    return {"losses": [losses], "gradients": gradients, "norm": schedule.gradient_norm()}


def evaluate(name: str, dtype: torch.dtype, count: int, micro_batches: int) -> dict[str, Any]:
    """eval(), a step, eval() again, and forward only without a loss."""
    stages = stages_for(name, count, dtype)
    schedule = get_schedule_class(name)(stages, micro_batches, loss_fn=loss_of)
    batch = batch_of(2 * micro_batches)
    first, losses = feed(schedule, *batch, run="eval")
    untouched = all(p.grad is None for stage in stages for p in stage.submod.parameters())
    feed(schedule, *batch)
    again, _ = feed(schedule, *batch, run="eval")
    forward_only = get_schedule_class(name)(stages_for(name, count, dtype), micro_batches)
    output = forward_only.step(*([batch[0]] if any(s.is_first for s in stages) else []))
    return {"losses": losses, "untouched": untouched, "micro_batches": schedule.output_micro_batches,
            "outputs": [first, again, output], "graph": first is not None and first.requires_grad}


class Scaled(nn.Module):
    """Takes a nested positional argument, a flag and a tensor by keyword; the last one gives a dictionary."""

    def __init__(self, parts: Parts, is_last: bool) -> None:
        super().__init__()
        self.parts, self.is_last = parts, is_last

    def forward(self, x: Any, scale: Tensor, flag: bool) -> Any:
        x = x["tokens"] if isinstance(x, dict) else x
        y = self.parts(x)
        y = y * scale if flag and y.is_floating_point() else y
        return {"logits": y, "name": "last"} if self.is_last else y


def pre_split(name: str, dtype: torch.dtype, count: int, micro_batches: int) -> dict[str, Any]:
    """arg_mbs, kwarg_mbs, target_mbs, loss_kwargs, structures that are no tensors."""
    mine, num_stages = stage_indices(name, dist.get_rank(), dist.get_world_size())
    stages = [PipelineStage(Scaled(build_stage(s, num_stages, count, dtype), s == num_stages - 1), s, num_stages, CPU)
              for s in mine]
    seen = []

    def loss_fn(output: dict[str, Any], target: dict[str, Tensor], divisor: float) -> Tensor:
        seen.append(output["name"])
        return loss_of(output["logits"], target["labels"]) / divisor

    tokens, labels = (t.chunk(micro_batches) for t in batch_of(2 * micro_batches))
    schedule = get_schedule_class(name)(stages, micro_batches, loss_fn=loss_fn, scale_grads=False)
    losses: list[Tensor] = []
    output = schedule.step(
        arg_mbs=[({"tokens": t},) for t in tokens] if any(s.is_first for s in stages) else None,
        kwarg_mbs=[{"scale": torch.tensor(1.0, dtype=dtype), "flag": k % 2 == 0} for k in range(micro_batches)],
        target_mbs=[{"labels": y} for y in labels] if any(s.is_last for s in stages) else None,
        losses=losses, loss_kwargs={"divisor": float(micro_batches)}, return_outputs=False)
    gradients = {name.removeprefix("parts."): g for name, g in gradients_of(stages).items()}
    return {"losses": [[loss.item() * micro_batches for loss in losses]], "gradients": gradients, "names": set(seen),
            "output": output}


class Overlapping(Parts):
    """Offers the function of the reference's face; it runs its halves one after the other."""

    @classmethod
    def overlapped_forward_backward(
        cls, module0: nn.Module, inputs0: Any, criterion0: Any, labels0: Any, module1: nn.Module, loss1: Tensor | None,
        outputs1: Any, output_grads1: Any
    ) -> tuple[Any, Tensor | None]:
        assert type(module0) is type(module1) is cls
        outputs0 = module0(*inputs0)
        loss0 = None if criterion0 is None else criterion0((outputs0,), labels0)
        if loss1 is None:
            run_backward(outputs1, output_grads1)
        else:
            loss1.backward()
        return outputs0, loss0


def overlapping(name: str, count: int, micro_batches: int) -> dict[str, Any]:
    """Stages that run overlapped pairs themselves."""
    mine, num_stages = stage_indices(name, dist.get_rank(), dist.get_world_size())
    stages = [PipelineStage(Overlapping(indices_of(s, num_stages, count), count, torch.float64), s, num_stages, CPU)
              for s in mine]
    schedule = get_schedule_class(name)(stages, micro_batches, loss_fn=loss_of)
    output, losses = feed(schedule, *batch_of(2 * micro_batches))
    return {"losses": [losses], "gradients": gradients_of(stages), "pairs": schedule.statistics.overlapped_pairs,
            "output": output, "micro_batches": schedule.output_micro_batches,
            "planned": sum("OVERLAP" in str(action) for action in schedule.pipeline_order[dist.get_rank()])}


class Unwrapping(Overlapping):
    """The same over a stage whose first argument may come in a dictionary."""

    def forward(self, x: Any, scale: Tensor | None = None) -> Tensor:
        return super().forward(x["tokens"] if isinstance(x, dict) else x, scale)


def refused_of_overlapping() -> dict[str, str]:
    """What an overlapped pair has no place for, refused on the rank that meets it first."""
    size, rank = dist.get_world_size(), dist.get_rank()
    tokens, labels = batch_of(4 * size)
    scale = torch.ones(4 * size, 1, 1, dtype=torch.float64)

    def step(with_context: bool = False, nested: bool = False, **keywords: Tensor) -> str:
        group = dist.new_group()
        mine, num_stages = stage_indices("dualpipev", rank, size)
        stages = [PipelineStage(Unwrapping(indices_of(s, num_stages, 6), 6, torch.float64), s, num_stages, CPU,
                                group=group) for s in mine]
        if with_context:
            stages[0].register_forward_context(lambda info: nullcontext())
        schedule = ScheduleDualPipeV(stages, 2 * size, loss_fn=loss_of)
        inputs: dict[str, Any] = {"target": labels} if rank == 0 and not nested else {}
        if nested:
            inputs = {"arg_mbs": [({"tokens": t},) for t in tokens.chunk(2 * size)],
                      "target_mbs": list(labels.chunk(2 * size))} if rank == 0 else {}
        first = [tokens] if rank == 0 and not nested else []
        message = message_of(lambda: schedule.step(*first, **inputs, **keywords), Exception)
        dist.barrier()
        return message

    return {"keywords": step(scale=scale), "context": step(with_context=True), "nested": step(nested=True)}


# Data parallel.


def replicated(name: str, dtype: torch.dtype, count: int, micro_batches: int, size: int, wrapped_by: str,
               scale_grads: bool = True, finalize_first: bool = True) -> dict[str, Any]:
    """Pipelines of ``size`` ranks, each with a batch of its own; two steps that accumulate.

    ``finalize_first``: what the first one is told by ``finalize_gradients``.
    """
    group, mesh = pipeline_mesh(size)
    stages = stages_for(name, count, dtype, group, WRAPS[wrapped_by](mesh))
    schedule = get_schedule_class(name)(stages, micro_batches, loss_fn=loss_of, scale_grads=scale_grads)
    losses = []
    for step in range(2):
        batch = batch_of(2 * micro_batches * mesh.size(), seed=step)
        losses.append(feed(schedule, *(t.chunk(mesh.size())[mesh.get_local_rank()] for t in batch),
                           finalize_gradients=finalize_first or step == 1)[1])
    reductions = [after < len(schedule.statistics.spans) for _, after in schedule.statistics.reductions]
    norm = schedule.gradient_norm()
    evaluated = feed(schedule, *(t.chunk(mesh.size())[mesh.get_local_rank()] for t in batch), run="eval")[1]
    return {"losses": losses, "gradients": gradients_of(stages), "overlapped": any(reductions), "norm": norm,
            "replica": mesh.get_local_rank(), "evaluated": evaluated}


def by_ddp(mesh: DeviceMesh) -> Wrap:
    return lambda module: DistributedDataParallel(module, process_group=mesh.get_group())


def by_fsdp(mesh: DeviceMesh, **options: Any) -> Wrap:
    return by_parts(fully_shard, mesh=mesh, **options)


def by_parts(apply: Callable[..., nn.Module], **options: Any) -> Wrap:
    """FSDP2's functions, on every part and on the stage."""
    def wrap(module: nn.Module) -> nn.Module:
        for part in module.values():
            apply(part, **options)
        return apply(module, **options)

    return wrap


WRAPS: dict[str, Callable[[DeviceMesh], Wrap]] = {
    "ddp": by_ddp,
    "fsdp": lambda mesh: by_fsdp(mesh, reshard_after_forward=False),
    "fsdp_reshard": lambda mesh: by_fsdp(mesh, reshard_after_forward=True),
    "replicate": lambda mesh: by_parts(replicate, mesh=mesh),
    "fsdp_bf16": lambda mesh: by_fsdp(mesh, reshard_after_forward=False, mp_policy=MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32)),
}


def beside_torch(name: str, wrapped_by: str, count: int, micro_batches: int, size: int) -> dict[str, Any]:
    """One step of a schedule of torch's own or of ours."""
    group, mesh = pipeline_mesh(size)
    given = get_schedule_class(name)
    stages = stages_for(name, count, torch.float32, group, WRAPS[wrapped_by](mesh), twice=False)
    schedule = given(stages, micro_batches, loss_fn=loss_of)
    losses = feed(schedule, *batch_of(2 * micro_batches, seed=mesh.get_local_rank()))[1]
    return {"losses": losses, "gradients": gradients_of(stages), "replica": mesh.get_local_rank(),
            "torchs": given.__module__ == torch_schedules.__name__}


# Tensor parallel.


def tensor_parallel(name: str, dtype: torch.dtype, count: int, micro_batches: int, size: int) -> dict[str, Any]:
    """PP x TP: the linear layers hold DTensors and compute with them; between stages tensors are plain."""
    group, mesh = pipeline_mesh(size)

    def wrap(module: nn.Module) -> nn.Module:
        for part in module.values():
            if isinstance(part, Layer):
                parallelize_module(part, mesh, {"inner": ColwiseParallel(output_layouts=Replicate()),
                                                "outer": RowwiseParallel(input_layouts=Replicate())})
        return module

    stages = stages_for(name, count, dtype, group, wrap)
    schedule = get_schedule_class(name)(stages, micro_batches, loss_fn=loss_of)
    losses = [feed(schedule, *batch_of(2 * micro_batches, seed=step))[1] for step in range(2)]
    sharded = [n for stage in stages for n, p in stage.submod.named_parameters() if isinstance(p, DTensor)]
    return {"losses": losses, "gradients": gradients_of(stages), "norm": schedule.gradient_norm(), "sharded": sharded}


# Experts.


class Experts(nn.Module):
    """Two of four experts on each of two ranks. Every rank sends each expert's rank an equal share of its tokens."""

    def __init__(self, group: dist.ProcessGroup, index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.group = group
        torch.manual_seed(100 * index + 1)
        self.gate = nn.Linear(HIDDEN, HIDDEN, bias=False, dtype=dtype)
        torch.manual_seed(100 * index + 2 + dist.get_rank(group))
        self.expert = nn.Linear(HIDDEN, HIDDEN, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.gate(x).flatten(0, -2)
        return x + exchange(torch.tanh(self.expert(exchange(tokens, self.group))), self.group).view_as(x)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group = group
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x.contiguous(), group=group)
        return y

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return Exchange.forward(context, gradient, context.group), None


def exchange(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return Exchange.apply(x, group)


def experts(name: str, dtype: torch.dtype, micro_batches: int, size: int) -> dict[str, Any]:
    """PP x EP = 2 x 2: gates are replicated by DDP, which ignores the experts."""
    group, mesh = pipeline_mesh(size)
    mine, num_stages = stage_indices(name, dist.get_rank(group), size)
    stages = []
    for s in mine:
        module = Experts(mesh.get_group(), s, dtype)
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["expert.weight"])
        stages.append(PipelineStage(by_ddp(mesh)(module), s, num_stages, CPU, group=group))
    schedule = get_schedule_class(name)(stages, micro_batches, loss_fn=lambda y, t: (y - t).square().mean())
    x, target = (t.chunk(2)[mesh.get_local_rank()] for t in expert_batch(4 * micro_batches, dtype))
    losses = feed(schedule, x, target)[1]
    return {"losses": losses, "expert_rank": mesh.get_local_rank(),
            "gradients": {f"{stage.stage_index}.{name}": p.grad for stage in stages
                          for name, p in stage.submod.module.named_parameters()}}


def expert_batch(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return (torch.randn(rows, HIDDEN, dtype=dtype, generator=generator),
            torch.randn(rows, HIDDEN, dtype=dtype, generator=generator))


# Files.


def files(folder: str, count: int, micro_batches: int) -> dict[str, Any]:
    """Torch's dumps under the engine, our dumps under torch's runtime, and a bidirectional file of ours."""
    rank = dist.get_rank()
    batch = batch_of(2 * micro_batches)
    results: dict[str, Any] = {}

    def run(label: str, schedule: Any) -> None:
        losses = feed(schedule, *batch)[1]
        results[label] = {"losses": [losses], "gradients": gradients_of(schedule._stages)}

    for name, form in (("DualPipeV", "compute_only"), ("DualPipeV", "compute_comms"), ("ZBVZeroBubble", "compute_only"),
                       ("Interleaved1F1B", "compute_comms"), ("InterleavedZeroBubble", "compute_only")):
        theirs = torch_schedules.get_schedule_class(name)(torch_stages(name, count), micro_batches, loss_fn=loss_of)
        path = dumped(theirs, folder, f"{name}_{form}", format=form)
        run(f"{name} {form}", ScheduleFromFile(torch_stages(name, count), micro_batches, path, loss_fn=loss_of))
    ours = ScheduleDualPipeV(stages_for("dualpipev", count, torch.float64, twice=False), micro_batches, loss_fn=loss_of)
    path = dumped(ours, folder, "ours")
    theirs = torch_schedules._PipelineScheduleRuntime(
        stages_for("dualpipev", count, torch.float64, twice=False), micro_batches, loss_fn=loss_of)
    theirs._load_csv(path)
    run("ours under torch", theirs)
    dual = ScheduleDualPipe(stages_for("dualpipe", count, torch.float64, twice=False), micro_batches, loss_fn=loss_of)
    path = dumped(dual, folder, "dualpipe")
    run("dualpipe file", ScheduleFromFile(stages_for("dualpipe", count, torch.float64, twice=False), micro_batches,
                                          path, loss_fn=loss_of))
    dual._load_csv(path)
    run("dualpipe reloaded", dual)
    results["order"] = [str(action) for action in dual.pipeline_order[0]]
    results["torch order"] = [str(a) for a in torch_schedules.ScheduleDualPipeV(
        torch_stages("DualPipeV", count), micro_batches, loss_fn=loss_of).pipeline_order[rank] if a is not None]
    results["our order"] = [str(a) for a in ours.pipeline_order[rank]]
    return results


def recorded_by_torch(folder: str) -> tuple[set[int], set[int]]:
    """Policies of Gloo's threads before and after torch's own 1F1B gets a log for a comparison."""
    schedule = make_schedule("1f1b", stages_for("1f1b", 2, torch.float64), 2, loss_fn=loss_of)
    before = policies()
    os.environ["DUALPIPE_GLOO_THREADS"] = "yield"  # As many processors as there may be.
    RunLog(schedule, "builtin_1f1b", folder=folder)
    return before, policies()


def dumped(schedule: Any, folder: str, name: str, **options: Any) -> str:
    """One file for all ranks, who have to name the same."""
    path = str(Path(folder) / f"{name}.csv")
    if dist.get_rank() == 0:
        schedule._dump_csv(path, **options)
    dist.barrier()
    return path


def torch_stages(name: str, count: int) -> list[PipelineStage]:
    rank, size = dist.get_rank(), dist.get_world_size()
    is_v = name in ("DualPipeV", "ZBVZeroBubble")
    mine = [rank, 2 * size - 1 - rank if is_v else size + rank]
    return [PipelineStage(Parts(indices_of(s, 2 * size, count), count, torch.float64, twice=False), s, 2 * size, CPU)
            for s in mine]


# Small promises.


def mirrors(broadcast: bool, sharded: bool) -> dict[str, Any]:
    """Copies that start from another seed on every rank."""
    size = dist.get_world_size()
    count = size + 2
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("pp", "dp"))["dp"]
    wrap = by_fsdp(mesh) if sharded else lambda module: module
    stages = stages_for("dualpipe", count, torch.float64)
    for stage in stages:
        with torch.no_grad():
            for p in stage.submod.parameters():
                p.add_(dist.get_rank())
        stage.submod = wrap(stage.submod)
    schedule = ScheduleDualPipe(stages, 2 * size, loss_fn=loss_of, broadcast_mirrors=broadcast)
    message = message_of(lambda: feed(schedule, *batch_of(4 * size)), Exception)
    return {"message": message,
            "values": {name: whole(p.detach()) for stage in stages for name, p in stage.submod.named_parameters()}}


def halves(count: int, micro_batches: int) -> dict[str, Any]:
    """reduce_mirrors=False: each copy keeps its own half; swapped by hand they are the whole gradient."""
    stages = stages_for("dualpipe", count, torch.float64)
    schedule = ScheduleDualPipe(stages, micro_batches, loss_fn=loss_of, reduce_mirrors=False)
    feed(schedule, *batch_of(2 * micro_batches))
    return {"gradients": gradients_of(stages)}


def compiled(name: str, count: int, micro_batches: int) -> dict[str, Any]:
    """Every stage behind torch.compile, without a compiler of its own."""
    torch._functorch.config.donated_buffer = False
    stages = stages_for(name, count, torch.float64,
                        wrap=lambda module: torch.compile(module, backend="aot_eager"))
    schedule = get_schedule_class(name)(stages, micro_batches, loss_fn=loss_of)
    losses = feed(schedule, *batch_of(2 * micro_batches))[1]
    return {"losses": [losses],
            "gradients": {name.removeprefix("_orig_mod."): g for name, g in gradients_of(stages).items()}}


def sharded_on_some_ranks(count: int, micro_batches: int) -> dict[str, Any]:
    """ZB1P whose stage is fully sharded on rank 0 alone: the ranks decide alike how a norm is taken."""
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("pp", "dp"))["dp"]
    wrap = by_fsdp(mesh) if dist.get_rank() == 0 else lambda module: module
    stages = stages_for("zb1p", count, torch.float64, wrap=wrap)
    schedule = ScheduleZB1P(stages, micro_batches, loss_fn=loss_of)
    feed(schedule, *batch_of(2 * micro_batches))
    return {"gradients": gradients_of(stages), "norm": gradient_norm(schedule)}


def sharded_ties(name: str, count: int, micro_batches: int) -> str:
    """One logical name in two places, behind fully_shard."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("pp", "dp"))["dp"]
    stages = stages_for(name, count, torch.float64, wrap=by_fsdp(mesh))
    last = f"{count - 1}.weight"
    schedule = get_schedule_class(name)(stages, micro_batches, loss_fn=loss_of,
                                        logical_name=lambda stage, local: "0.weight" if local == last else local)
    return message_of(lambda: feed(schedule, *batch_of(2 * micro_batches)))


def small_promises(count: int, micro_batches: int) -> dict[str, Any]:
    """Forward contexts, a compiled stage, a frozen part, an input that needs a gradient, replaced parameters."""
    rank, size = dist.get_rank(), dist.get_world_size()
    stages = stages_for("zb1p", count, torch.float64)
    entered: list[tuple[int, int]] = []

    class Context:
        def __init__(self, info: Any) -> None:
            entered.append((info.stage_index, info.microbatch_index))

        def __enter__(self) -> None:
            return None

        def __exit__(self, *error: object) -> None:
            return None

    stages[0].register_forward_context(Context)
    frozen = next(iter(stages[0].submod.values()))
    frozen.requires_grad_(False)
    plain = stages[0].submod
    stages[0].submod = torch.compile(plain, backend="aot_eager")
    schedule = make_schedule("zb1p", stages, micro_batches, loss_fn=loss_of)
    losses = feed(schedule, *batch_of(2 * micro_batches))[1]
    gradients = {re.sub("_orig_mod.", "", name): g for name, g in gradients_of(stages).items()}
    name, parameter = next((n, p) for n, p in plain.named_parameters() if p.requires_grad)
    owner = plain.get_submodule(name.rpartition(".")[0])
    setattr(owner, name.rpartition(".")[2], nn.Parameter(parameter.detach().clone()))
    replaced = message_of(lambda: feed(schedule, *batch_of(2 * micro_batches)), RuntimeError)
    return {"losses": [losses], "gradients": gradients, "entered": entered, "frozen": next(iter(plain.keys())),
            "replaced": replaced, "rank": rank, "size": size}
