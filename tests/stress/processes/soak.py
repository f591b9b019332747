"""A long run, and the same run killed and resumed again and again: the same checkpoint, byte for byte.

    soak.py BUILD_DIR [--steps 2000] [--kills 20] [--seed 1]

Two ranks under DualPipe. The first run is never interrupted; what it uses of memory, file descriptors and threads is
looked at from a quarter of it on. In the second, a rank that chance picks is killed at a step that chance picks, and
the run goes on from the newest checkpoint. Prints rows of `make stress`; exits with 1 where one is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import signal
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ranks import Ranks, iterations, write_config
from rows import print_row, tell

SIZE = 2
SETTINGS = {"pipeline_model_parallel_size": SIZE, "num_layers": 2, "global_batch_size": 4, "seq_length": 16,
            "save_interval": 25, "log_interval": 1000000}
MEGABYTE = 1 << 20


@dataclass
class Use:
    """What a process has."""

    memory: int  # Bytes of anonymous memory.
    files: int
    threads: int


def use_of(pid: int) -> Use:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Use(int(status["RssAnon"].split()[0]) * 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())),
               int(status["Threads"]))


def digest(checkpoint: Path) -> str:
    """Of all tensors' files."""
    total = hashlib.sha256()
    files = sorted(checkpoint.rglob("*.safetensors"))
    if not files:
        raise RuntimeError(f"{checkpoint} has no *.safetensors")
    for file in files:
        total.update(file.name.encode() + file.read_bytes())
    return total.hexdigest()


def newest(folder: Path) -> Path:
    return max((path for path in folder.glob("iter_*") if path.is_dir()), key=lambda path: path.name)


class Soak:
    def __init__(self, program: Path, folder: Path, steps: int, seed: int) -> None:
        self.program, self.folder, self.steps, self.random = program, folder, steps, random.Random(seed)
        self.config = write_config(program, folder, **SETTINGS, train_iters=steps)

    def start(self, name: str, *more: str) -> Ranks:
        folder = self.folder / name
        settings = [f"output_dir={folder}", f"save={self.folder / name}-saved", *more]
        return Ranks(self.program, self.config, SIZE, folder, settings=settings)

    def finish(self, run: Ranks) -> None:
        bad = [ended for ended in run.wait(3600) if ended.code != 0]
        if bad:
            raise RuntimeError("a run that nobody hurt failed: " + "\n".join(map(str, bad)))

    def uninterrupted(self) -> list[list[Use]]:
        """What each rank used, at the steps where it was looked at."""
        uses: list[list[Use]] = [[] for _ in range(SIZE)]
        with self.start("whole") as run:
            for step in range(self.steps // 4, self.steps - self.steps // 20, max(1, self.steps // 60)):
                run.wait_for(lambda step=step: iterations(self.folder / "whole") >= step, 600, f"step {step}")
                for rank in range(SIZE):
                    uses[rank].append(use_of(run.pid(rank)))
                if len(uses[0]) % 15 == 0:
                    tell(f"uninterrupted: step {step} of {self.steps}")
            self.finish(run)
        return uses

    def interrupted(self, kills: int) -> int:
        """How often the run was killed; metrics.jsonl of every part is kept in a folder of its own."""
        saved = f"load={self.folder / 'parts'}-saved"
        margin = self.steps // 20
        for part, step in enumerate(sorted(self.random.sample(range(margin, self.steps - margin), kills))):
            folder = self.folder / "parts"
            with self.start("parts", saved, f"output_dir={folder / str(part)}") as run:
                run.wait_for(lambda step=step, part=part: last_step(folder / str(part)) >= step, 600, f"step {step}")
                run.hurt(self.random.randrange(SIZE), signal.SIGKILL)
                tell(f"kill {part + 1} of {kills}: behind step {step} of {self.steps}")
                if any(ended.code is None for ended in run.wait(30)):
                    raise RuntimeError("a rank outlived the kill of the other by 30 s")
        with self.start("parts", saved, f"output_dir={self.folder / 'parts' / 'last'}") as run:
            self.finish(run)
        return kills


def last_step(output: Path) -> int:
    """The last iteration that metrics.jsonl tells of."""
    metrics = output / "metrics.jsonl"
    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
    return int(lines[-1].split('"iteration":')[1].split(",")[0]) if lines else 0


def thirds(uses: list[Use]) -> tuple[list[Use], list[Use]]:
    """The first and the last: what a save needs for a moment is in both."""
    size = max(1, len(uses) // 3)
    return uses[:size], uses[-size:]


def growth(uses: list[Use]) -> float:
    """Bytes: the median of the last third over that of the first."""
    first, last = (statistics.median(use.memory for use in part) for part in thirds(uses))
    return last - first


def counts_of(uses: list[Use]) -> tuple[tuple[int, int], tuple[int, int]]:
    """What files and threads most often were, in the first and in the last third."""
    first, last = ((statistics.mode(use.files for use in part), statistics.mode(use.threads for use in part))
                   for part in thirds(uses))
    return first, last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(options.build.resolve() / "bin" / "pretrain_gpt", Path(name), options.steps, options.seed)
        uses = soak.uninterrupted()
        kills = soak.interrupted(options.kills)
        whole, parts = (digest(newest(Path(f"{name}/{run}-saved"))) for run in ("whole", "parts"))
    most = max(growth(rank) for rank in uses)
    counts = [counts_of(rank) for rank in uses]
    flat = all(first == last for first, last in counts)
    shown = "; ".join(f"{first[0]} to {last[0]} files, {first[1]} to {last[1]} threads" for first, last in counts)
    reached = [
        print_row(f"soak: {options.steps} steps with {kills} kill-and-resume points", "hash as uninterrupted",
                  "the same" if whole == parts else f"{parts[:12]} instead of {whole[:12]}", whole == parts,
                  options.seed),
        print_row("soak: memory of a rank, last third over first third", "grows by less than 1 MiB",
                  f"{most / MEGABYTE:+.2f} MiB", most < MEGABYTE),
        print_row("soak: file descriptors and threads", "flat", shown, flat)]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
