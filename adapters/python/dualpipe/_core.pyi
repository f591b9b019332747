"""The extension module: what dualpipe.core is made of. Arguments are as there; nothing here is meant for users."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, Store

__version__: str
MOST_HOOK_KINDS: int

def make_gloo_threads_yield(group_size: int) -> int: ...
def is_splitting() -> bool: ...
def put_weight_gradient(work: Callable[[], object], bytes: int) -> bool: ...
def schedule_names() -> list[str]: ...
def plan(
    schedule: str,
    pipeline_model_parallel_size: int,
    num_microbatches: int,
    virtual_pipeline_model_parallel_size: int,
    lowered: bool,
) -> list[list[str]]: ...
def stages_of(
    schedule: str,
    pipeline_model_parallel_size: int,
    num_microbatches: int,
    virtual_pipeline_model_parallel_size: int,
    rank: int,
) -> list[int]: ...
def read_schedule(path: str) -> list[list[str]]: ...

class FailureRecord:
    """Which rank failed first, in what (a cell of the schedule, or words), and the message of the cause."""

    @property
    def rank(self) -> int: ...
    @property
    def action(self) -> str: ...
    @property
    def cause(self) -> str: ...

class StageDescription:
    owner: object
    forward: Callable[..., Any]
    begin_micro_batch: Callable[[int], object] | None
    overlap: Callable[..., Any] | None
    hook_kind: int
    stage: int
    weights: list[tuple[str, Tensor]]

class GradientGroup:
    group: ProcessGroup
    holds: Callable[[str], bool]

class ParallelGroups:
    gradients: list[GradientGroup]
    losses: ProcessGroup
    world: ProcessGroup
    shard_of: Callable[[str], str]

class PipelineOptions:
    num_microbatches: int
    virtual_pipeline_model_parallel_size: int
    variable_seq_lengths: bool
    reduce_mirrors: bool
    parallel: ParallelGroups
    gradient_bucket_bytes: int
    shard_gradients: bool
    defer_tail_weight_gradients: bool
    mean_loss_on_every_rank: bool
    slots: int
    timeout: timedelta
    nccl_max_ctas: int
    main_grads: dict[str, Tensor]
    live_bytes: Callable[[], int]
    on_fatal: Callable[[FailureRecord], None]

class Options:
    engine: PipelineOptions
    rank_mapping: list[int]
    notify_failures: bool
    store: Store | None
    device: torch.device | None

class StepStatistics:
    """What a step did on this rank. Times are in seconds since `began`, sizes in bytes.

    Attributes:
        began: Unix time in seconds.
        spans: (cell, begin, end, waited for messages) of every compute action, in the order of running.
        memory: (time, live bytes), of Pipeline's `live_bytes`; empty without it.
        reductions: (elements, spans that had ended) of every bucket whose sum over replicas was started.
        peak_activations: most (stage, micro-batch) live at once.
        peak_pending_weight_bytes: most that the weight-gradient store kept alive.
        overlapped_pairs: pairs that a hook ran.
        sequential_pairs: pairs that ran one part after the other, by reason.
        overlap_summary: both in words.
    """

    @property
    def began(self) -> float: ...
    @property
    def spans(self) -> list[tuple[str, float, float, float]]: ...
    @property
    def memory(self) -> list[tuple[float, int]]: ...
    @property
    def reductions(self) -> list[tuple[int, int]]: ...
    @property
    def peak_activations(self) -> int: ...
    @property
    def peak_pending_weight_bytes(self) -> int: ...
    @property
    def messages_sent(self) -> int: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def overlapped_pairs(self) -> int: ...
    @property
    def sequential_pairs(self) -> dict[str, int]: ...
    @property
    def overlap_summary(self) -> str: ...

class StepResult:
    """What a step gives.

    Attributes:
        losses: mean loss of each of this rank's loss_micro_batches, detached scalars.
        mean_loss: of the global batch, where it was asked for and there is a criterion.
        outputs: of each of loss_micro_batches, detached; where asked for.
    """

    @property
    def losses(self) -> list[Tensor]: ...
    @property
    def mean_loss(self) -> float | None: ...
    @property
    def outputs(self) -> list[tuple[Tensor | None, ...]]: ...
    @property
    def statistics(self) -> StepStatistics: ...

class Pipeline:
    def __init__(
        self, schedule: str, group: ProcessGroup, stages: Sequence[StageDescription], options: Options
    ) -> None: ...
    def step(
        self,
        inputs: Sequence[Any],
        labels: Sequence[Any],
        criterion: Callable[..., Tensor],
        weight: Callable[..., float] | None,
        return_outputs: bool,
    ) -> StepResult: ...
    def evaluate(
        self,
        inputs: Sequence[Any],
        labels: Sequence[Any],
        criterion: Callable[..., Tensor] | None,
        weight: Callable[..., float] | None,
        return_outputs: bool,
    ) -> StepResult: ...
    def finish_gradients(self) -> None: ...
    def compute_norm(self) -> float: ...
    def clip_gradients(self, norm: float, max_norm: float) -> None: ...
    def guarded(self, action: str, body: Callable[[], object]) -> None: ...
    def rank(self) -> int: ...
    def size(self) -> int: ...
    def num_stages(self) -> int: ...
    def stages(self) -> list[int]: ...
    def input_micro_batches(self) -> list[int]: ...
    def loss_micro_batches(self) -> list[int]: ...
    def reduces_mirrors(self) -> bool: ...
    def parameters(self) -> list[tuple[str, Tensor]]: ...
    def gradients(self) -> dict[str, Tensor]: ...
    def gradient_bytes(self) -> int: ...
    def statistics(self) -> StepStatistics: ...
    def pending_weight_gradients(self) -> str: ...
    def timeline_header_line(self) -> str: ...
    def timeline_step_line(self, iteration: int) -> str: ...
