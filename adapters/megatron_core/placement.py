"""Which stages of the model a pipeline rank holds, and how megatron-core is told so.

megatron-core numbers stages in loop order (`stage = chunk * P + rank`). Other placements are expressed without patching
it: every chunk gets a copy of the `TransformerConfig` that says "as many pipeline ranks as the model has stages", and a
process-group collection whose `pp` answers with the stage as its rank. Layer counts, layer numbers and offsets, and
what belongs to the first and the last stage then come out of megatron-core's own code.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection

BUILTIN_SCHEDULES: tuple[str, ...] = ("builtin_1f1b", "interleaved_1f1b")
ENGINE_SCHEDULES: tuple[str, ...] = ("dualpipe", "dualpipev", "zb1p", "1f1b")
SCHEDULES: tuple[str, ...] = BUILTIN_SCHEDULES + ENGINE_SCHEDULES


def check_schedule(schedule: str) -> None:
    """Raises `ValueError` for a name that is none of SCHEDULES."""
    if schedule not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        raise ValueError(f"[pipeline_schedule] must be one of {known}, got {schedule}; for example dualpipe")


def stages_of_rank(schedule: str, rank: int, size: int) -> tuple[list[int], int]:
    """The stages that pipeline rank `rank` of `size` holds, in chunk order, and how many stages the model has."""
    if schedule == "dualpipev":
        return [rank, 2 * size - 1 - rank], 2 * size
    if schedule == "dualpipe":
        return [rank, size - 1 - rank], size
    return [rank], size


class StageGroup:
    """Stands in for the pipeline group where a chunk is built: `rank()` is its stage, `size()` the number of stages.

    Everything else is the real group's.
    """

    def __init__(self, group: Any, stage: int, num_stages: int) -> None:
        self._group = group
        self._stage = stage
        self._num_stages = num_stages

    def rank(self) -> int:
        return self._stage

    def size(self) -> int:
        return self._num_stages

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_group"], name)


class SoloGroup:
    """Stands in for the embedding groups where both ends of the model are on one rank: no one to reduce with."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


@dataclasses.dataclass
class ChunkPlacement:
    """What a chunk is to the schedule; found on the model as `dualpipe_placement`."""

    schedule: str
    index: int  # Of the rank's chunks.
    stage: int  # Of the model, numbered from the input.
    num_stages: int
    is_mirror: bool  # The second copy of its stage in the pipeline (dualpipe).
    config: Any  # The host's own TransformerConfig, of which the chunk has a copy.
    engines: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False)  # Of the first chunk: those made.

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.num_stages - 1


@dataclasses.dataclass(frozen=True)
class ChunkSpec:
    """What a model provider needs to build one chunk."""

    config: Any  # TransformerConfig
    pre_process: bool
    post_process: bool
    vp_stage: int | None
    pg_collection: ProcessGroupCollection
    placement: ChunkPlacement | None  # None under the built-in schedules.


def group_collection() -> ProcessGroupCollection:
    """The groups of `parallel_state`."""
    return ProcessGroupCollection.use_mpu_process_groups()


def without_embedding_groups(groups: ProcessGroupCollection) -> ProcessGroupCollection:
    """A copy for `finalize_model_grads` under placements whose first and last stage share a rank."""
    copied = copy.copy(groups)
    copied.embd = SoloGroup()
    copied.pos_embd = SoloGroup()
    return copied


def keeps_ends_together(schedule: str) -> bool:
    """Whether the first and the last stage are on one rank."""
    return schedule in ("dualpipe", "dualpipev")


def _placed_config(config: Any, num_stages: int) -> Any:
    placed = copy.copy(config)
    placed.pipeline_model_parallel_size = num_stages
    placed.virtual_pipeline_model_parallel_size = None
    return placed


def _placed_spec(schedule: str, config: Any, groups: ProcessGroupCollection, index: int) -> ChunkSpec:
    rank, size = groups.pp.rank(), groups.pp.size()
    stages, num_stages = stages_of_rank(schedule, rank, size)
    placed = copy.copy(groups)
    if keeps_ends_together(schedule):
        placed.embd = placed.pos_embd = None  # Nothing to agree on while the chunk is built.
    placed.pp = StageGroup(groups.pp, stages[index], num_stages)
    placement = ChunkPlacement(
        schedule, index, stages[index], num_stages, schedule == "dualpipe" and index == 1, config
    )
    return ChunkSpec(
        _placed_config(config, num_stages), placement.is_first, placement.is_last, None, placed, placement
    )


def _builtin_spec(config: Any, groups: ProcessGroupCollection, vp_stage: int | None) -> ChunkSpec:
    ends = {"ignore_virtual": False, "vp_stage": vp_stage}
    first = parallel_state.is_pipeline_first_stage(**ends)
    last = parallel_state.is_pipeline_last_stage(**ends)
    return ChunkSpec(config, first, last, vp_stage, groups, None)


def chunk_specs(schedule: str, config: Any, groups: ProcessGroupCollection | None = None) -> list[ChunkSpec]:
    """What this rank has to build under `schedule`, in chunk order.

    `config` is the host's TransformerConfig with the real pipeline size; `groups` defaults to those of
    `parallel_state`. Under the built-in schedules the placement is megatron-core's own.
    """
    check_schedule(schedule)
    groups = groups or group_collection()
    if schedule in ENGINE_SCHEDULES:
        stages, _ = stages_of_rank(schedule, groups.pp.rank(), groups.pp.size())
        return [_placed_spec(schedule, config, groups, index) for index in range(len(stages))]
    chunks = config.virtual_pipeline_model_parallel_size
    if (schedule == "interleaved_1f1b") != (chunks is not None):
        raise ValueError(
            f"[{schedule}] virtual_pipeline_model_parallel_size must be "
            f"{'a number of chunks' if chunks is None else 'None'}, got {chunks}; for example "
            f"{'2' if chunks is None else '--pipeline-schedule interleaved_1f1b'}"
        )
    return [_builtin_spec(config, groups, chunk) for chunk in (range(chunks) if chunks else [None])]


def embedding_ranks(schedule: str) -> dict[str, Any]:
    """Arguments for `parallel_state.initialize_model_parallel`: which ranks of a pipeline share embeddings.

    Not needed for training with this package, which hands `SoloGroup`s to whoever asks for the embedding groups; for
    host code that reads them from `parallel_state`.
    """
    check_schedule(schedule)
    if not keeps_ends_together(schedule):
        return {}

    def first(pp_ranks: list[int], *_: Any) -> list[int]:
        return [pp_ranks[0]]

    return {"get_embedding_ranks": first, "get_position_embedding_ranks": first}
