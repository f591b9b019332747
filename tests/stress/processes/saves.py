"""A save that is killed, or whose disk fails, at every k-th of its system calls: the old or the new checkpoint loads.

    saves.py BUILD_DIR [--every 1]

One process saves at steps 2, 4 and 6; strace makes one of the calls that change files of checkpoints fail with ENOSPC or
EIO, or kills the process there, call by call. Afterwards a run without faults has to go on from a whole checkpoint (or
begin, where the first save was hit) and end with the losses of a run that nobody disturbed, bit for bit. Prints
rows of `make stress`; exits with 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from ranks import Ended, Ranks, write_config
from rows import print_row

CALLS = "write,pwrite64,writev,pwritev,fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,ftruncate,unlink,unlinkat"
STEPS = 6
FAULTS = {"kill": "signal=KILL", "ENOSPC": "error=ENOSPC", "EIO": "error=EIO"}
SETTINGS = {"pipeline_schedule": "builtin_1f1b", "pipeline_model_parallel_size": 1, "num_layers": 2,
            "global_batch_size": 2, "seq_length": 16, "save_interval": 2, "train_iters": STEPS}


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

    def disturb(self, fault: str, k: int) -> str | None:
        """What is wrong with what a disturbed save left; None where nothing is."""
        saved = self.folder / f"saved-{fault}-{k}"
        prefix = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={CALLS}", "-e",
                  f"inject={CALLS}:{FAULTS[fault]}:when={k}"]
        if self.train("disturbed", f"save={saved}", prefix=prefix).code == 0 and fault == "kill":
            return "the kill did not happen"
        ended = self.train("resumed", f"save={saved}", f"load={saved}")
        if ended.code != 0:
            return str(ended)
        whole, found = self.losses("whole"), self.losses("resumed")
        shutil.rmtree(saved, ignore_errors=True)
        first = min(found, default=STEPS + 1)
        if first not in (1, 3, 5, STEPS + 1) or found != {step: loss for step, loss in whole.items() if step >= first}:
            return f"the losses are {found} instead of {whole}"
        return None


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
        wrong = 0
        for k in chosen:
            for fault in FAULTS:
                problem = saves.disturb(fault, k)
                wrong += problem is not None
                if problem:
                    print(f"{fault} at call {k}: {problem}", file=sys.stderr)
    tried = len(chosen) * len(FAULTS)
    reached = print_row(f"kill -9, ENOSPC and EIO at {len(chosen)} of {len(calls)} system calls of saves",
                        "all load old or new, to the bit", f"{tried - wrong} of {tried}", wrong == 0)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
