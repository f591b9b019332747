#!/usr/bin/env python3
"""Predicted against measured: what `dualpipe profile` and `dualpipe plan --cost` say of steps that really ran.

    bench_predict [--json] [--ranks 8] [--microbatches 16] [--steps 5]

The engine runs sleeping stages in real processes over real Gloo, all schedules of one model: a stage of dualpipev and
interleaved_1f1b is half of one of the others. `profile` gets the run files of dualpipev alone, and its cost file
predicts the iteration of every schedule. Exits with 0 where all are within 5 %, 1 where one is not, 2 where nothing was
measured; tests/bench/README.md.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from bounds import all_reached, bound, print_bounds  # noqa: E402
from program import leave_with  # noqa: E402
from rank_group import Failed, RankGroup, makespan_ms  # noqa: E402

SCHEDULES = {"1f1b": 1, "interleaved_1f1b": 2, "zb1p": 1, "dualpipe": 1, "dualpipev": 2}  # Stages per rank.
PROFILED = "dualpipev"
HALF_STAGE_MS = (10, 12, 8, 22)  # F, I, W, F&B.
SETTINGS = [{"bytes": 1024, "delay_ms": 0}, {"bytes": 1 << 20, "delay_ms": 0}, {"bytes": 1024, "delay_ms": 5}]
SIZE_NAMES = {1024: "1 KiB", 1 << 20: "1 MiB"}
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


def output_of(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed(done.stderr.strip() or f"{command[0]} ended with {done.returncode}")
    return done.stdout


def profile(program, runs, output):
    """The run is there already: a host that copies it."""
    host = f'cp "{runs}/$DUALPIPE_SCHEDULE"/* "$DUALPIPE_OUTPUT"'
    told = output_of(program, "profile", "--command", host, "--schedules", PROFILED, "-o", output)
    return [" ".join(line.split()) for line in told.splitlines()
            if line.startswith(("latency", "step overhead", "check"))]


def predict(program, cost, schedule, ranks, microbatches):
    plan = output_of(program, "plan", "--cost", cost, "-s", schedule, "-P", ranks, "-M", microbatches, "--format",
                     "json")
    return json.loads(plan)["iteration"]


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


def name_of(setting):
    links = f", links {setting['delay_ms']} ms longer" if setting["delay_ms"] else ""
    return f"{SIZE_NAMES[setting['bytes']]}{links}"


def compare(options, setting, folder, measured):
    """What was measured and predicted of every schedule, in milliseconds."""
    cost = folder / "cost.json"
    told = profile(options.program, folder / "runs", cost)
    schedules = {schedule: {"measured_ms": ms, "predicted_ms": predict(options.program, cost, schedule, options.ranks,
                                                                       options.microbatches)}
                 for schedule, ms in measured.items()}
    return {"setting": name_of(setting), "profile": told, "schedules": schedules}


def off(figures):
    return figures["predicted_ms"] / figures["measured_ms"] - 1


def judge(cases):
    return [bound(abs(off(figures)), LIMIT, f"{schedule}, {case['setting']}: predicted off by",
                  f"{figures['predicted_ms']:.1f} for {figures['measured_ms']:.1f} ms")
            for case in cases for schedule, figures in case["schedules"].items()]


def print_case(case):
    print(f"\n{case['setting']}; " + "; ".join(case["profile"]))
    print(f"{'schedule':<18}{'measured ms':>13}{'predicted ms':>14}{'off':>8}")
    for schedule, figures in case["schedules"].items():
        print(f"{schedule:<18}{figures['measured_ms']:>13.1f}{figures['predicted_ms']:>14.1f}"
              f"{100 * off(figures):>+7.1f}%")


def measure_all(options):
    with tempfile.TemporaryDirectory() as temporary, RankGroup("the engine", [options.rank], options.ranks) as group:
        group.wait_until_up()
        cases = []
        for number, setting in enumerate(SETTINGS):
            folder = Path(temporary) / str(number)
            cases.append(compare(options, setting, folder, measure(group, setting, options, folder / "runs")))
        return cases


def main():
    parser = argparse.ArgumentParser(prog="bench_predict", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--rank", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5, help="of each schedule, of which the median counts")
    options = parser.parse_args()
    cases = measure_all(options)
    bounds = judge(cases)
    if options.json:
        print(json.dumps({"cases": cases, "bounds": bounds}, indent=1))
    else:
        print(f"{options.ranks} ranks, {options.microbatches} micro-batches, costs from {PROFILED} alone; medians of "
              f"{options.steps} steps")
        for case in cases:
            print_case(case)
        print()
        print_bounds(bounds)
    return 0 if all_reached(bounds) else 1


if __name__ == "__main__":
    leave_with("bench_predict", main)
