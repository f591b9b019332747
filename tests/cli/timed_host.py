"""A training host as `dualpipe profile --command` sees it: it takes exactly as long as a cost file says.

    timed_host.py DUALPIPE COSTS.json RANKS MICROBATCHES [SCHEDULE_THAT_FAILS...]

Its timelines are those that `dualpipe plan --format trace` simulates; an iteration takes 5 ms more than its schedule.
Every rank holds 1000 bytes of parameters per stage, and a forward adds 64 bytes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

STEPS = 3


def simulated(program, schedule, costs, ranks, microbatches):
    command = [program, "plan", "-s", schedule, "-P", ranks, "-M", microbatches, "--cost", costs, "--format", "trace"]
    events = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["traceEvents"]
    rows = [[] for _ in range(int(ranks))]
    for event in events:
        if event["ph"] == "X":
            start = event["ts"] / 1e6
            rows[event["tid"]].append([event["name"], start, start + event["dur"] / 1e6])
    return rows


def stages_of(row):
    return sorted({int(cell.lstrip("(").split(kind)[0]) for cell, *_ in row for kind in "FBIW" if kind in cell[:4]})


def memory_of(row):
    samples, live = [[0.0, 0]], 0
    for cell, _, end in row:
        live += 64 * ("F" in cell.split("OVERLAP")[0]) - 64 * ("B" in cell.split("OVERLAP")[0] or "W" in cell)
        samples.append([end, live])
    return samples


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main():
    program, costs, ranks, microbatches, *failing = sys.argv[1:]
    schedule, output = os.environ["DUALPIPE_SCHEDULE"], Path(os.environ["DUALPIPE_OUTPUT"])
    if schedule in failing:
        sys.exit(f"error: {schedule} is too much")
    rows = simulated(program, schedule, costs, ranks, microbatches)
    makespan = max(row[-1][2] for row in rows)
    stages = max(stage for row in rows for stage in stages_of(row)) + 1
    iterations = range(1, STEPS + 1)
    ms = 1e3 * makespan + 5
    write_lines(output / "metrics.jsonl", [{"iteration": i, "lm_loss": 1, "grad_norm": 1, "ms": ms} for i in iterations])
    for rank, row in enumerate(rows):
        header = {
            "format": "dualpipe-timeline",
            "version": 1,
            "schedule": schedule,
            "rank": rank,
            "world_size": len(rows),
            "pipeline_rank": rank,
            "pipeline_model_parallel_size": len(rows),
            "num_microbatches": int(microbatches),
            "num_stages": stages,
            "stages": stages_of(row),
            "parameter_bytes": 1000 * len(stages_of(row)),
        }
        step = {"began": 1.7e9, "seconds": makespan, "spans": row, "memory": memory_of(row)}
        write_lines(output / f"timeline_rank{rank}.jsonl", [header, *({"iteration": i, **step} for i in iterations)])


main()
