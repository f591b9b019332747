"""All benchmarks that have bounds, and one table: `make bench`.

    run_all.py BUILD_DIR [--reference DIR] [--json FILE]

Exits with 0 where every bound is reached, 1 where one is missed or a benchmark measured nothing; tests/bench/README.md.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "support"))
from bounds import all_reached, bound, print_bounds  # noqa: E402


def own_bounds(report):
    return report["bounds"]


def overlap_bounds(report):
    return [bound(b["value"], b["limit"], f"pair, all-to-all {case['ratio']}x of compute: {name}")
            for case in report["pair"]["cases"] for name, b in case["bounds"].items()]


def split_bounds(report):
    return [bound(report[kind]["ratio"], report[kind]["bound"], f"I + W over B, {name}")
            for kind, name in (("whole", "one graph"), ("phased", "attention and MLP as phases"))]


# Program, its arguments, and the bounds in its report.
BENCHMARKS = [
    ("bench_peers", [], own_bounds),
    ("bench_executor", ["--sizes", "1024"], own_bounds),
    ("bench_overlap", ["--only", "pair"], overlap_bounds),
    ("bench_split", [], split_bounds),
    ("bench_binding", [], own_bounds),
]


def run(build, name, arguments, bounds_of):
    """Rows, and the whole report; no rows but why not, where nothing was measured."""
    began = time.monotonic()
    done = subprocess.run([build / "bin" / name, "--json", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)
    result = {"name": name, "seconds": time.monotonic() - began}
    if done.returncode not in (0, 1):
        return result | {"bounds": [], "failure": done.stderr.strip()[-500:] or f"it ended with {done.returncode}"}
    report = json.loads(done.stdout)
    return result | {"bounds": bounds_of(report), "failure": None, "report": report}


def print_result(result):
    print(f"{result['name']} ({result['seconds']:.0f} s)", flush=True)
    if result["failure"]:
        print(f"  measured nothing: {result['failure']}", flush=True)
    else:
        print_bounds(result["bounds"])
        sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--reference", help="a checkout of deepseek-ai/DualPipe, to be measured as well")
    parser.add_argument("--json", type=pathlib.Path, help="where all reports go, as JSON")
    options = parser.parse_args()
    results = []
    for name, arguments, bounds_of in BENCHMARKS:
        if not (options.build / "bin" / name).exists():  # bench_binding, without a Python package.
            print(f"{name}: not built", flush=True)
            continue
        if name == "bench_peers" and options.reference:
            arguments = [*arguments, "--reference", options.reference]
        results.append(run(options.build.absolute(), name, arguments, bounds_of))
        print_result(results[-1])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    rows = [row for result in results for row in result["bounds"]]
    missed = sum(not row["reached"] for row in rows)
    failed = [result["name"] for result in results if result["failure"]]
    print(f"{len(rows) - missed} of {len(rows)} bounds reached"
          + (f"; nothing measured by {', '.join(failed)}" if failed else ""))
    return 0 if all_reached(rows) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
