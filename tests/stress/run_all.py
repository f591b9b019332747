"""All of tests/stress, and one table: `make stress`.

    run_all.py BUILD_DIR [--reduced] [--only NAME] [--json FILE]

Runs the programs below one after another; each prints a JSON row per claim (tests/stress/row.h). Exits with 0 where all
rows are reached, 1 where one is missed or a program told of none. `--reduced` is the form that runs with the tests.
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

    `reduced` are the arguments that go with the tests; None where it has no reduced form.
    """

    name: str
    command: str
    full: tuple[str, ...] = ()
    reduced: tuple[str, ...] | None = None
    torch: bool = True  # Needs a build with LibTorch.

    def arguments(self, build: Path, is_reduced: bool) -> list[str]:
        rest = list(self.reduced or ()) if is_reduced else list(self.full)
        if self.command.endswith(PYTHON):
            return [sys.executable, str(HERE / self.command), str(build), *rest]
        return [str(build / "bin" / self.command), *rest]


PROGRAMS = (
    Program("schedules", "stress_schedules", reduced=("--max-ranks", "16", "--more", "24"), torch=False),
    Program("mutations", "stress_mutations", full=("--seed", "1", "--count", "100000"),
            reduced=("--seed", "1", "--count", "20000"), torch=False),
    Program("faults", "stress_faults", reduced=()),
    Program("checkpoint", "stress_checkpoint"),
    Program("saves", "processes/saves.py"),
    Program("starts", "processes/starts.py"),
    Program("processes", "processes/faults.py"),
    Program("soak", "processes/soak.py"),
)


@dataclass
class Result:
    name: str
    seconds: float
    rows: list[dict]
    failure: str | None = None

    @property
    def is_reached(self) -> bool:
        return self.failure is None and all(row["reached"] for row in self.rows)


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


def print_result(result: Result) -> None:
    print(f"{result.name} ({result.seconds:.0f} s)")
    for row in result.rows:
        word = "reached" if row["reached"] else "MISSED "
        seed = f", seed {row['seed']}" if row["seed"] else ""
        print(f"  {word}  {row['what']}\n           wanted {row['wanted']}; got {row['measured']}{seed}")
    if result.failure:
        print(f"  MISSED   {result.failure}")
    sys.stdout.flush()


def chosen(build: Path, is_reduced: bool, only: str | None) -> list[Program]:
    """All programs, or one by name; those that need LibTorch only where something of theirs was built."""
    if only:
        return [program for program in PROGRAMS if program.name == only]
    has_torch = (build / "bin" / "stress_faults").exists()
    return [program for program in PROGRAMS
            if (has_torch or not program.torch) and (not is_reduced or program.reduced is not None)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--reduced", action="store_true", help="the form that runs with the tests")
    parser.add_argument("--only", choices=[program.name for program in PROGRAMS])
    parser.add_argument("--json", type=Path, help="where all rows go, as JSON")
    options = parser.parse_args()
    results = []
    for program in chosen(options.build.absolute(), options.reduced, options.only):
        results.append(run(program, options.build.absolute(), options.reduced))
        print_result(results[-1])
    if options.json:
        options.json.write_text(json.dumps([vars(result) for result in results], indent=1) + "\n")
    rows = [row for result in results for row in result.rows]
    missed = sum(not row["reached"] for row in rows)
    failed = [result.name for result in results if result.failure]
    print(f"{len(rows) - missed} of {len(rows)} rows reached"
          + (f"; nothing to be trusted of {', '.join(failed)}" if failed else ""))
    return 0 if results and all(result.is_reached for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
