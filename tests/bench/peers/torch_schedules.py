"""Schedules of torch.distributed.pipelining over stages that sleep."""

import torch
from sleeping import Sleeper, SleepingStage
from torch.distributed.pipelining import PipelineStage, schedules

PAIR = "OVERLAP_F_B"

# Class, and the stages of a rank of R.
LOOP, V = lambda rank, ranks: [rank], lambda rank, ranks: [rank, 2 * ranks - 1 - rank]
KINDS = {
    "torch_1f1b": (schedules.Schedule1F1B, LOOP),
    "torch_zb1p": (schedules.ScheduleInterleavedZeroBubble, LOOP),
    "torch_zbv": (schedules.ScheduleZBVZeroBubble, V),
    "torch_dualpipev": (schedules.ScheduleDualPipeV, V),
}


def loss(output, _target):
    return output.sum()


class TorchPipeline:
    def __init__(self, request, rank, ranks):
        make, place = KINDS[request["kind"]]
        mine = place(rank, ranks)
        self.count = request["microbatches"]
        self.sleeper = Sleeper()
        self.first, self.last = 0 in mine, ranks * len(mine) - 1 in mine
        stages = [PipelineStage(SleepingStage(self.sleeper), stage, ranks * len(mine), torch.device("cpu"))
                  for stage in mine]
        of_one = make is schedules.Schedule1F1B
        self.schedule = make(stages[0] if of_one else stages, self.count, loss_fn=loss, scale_grads=False)
        values = request["bytes"] // 4
        # Inputs that train: the first stage has an I like the others.
        self.inputs = torch.zeros(self.count, values).requires_grad_(True)
        self.targets = torch.zeros(self.count, 1)
        self.step()
        self.sleeper = self.repace(stages, request["pace_ms"])
        row = [action for action in self.schedule.pipeline_order[rank] if action is not None]
        self.actions = len(row)
        self.operations = sum(2 if str(action).endswith(PAIR) else 1 for action in row)

    @staticmethod
    def repace(stages, pace_ms):
        sleeper = Sleeper(pace_ms)
        for stage in stages:
            stage.submod.sleeper = sleeper
        return sleeper

    def step(self):
        # A schedule hands the input to each first stage and the target to each last one.
        given = (self.inputs,) if self.first else ()
        wanted = {"target": self.targets} if self.last else {}
        self.schedule.step(*given, return_outputs=False, **wanted)

    def csv(self):
        """The compute-only order of all ranks."""
        rows = self.schedule.pipeline_order
        return [[str(action) for action in rows[rank] if action is not None] for rank in sorted(rows)]
