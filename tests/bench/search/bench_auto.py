"""`dualpipe plan --schedule auto` with its usual budget, against what a plain annealing search of two minutes found.

    bench_auto [--json] [--time-budget S]

A V of 4 ranks, 10 micro-batches, F = I = W = 1, at most 9 live. Exits with 0 where every bound is reached, 1 where one
is missed, 2 where nothing was measured; tests/bench/README.md.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from bounds import all_reached, bound, print_bounds  # noqa: E402
from program import leave_with  # noqa: E402
from rank_group import Failed  # noqa: E402

MOST_LIVE = 9
MOST_SECONDS = 60  # On two cores.
ORDER = ["--placement", "v", "--max-activations", str(MOST_LIVE), "--pipeline-model-parallel-size", "4",
         "--num-microbatches", "10"]
# F&B and latency, and the makespan that was found.
FOUND = [(3, 0, 63), (3, 0.25, 64.25), (2.25, 0, 55.25), (2.25, 0.25, 59)]


def search(options, pair, latency):
    cost = f"forward=1,backward_input=1,backward_weight=1,overlapped={pair},latency={latency}"
    budget = ["--time-budget", str(options.time_budget)] if options.time_budget else []
    began = time.monotonic()
    done = subprocess.run([options.program, "plan", "--schedule", "auto", *ORDER, "--cost", cost, "--format", "json",
                           *budget], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())
    plan = json.loads(done.stdout)
    if max(plan["peak_activations"]) > MOST_LIVE:
        raise Failed(f"at most {MOST_LIVE} may live at once, got {max(plan['peak_activations'])}")
    return {"seconds": time.monotonic() - began, "evaluations": plan["evaluations"], "makespan": plan["makespan"],
            "best_named": plan["best_named"], "best_named_makespan": plan["best_named_makespan"]}


def judge(case, found):
    figures = case["figures"]
    named = f"{figures['best_named']} takes {figures['best_named_makespan']:g}"
    return [bound(figures["makespan"], found, f"auto, {case['name']}: makespan", named),
            bound(figures["seconds"], MOST_SECONDS, f"auto, {case['name']}: search", unit="s")]


def main():
    parser = argparse.ArgumentParser(prog="bench_auto", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--time-budget", type=float, help="of a search, in another place than its default")
    options = parser.parse_args()
    cases, bounds = [], []
    for pair, latency, found in FOUND:
        cases.append({"name": f"F&B {pair}, latency {latency}", "figures": search(options, pair, latency)})
        bounds += judge(cases[-1], found)
    if options.json:
        print(json.dumps({"cases": cases, "bounds": bounds}, indent=1))
    else:
        print_bounds(bounds)
    return 0 if all_reached(bounds) else 1


if __name__ == "__main__":
    leave_with("bench_auto", main)
