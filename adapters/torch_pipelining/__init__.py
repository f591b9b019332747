"""DualPipe, DualPipeV and ZB1P for torch.distributed.pipelining: torch's stages and conventions, the C++ engine.

    from dualpipe.pipelining import ScheduleDualPipe

    stages = [PipelineStage(build(s), s, P, device) for s in sorted({rank, P - 1 - rank})]
    schedule = ScheduleDualPipe(stages, n_microbatches=M, loss_fn=loss_fn)
    schedule.step(x, target=y, losses=losses)     # on ranks 0 and P-1; schedule.step() on the others

See README.md.
"""

from .seams import check_torch

check_torch()

from .csv_form import ScheduleFromFile
from .norm import clip_grad_norm_, gradient_norm
from .run_log import RunLog
from .schedule import EngineSchedule
from .schedules import (
    ScheduleDualPipe,
    ScheduleDualPipeV,
    ScheduleZB1P,
    get_schedule_class,
    make_schedule,
    stage_indices,
)

__all__ = [
    "EngineSchedule",
    "RunLog",
    "ScheduleDualPipe",
    "ScheduleDualPipeV",
    "ScheduleFromFile",
    "ScheduleZB1P",
    "clip_grad_norm_",
    "get_schedule_class",
    "gradient_norm",
    "make_schedule",
    "stage_indices",
]
