"""What Python adds to an action: the binding, the GIL, the casts, and the two operations that a stage is.

    bench_binding [--json] [--steps N]

One rank, whose stages multiply by a weight; CPU time of the process over its actions, medians of the steps. 0 where the
difference to the same in C++ is below the bound, 1 where it is not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dualpipe.core import Pipeline, Stage, Tensors

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from bounds import all_reached, bound, print_bounds  # noqa: E402

BOUND_US = 50.0
MICRO_BATCHES = 64
SCHEDULES = {"1f1b": 1, "dualpipev": 2}  # And their stages.
WARM_UP = 3


class Product(Stage):
    def __init__(self) -> None:
        self.weight = torch.ones(8, requires_grad=True)

    def forward(self, inputs: Tensors) -> Tensor:
        return inputs[0] * self.weight

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        return [("weight", self.weight)]


def criterion(outputs: Tensors, labels: Tensors) -> Tensor:
    return (outputs[0] - labels[0]).square().mean()


def python_us(schedule: str, steps: int) -> float:
    """Median CPU microseconds per action."""
    stages = [Product() for _ in range(SCHEDULES[schedule])]
    pipeline = Pipeline(schedule, dist.group.WORLD, stages, num_microbatches=MICRO_BATCHES, notify_failures=False)
    batch = [(torch.ones(1, 8),)] * MICRO_BATCHES
    taken = []
    for _ in range(steps):
        began = time.process_time()
        result = pipeline.step(batch, batch, criterion)
        taken.append((time.process_time() - began) / len(result.statistics.spans))
    return 1e6 * statistics.median(taken[WARM_UP:])


def engine_us(program: str, schedule: str, steps: int) -> float:
    run = subprocess.run([program, schedule, str(steps)], capture_output=True, text=True, check=True)
    return 1e6 * statistics.median(float(line) for line in run.stdout.split()[WARM_UP:])


def measure(program: str, steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    report: dict[str, Any] = {"schedules": {}, "bounds": []}
    for schedule in SCHEDULES:
        engine, python = engine_us(program, schedule, steps), python_us(schedule, steps)
        report["schedules"][schedule] = {"engine_us": engine, "python_us": python}
        what = f"{schedule}, per action above the C++ engine"
        report["bounds"].append(bound(python - engine, BOUND_US, what, unit="us"))
    dist.destroy_process_group()
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, help="bench_binding_engine")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    report = measure(options.engine, WARM_UP + options.steps)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        for schedule, figures in report["schedules"].items():
            print(f"{schedule:<12} per action: C++ {figures['engine_us']:.1f} us, Python {figures['python_us']:.1f} us")
        print_bounds(report["bounds"])
    return 0 if all_reached(report["bounds"]) else 1


if __name__ == "__main__":
    sys.exit(main())
