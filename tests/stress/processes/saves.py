"""A save that is killed, or whose disk fails, at every k-th of its system calls: the old or the new checkpoint loads.

    saves.py BUILD_DIR [--every 1]

One process saves at steps 2, 4 and 6; strace makes one of the calls that change files of checkpoints fail with ENOSPC or
EIO, or kills the process there, call by call. Afterwards a run without faults has to go on from a whole checkpoint (or
begin, where the first save was hit) and end with the losses of a run that nobody disturbed, bit for bit.

A thread makes a call more or less from run to run (its log, its timers), so a fault at one of the last may find no call
to hit. strace's own log says whether it hit: such a try is made again, and counted as no try where none of them hits.
Prints rows of `make stress`; exits with 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ranks import Ended, Ranks, write_config
from rows import print_row

CALLS = "write,pwrite64,writev,pwritev,fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,ftruncate,unlink,unlinkat"
STEPS = 6
TRIES = 3
LEAST_SHARE_HIT = 0.95
FAULTS = {"kill": "signal=KILL", "ENOSPC": "error=ENOSPC", "EIO": "error=EIO"}
HIT = {"kill": "killed by SIGKILL", "ENOSPC": "(INJECTED)", "EIO": "(INJECTED)"}
SETTINGS = {"pipeline_schedule": "builtin_1f1b", "pipeline_model_parallel_size": 1, "num_layers": 2,
            "global_batch_size": 2, "seq_length": 16, "save_interval": 2, "train_iters": STEPS}


@dataclass(frozen=True)
class Outcome:
    """Of one disturbed run; `problem` is what is wrong with what its saves left."""

    is_hit: bool = True
    problem: str | None = None


class Saves:
    def __init__(self, program: Path, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.config = write_config(program, folder, **SETTINGS)

    def train(self, name: str, *settings: str, prefix: list[str] | None = None) -> Ended:
        output = self.folder / name
        with Ranks(self.program, self.config, 1, output, settings=[f"output_dir={output}", *settings],
                   prefix=lambda rank: prefix or []) as run:
            return run.wait(120)[0]

    def train_unhurt(self, name: str, *settings: str, prefix: list[str] | None = None) -> None:
        ended = self.train(name, *settings, prefix=prefix)
        if ended.code != 0:
            raise RuntimeError(f"a run that nobody hurt failed: {ended}")

    def losses(self, name: str) -> dict[int, str]:
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        return {json.loads(line)["iteration"]: re.search(r'"lm_loss":[^,]+', line).group() for line in lines}

    def calls_of_saves(self) -> list[int]:
        """Which of a thread's calls are on files of checkpoints, as strace counts them: by thread, from 1."""
        log, saved = self.folder / "calls", self.folder / "counted"
        prefix = ["strace", "-f", "-y", "-qq", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(log)]
        self.train_unhurt("counting", f"save={saved}", prefix=prefix)
        count: Counter[str] = Counter()
        calls = set()
        for line in log.read_text(errors="replace").splitlines():
            thread, call = line.split(maxsplit=1)
            if call.startswith("<..."):
                continue
            count[thread] += 1
            if str(saved) in call:
                calls.add(count[thread])
        return sorted(calls)

    def is_hit(self, fault: str, k: int, saved: Path) -> bool:
        """Trains with a fault at every thread's k-th call; whether a thread made so many."""
        log = self.folder / "injected"
        prefix = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={CALLS}", "-e",
                  f"inject={CALLS}:{FAULTS[fault]}:when={k}"]
        self.train("disturbed", f"save={saved}", prefix=prefix)
        return HIT[fault] in log.read_text(errors="replace")

    def disturb(self, fault: str, k: int) -> Outcome:
        saved = self.folder / f"saved-{fault}-{k}"
        for _ in range(TRIES):
            shutil.rmtree(saved, ignore_errors=True)
            if self.is_hit(fault, k, saved):
                break
        else:
            return Outcome(is_hit=False)
        ended = self.train("resumed", f"save={saved}", f"load={saved}")
        if ended.code != 0:
            return Outcome(problem=str(ended))
        whole, found = self.losses("whole"), self.losses("resumed")
        shutil.rmtree(saved, ignore_errors=True)
        first = min(found, default=STEPS + 1)
        if first not in (1, 3, 5, STEPS + 1) or found != {step: loss for step, loss in whole.items() if step >= first}:
            return Outcome(problem=f"the losses are {found} instead of {whole}")
        return Outcome()

def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--every", type=int, default=1, help="of the calls, each so-manieth")
    options = parser.parse_args()
    if shutil.which("strace") is None:
        print("needs the program `strace` (package strace)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        saves = Saves(options.build.resolve() / "bin" / "pretrain_gpt", Path(name))
        saves.train_unhurt("whole", f"save={name}/saved-whole")
        calls = saves.calls_of_saves()
        chosen = calls[:: options.every]
        outcomes = []
        for k in chosen:
            for fault in FAULTS:
                outcomes.append(saves.disturb(fault, k))
                if outcomes[-1].problem:
                    print(f"{fault} at call {k}: {outcomes[-1].problem}", file=sys.stderr)
    hits = [outcome for outcome in outcomes if outcome.is_hit]
    right = sum(outcome.problem is None for outcome in hits)
    reached = print_row(f"kill -9, ENOSPC and EIO at {len(chosen)} of {len(calls)} system calls of saves",
                        "all load old or new, to the bit",
                        f"{right} of {len(hits)}, and {len(outcomes) - len(hits)} found no call to hit",
                        right == len(hits) and len(hits) >= LEAST_SHARE_HIT * len(outcomes))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
