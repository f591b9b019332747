"""A training host as `dualpipe ab --command` sees it: writes the run files of a tiny pipeline whose times are known.

    fake_host.py PLAN.json

PLAN gives, by schedule (or for "any"):
  "ms"           of every iteration, a list; round k of a schedule adds k-1 to each
  "losses", "grad_norms"   lists of the same length
  "timelines"    whether to write timeline_rank<R>.jsonl (default true)
  "copies"       1, or 2 where both ranks hold both stages
  "fail"         text to print before leaving with exit code 3
  "sleep"        seconds before anything is written
  "append"       {file: text} added to what was written
  "exposed"      false: without exposed_seconds
  "norms"        false: without grad_norm
  "ran"          what the timelines name as the schedule (default: what was asked for)
Every step is: rank 0 F0 at 0 to 1, rank 1 F0 at 2 to 3 and B0 at 3 to 5, rank 0 B0 at 6 to 8, in units of ms/8.
"""

import json
import os
import sys
import time
from pathlib import Path


def spans_of(rank, ms):
    unit = ms / 8e3
    rows = {0: [("0F0", 0, 1), ("0B0", 6, 8)], 1: [("1F0", 2, 3), ("1B0", 3, 5)]}[rank]
    return [[cell, start * unit, end * unit] for cell, start, end in rows]


def step_of(rank, iteration, ms, plan):
    step = {
        "iteration": iteration,
        "began": 1.7e9 + iteration,
        "seconds": ms / 1e3,
        "spans": spans_of(rank, ms),
        "phases": [[spans_of(rank, ms)[0][0] + " 0.dispatch", 0.0, ms / 16e3, ms / 80e3]],
        "peak_activations": 1,
        "peak_activation_bytes": 4096,
        "memory": [[0.0, 0], [ms / 8e3, 4096]],
    }
    if plan.get("exposed", True):
        step["exposed_seconds"] = ms / 80e3
    return step


def header_of(rank, schedule, plan):
    return {
        "format": "dualpipe-timeline",
        "version": 1,
        "schedule": schedule,
        "rank": rank,
        "world_size": 2,
        "pipeline_rank": rank,
        "pipeline_model_parallel_size": 2,
        "num_microbatches": 1,
        "num_stages": 2,
        "stages": [0, 1] if plan.get("copies", 1) == 2 else [rank],
        "parameter_bytes": 1000000 * plan.get("copies", 1),
        "gradient_bytes": 1000000,
        "optimizer_bytes": 2000000,
    }


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main():
    schedule, output = os.environ["DUALPIPE_SCHEDULE"], Path(os.environ["DUALPIPE_OUTPUT"])
    plans = json.loads(Path(sys.argv[1]).read_text())
    plan = {**plans.get("any", {}), **plans.get(schedule, {})}
    print(f"training with {schedule}")
    time.sleep(plan.get("sleep", 0))
    if "fail" in plan:
        print(plan["fail"], file=sys.stderr)
        sys.exit(3)
    later = int(output.name.removeprefix("round")) - 1
    times = [ms + later for ms in plan["ms"]]
    write_lines(
        output / "metrics.jsonl",
        [
            {"iteration": i + 1, "lm_loss": plan["losses"][i], "lr": 0.1, "ms": ms}
            | ({"grad_norm": plan["grad_norms"][i]} if plan.get("norms", True) else {})
            for i, ms in enumerate(times)
        ],
    )
    for rank in range(2) if plan.get("timelines", True) else ():
        steps = [step_of(rank, i + 1, ms, plan) for i, ms in enumerate(times)][-3:]
        header = header_of(rank, plan.get("ran", schedule), plan)
        write_lines(output / f"timeline_rank{rank}.jsonl", [header, *steps])
    for name, text in plan.get("append", {}).items():
        with (output / name).open("a") as file:
            file.write(text)


main()
