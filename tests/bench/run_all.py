"""All benchmarks that have bounds, and one table: `make bench`.

    run_all.py BUILD_DIR [--reference DIR] [--json FILE]

Exits with 0 where every bound is reached within ten minutes, 1 where one is missed, one benchmark is not built or one
measured nothing; tests/bench/README.md.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "support"))
from bounds import all_reached, bound, missed, print_bounds  # noqa: E402


TOTAL_S = 600       # Of all together.
TIMEOUT_S = 900     # Of one, which then hangs.
LAST_WORDS = 500    # Characters of what one says that measured nothing.


class NothingMeasured(Exception):
    """Says why."""


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
    ("bench_peers", ["--bounded"], own_bounds),
    ("bench_executor", ["--sizes", "1024"], own_bounds),
    ("bench_overlap", ["--only", "pair", "--repeats", "2"], overlap_bounds),
    ("bench_predict", ["--steps", "3"], own_bounds),
    ("bench_auto", [], own_bounds),
    ("bench_split", [], split_bounds),
    ("bench_binding", [], own_bounds),
]


def last_words(text):
    """Without the frames of a C++ stack, which come behind the reason."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("frame #")).strip()[-LAST_WORDS:]


def report_of(program, arguments):
    if not program.exists():
        raise NothingMeasured("it is not built")
    try:
        done = subprocess.run([program, "--json", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NothingMeasured(f"it did not end within {TIMEOUT_S} s") from None
    except OSError as error:
        raise NothingMeasured(str(error)) from None
    if done.returncode in (0, 1):
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(done.stdout)
    raise NothingMeasured(last_words(done.stderr) or f"it ended with {done.returncode}, without a report")


def run(build, name, arguments, bounds_of):
    """Rows, and the whole report; one missed row that says why, where nothing was measured."""
    began, report = time.monotonic(), None
    try:
        report = report_of(build / "bin" / name, arguments)
        rows, failure = bounds_of(report), None
    except NothingMeasured as reason:
        failure = str(reason)
    except (KeyError, TypeError) as error:
        failure = f"its report is not what it should be: {type(error).__name__}: {error}"
    if failure:
        rows = [missed(f"{name}: nothing measured", failure.replace("\n", "; "))]
    return {"name": name, "seconds": time.monotonic() - began, "bounds": rows, "failure": failure, "report": report}


def print_result(result):
    print(f"{result['name']} ({result['seconds']:.0f} s)", flush=True)
    print_bounds(result["bounds"])
    sys.stdout.flush()


def total_of(results):
    seconds = sum(result["seconds"] for result in results)
    return {"name": "all together", "seconds": seconds, "bounds": [bound(seconds, TOTAL_S, "time of all", unit="s")],
            "failure": None, "report": None}


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--reference", help="a checkout of deepseek-ai/DualPipe, to be measured as well")
    parser.add_argument("--json", type=pathlib.Path, help="where all reports go, as JSON")
    options = parser.parse_args(given)
    results = []
    for name, arguments, bounds_of in BENCHMARKS:
        if name == "bench_peers" and options.reference:
            arguments = [*arguments, "--reference", options.reference]
        results.append(run(options.build.absolute(), name, arguments, bounds_of))
        print_result(results[-1])
    results.append(total_of(results))
    print_result(results[-1])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    rows = [row for result in results for row in result["bounds"]]
    failed = [result["name"] for result in results if result["failure"]]
    print(f"{sum(row['reached'] for row in rows)} of {len(rows)} bounds reached"
          + (f"; nothing measured by {', '.join(failed)}" if failed else ""))
    return 0 if all_reached(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
