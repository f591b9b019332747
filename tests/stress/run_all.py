"""All of tests/stress, and one table: `make stress`.

    run_all.py BUILD_DIR [--reduced] [--only NAME] [--json FILE]

Runs the programs below one after another; each prints a JSON row per claim (tests/stress/row.h). Exits with 0 where all
rows are reached, 1 where one is missed or a program told of none. How far it is goes to standard error. `--reduced` is
the form that runs with the tests: there, what a machine does not allow to try (strace, network namespaces) is told and
passed over; in the whole table it is a miss.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = ".py"


@dataclass(frozen=True)
class Program:
    """What prints rows: a program in BUILD_DIR/bin, or a script beside this one, which gets BUILD_DIR first.

    `reduced` are the arguments of the form that goes with the tests.
    """

    name: str
    command: str
    full: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    torch: bool = True  # Needs a build with LibTorch.

    def arguments(self, build: Path, is_reduced: bool) -> list[str]:
        rest = list(self.reduced if is_reduced else self.full)
        if self.command.endswith(PYTHON):
            return [sys.executable, str(HERE / self.command), str(build), *rest]
        return [str(build / "bin" / self.command), *rest]


PROGRAMS = (
    Program("schedules", "stress_schedules", reduced=("--max-ranks", "16", "--more", "24"), torch=False),
    Program("mutations", "stress_mutations", full=("--seed", "1", "--count", "100000"),
            reduced=("--seed", "1", "--count", "20000"), torch=False),
    Program("faults", "stress_faults"),
    Program("checkpoint", "stress_checkpoint", full=("--seed", "1", "--count", "100000"),
            reduced=("--seed", "1", "--count", "2000")),
    Program("saves", "processes/saves.py", reduced=("--every", "20")),
    Program("starts", "processes/starts.py", full=("--cases", "100", "--seed", "1"),
            reduced=("--cases", "8", "--seed", "1", "--slack", "3")),
    Program("processes", "processes/faults.py", full=("--cases", "150", "--seed", "1"),
            reduced=("--cases", "9", "--seed", "1", "--slack", "3")),
    Program("soak", "processes/soak.py", full=("--steps", "2000", "--kills", "20", "--seed", "1"),
            reduced=("--steps", "60", "--kills", "2", "--seed", "1")),
)


@dataclass
class Result:
    name: str
    seconds: float
    rows: list[dict]
    failure: str | None = None

    def is_reached(self, is_reduced: bool) -> bool:
        return self.failure is None and all(is_borne(row, is_reduced) for row in self.rows)


def is_borne(row: dict, is_reduced: bool) -> bool:
    return row["reached"] or (is_reduced and "skipped" in row)


def rows_of(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def run(program: Program, build: Path, is_reduced: bool) -> Result:
    """What it says of a miss goes to standard error as it comes."""
    began = time.monotonic()
    try:
        done = subprocess.run(program.arguments(build, is_reduced), stdout=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        return Result(program.name, time.monotonic() - began, [], str(error))
    rows = rows_of(done.stdout)
    failure = None
    if done.returncode not in (0, 1) or not rows:
        failure = f"it ended with {done.returncode} after {len(rows)} rows"
    elif done.returncode == 1 and all(row["reached"] for row in rows):
        failure = "it ended with 1, and no row says why"
    return Result(program.name, time.monotonic() - began, rows, failure)


def print_result(result: Result, is_reduced: bool) -> None:
    print(f"{result.name} ({result.seconds:.0f} s)")
    for row in result.rows:
        word = "reached" if row["reached"] else "skipped" if is_borne(row, is_reduced) else "MISSED "
        seed = f", seed {row['seed']}" if row["seed"] else ""
        print(f"  {word}  {row['what']}\n           wanted {row['wanted']}; got {row['measured']}{seed}")
    if result.failure:
        print(f"  MISSED   {result.failure}")
    sys.stdout.flush()


def chosen(build: Path, only: str | None) -> list[Program]:
    """All programs, or one by name; those that need LibTorch only where something of theirs was built."""
    if only:
        return [program for program in PROGRAMS if program.name == only]
    has_torch = (build / "bin" / "stress_faults").exists()
    return [program for program in PROGRAMS if has_torch or not program.torch]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--reduced", action="store_true", help="the form that runs with the tests")
    parser.add_argument("--only", choices=[program.name for program in PROGRAMS])
    parser.add_argument("--json", type=Path, help="where all rows go, as JSON")
    options = parser.parse_args()
    build, programs, results = options.build.absolute(), chosen(options.build.absolute(), options.only), []
    for number, program in enumerate(programs):
        print(f"[{time.strftime('%H:%M:%S')}] {number + 1} of {len(programs)}: {program.name}", file=sys.stderr,
              flush=True)
        results.append(run(program, build, options.reduced))
        print_result(results[-1], options.reduced)
    if options.json:
        options.json.write_text(json.dumps([vars(result) for result in results], indent=1) + "\n")
    rows = [row for result in results for row in result.rows]
    missed = sum(not row["reached"] for row in rows)
    skipped = sum(is_borne(row, options.reduced) and not row["reached"] for row in rows)
    failed = [result.name for result in results if result.failure]
    print(f"{len(rows) - missed} of {len(rows)} rows reached" + (f", {skipped} skipped" if skipped else "")
          + (f"; nothing to be trusted of {', '.join(failed)}" if failed else ""))
    return 0 if results and all(result.is_reached(options.reduced) for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
