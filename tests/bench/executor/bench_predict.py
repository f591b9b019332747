#!/usr/bin/env python3
"""Predicted against measured: what `dualpipe profile` and `dualpipe plan --cost` say of steps that really ran.

    bench_predict.py DUALPIPE BENCH_EXECUTOR_RANK [--ranks 8] [--microbatches 16] [--steps 5]

The engine runs sleeping stages in real processes over real Gloo, all schedules of one model: a stage of dualpipev and
interleaved_1f1b is half of one of the others. `profile` gets the run files of dualpipev alone, and its cost file
predicts the iteration of every schedule. Exit code 1 if one is off by more than 5 %.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from rank_group import RankGroup, makespan_ms  # noqa: E402

SCHEDULES = {"1f1b": 1, "interleaved_1f1b": 2, "zb1p": 1, "dualpipe": 1, "dualpipev": 2}  # Stages per rank.
PROFILED = "dualpipev"
HALF_STAGE_MS = (10, 12, 8, 22)  # F, I, W, F&B.
SETTINGS = [{"bytes": 1024, "delay_ms": 0}, {"bytes": 1 << 20, "delay_ms": 0}, {"bytes": 1024, "delay_ms": 5}]
LIMIT = 0.05


def request_of(schedule, setting, microbatches):
    pace = [ms * 2 / SCHEDULES[schedule] for ms in HALF_STAGE_MS]
    return {"schedule": schedule, "microbatches": microbatches, "pace_ms": pace, "spans": True, **setting}


def stages_of(schedule, rank, ranks):
    if schedule == "dualpipev":
        return [rank, 2 * ranks - 1 - rank]
    if schedule == "dualpipe":
        return [rank, ranks - 1 - rank]
    return list(range(rank, ranks * SCHEDULES[schedule], ranks))


def header_of(schedule, rank, ranks, microbatches):
    return {"format": "dualpipe-timeline", "version": 1, "schedule": schedule, "rank": rank, "world_size": ranks,
            "pipeline_rank": rank, "pipeline_model_parallel_size": ranks, "num_microbatches": microbatches,
            "num_stages": ranks * SCHEDULES[schedule], "stages": stages_of(schedule, rank, ranks)}


def step_of(iteration, answer):
    spans = [[cell, start / 1e3, end / 1e3] for cell, start, end in answer["spans"]]
    return {"iteration": iteration, "began": answer["spans_began"], "seconds": answer["ended"] - answer["began"],
            "spans": spans}


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_run(folder, schedule, microbatches, steps):
    """Of every step the answers of all ranks."""
    folder.mkdir(parents=True)
    ranks = len(steps[0])
    write_lines(folder / "metrics.jsonl",
                [{"iteration": i + 1, "lm_loss": 0, "grad_norm": 0, "ms": makespan_ms(step)}
                 for i, step in enumerate(steps)])
    for rank in range(ranks):
        write_lines(folder / f"timeline_rank{rank}.jsonl",
                    [header_of(schedule, rank, ranks, microbatches),
                     *(step_of(i + 1, step[rank]) for i, step in enumerate(steps))])


def profile(program, runs, output):
    """The run is there already: a host that copies it."""
    host = f'cp "{runs}/$DUALPIPE_SCHEDULE"/* "$DUALPIPE_OUTPUT"'
    told = subprocess.run([program, "profile", "--command", host, "--schedules", PROFILED, "-o", output],
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line for line in told.splitlines() if line.startswith(("latency", "step overhead", "check"))]


def predict(program, cost, schedule, ranks, microbatches):
    command = [program, "plan", "--cost", cost, "-s", schedule, "-P", str(ranks), "-M", str(microbatches), "--format",
               "json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["iteration"]


def measure(group, setting, options, runs):
    """Median milliseconds of a step by schedule; its run files go to `runs`."""
    measured = {}
    for schedule in SCHEDULES:
        request = request_of(schedule, setting, options.microbatches)
        group.prepare(request)
        steps = [group.measure(request) for _ in range(options.steps + 1)][1:]
        write_run(runs / schedule, schedule, options.microbatches, steps)
        measured[schedule] = statistics.median(makespan_ms(step) for step in steps)
    return measured


def compare(options, setting, folder, measured):
    cost = folder / "cost.json"
    told = profile(options.program, folder / "runs", cost)
    print(f"\nmessages of {setting['bytes']} bytes, links that add {setting['delay_ms']} ms; " + "; ".join(
        " ".join(line.split()) for line in told))
    print(f"{'schedule':<18}{'measured ms':>13}{'predicted ms':>14}{'off':>8}")
    reached = True
    for schedule, ms in measured.items():
        predicted = predict(options.program, cost, schedule, options.ranks, options.microbatches)
        off = predicted / ms - 1
        reached &= abs(off) <= LIMIT
        print(f"{schedule:<18}{ms:>13.1f}{predicted:>14.1f}{100 * off:>+7.1f}%  "
              f"{'reached' if abs(off) <= LIMIT else 'missed'}")
    return reached


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("rank")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    print(f"{options.ranks} ranks, {options.microbatches} micro-batches, costs from {PROFILED} alone; within "
          f"{100 * LIMIT:.0f} % of the median of {options.steps} steps")
    reached = True
    with tempfile.TemporaryDirectory() as temporary, RankGroup("engine", [options.rank], options.ranks) as group:
        group.wait_until_up()
        for number, setting in enumerate(SETTINGS):
            folder = Path(temporary) / str(number)
            reached &= compare(options, setting, folder, measure(group, setting, options, folder / "runs"))
    return 0 if reached else 1


sys.exit(main())
