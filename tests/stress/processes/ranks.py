"""One run of the trainer as processes that a test can hurt: a process per rank, its log in a file, and when each ended.

Each rank has a session of its own, so that what a rank's prefix (strace) has started ends with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from ports import free_port  # noqa: E402
from trainer_ranks import prepare_data, rank_variables, train_command  # noqa: E402

POLL_SECONDS = 0.005


@dataclass
class Ended:
    """How a rank ended. `at` is time.monotonic(); `code` is negative for a signal, None where it was still there."""

    rank: int
    code: int | None
    at: float
    text: str

    def __str__(self) -> str:
        return f"rank {self.rank}, code {self.code}:\n{self.text}"


class Ranks:
    """The processes of one run; what is left of them is killed at the end of the `with` block.

    `settings` are key=value for all ranks, `per_rank` more of them for one; `environment` gives a rank variables.
    `prefix` are words before the program, strace say. `address` and `port` are where rank 0 hosts the store.
    """

    def __init__(self, program: Path, config: Path, size: int, folder: Path, *, settings: Sequence[str] = (),
                 per_rank: Mapping[int, Sequence[str]] | None = None,
                 environment: Callable[[int], Mapping[str, str]] = lambda rank: {},
                 prefix: Callable[[int], Sequence[str]] = lambda rank: (), address: str = "127.0.0.1",
                 port: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.size = size
        self.logs = [folder / f"rank{rank}.log" for rank in range(size)]
        self.processes = []
        port = port or free_port()
        for rank in range(size):
            command = train_command(program, config, [*settings, *(per_rank or {}).get(rank, ())])
            variables = rank_variables(rank, size, port, address) | dict(environment(rank))
            with self.logs[rank].open("wb") as log:
                self.processes.append(subprocess.Popen([*prefix(rank), *command], stdin=subprocess.DEVNULL, stdout=log,
                                                       stderr=subprocess.STDOUT, env=variables, start_new_session=True))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:  # Not waited for yet, so that its number is nobody else's.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def pid(self, rank: int) -> int:
        return self.processes[rank].pid

    def hurt(self, rank: int, number: signal.Signals) -> float:
        """Sends the signal; when, by time.monotonic()."""
        os.kill(self.pid(rank), number)
        return time.monotonic()

    def text(self, rank: int) -> str:
        return self.logs[rank].read_text(errors="replace")

    def wait_for(self, is_there: Callable[[], bool], seconds: float, what: str) -> None:
        """Until it is there; RuntimeError with every log where a rank ends first or the time is over."""
        end = time.monotonic() + seconds
        while not is_there():
            ended = [rank for rank in range(self.size) if self.processes[rank].poll() is not None]
            if (ended and not is_there()) or time.monotonic() > end:
                logs = "\n".join(f"--- rank {rank}\n{self.text(rank)}" for rank in range(self.size))
                raise RuntimeError(f"{what} did not come; ranks that had ended: {ended}\n{logs}")
            time.sleep(POLL_SECONDS)

    def wait(self, seconds: float) -> list[Ended]:
        """By rank, at the latest after that time; those that are then still there have code None, and what their
        threads wait for goes to standard error."""
        end = time.monotonic() + seconds
        codes: dict[int, tuple[int, float]] = {}
        while len(codes) < self.size and time.monotonic() < end:
            for rank, process in enumerate(self.processes):
                if rank not in codes and process.poll() is not None:
                    codes[rank] = (process.returncode, time.monotonic())
            time.sleep(POLL_SECONDS)
        now = time.monotonic()
        for rank in set(range(self.size)) - codes.keys():
            print(f"rank {rank} is there after {seconds:g} s:\n{where_it_is(self.pid(rank))}", file=sys.stderr)
        return [Ended(rank, *codes.get(rank, (None, now)), self.text(rank)) for rank in range(self.size)]


def where_it_is(group: int) -> str:
    """Each thread of a process group: its name, and where in the kernel it waits, as far as the kernel tells."""
    return "\n".join(told_of(task) for task in sorted(Path("/proc").glob("[0-9]*/task/[0-9]*"))
                     if is_of_group(int(task.parts[2]), group))


def is_of_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except ProcessLookupError:
        return False


def told_of(task: Path) -> str:
    told = [f"  {task.parts[2]}/{task.name}"]
    for name in ("comm", "wchan", "syscall", "stack"):
        try:
            told.append((task / name).read_text().strip().replace("\n", "\n      "))
        except OSError as error:
            told.append(f"({name}: {error.strerror})")
    return "\n    ".join(told)


def iterations(output: Path) -> int:
    """How many steps metrics.jsonl tells of."""
    metrics = output / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def write_config(program: Path, folder: Path, **settings: object) -> Path:
    """A tiny model over four ranks under DualPipe, 16 micro-batches; `settings` are over that."""
    values: dict[str, object] = {
        "num_layers": 4, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 32, "micro_batch_size": 1,
        "global_batch_size": 16, "pipeline_model_parallel_size": 4, "pipeline_schedule": "dualpipe",
        "train_iters": 1000000, "lr": 0.003, "lr_warmup_iters": 2, "lr_decay_iters": 1000000, "log_interval": 1000000,
        "timeout_s": 60, "data_path": prepare_data(program, folder, functions=4000)}
    path = folder / "gpt.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in (values | settings).items()))
    return path
