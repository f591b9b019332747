"""Programs under strace: the calls that change given files, and a fault at one of them.

strace counts the calls of a fault by thread and by name, and with -P only those on given paths: a Place is just that.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CALLS = ("write", "pwrite64", "writev", "fsync", "fdatasync", "rename", "renameat", "renameat2", "mkdir", "mkdirat",
         "ftruncate", "rmdir", "unlink", "unlinkat")  # Opens are left out: loading has some too, on another thread.
FAULTS = {"kill": "signal=KILL", "ENOSPC": "error=ENOSPC", "EIO": "error=EIO"}
_BASE = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={','.join(CALLS)}"]


@dataclass(frozen=True)
class Call:
    """As strace shows it: `rename("/a", "/b") = 0`."""

    thread: str
    text: str

    @property
    def name(self) -> str:
        return self.text.split("(", 1)[0]

    @property
    def is_done(self) -> bool:
        return re.search(r"\) *= \d", self.text) is not None

    @property
    def is_injected(self) -> bool:
        return "(INJECTED)" in self.text


@dataclass(frozen=True)
class Place:
    """The `number`-th call of that name of a thread, from 1."""

    name: str
    number: int


def why_not() -> str | None:
    """Why this machine has no strace for us, in one sentence; None where it has."""
    if shutil.which("strace") is None:
        return "needs the program `strace`, which is not installed (package strace)"
    run = subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True)
    if run.returncode == 0:
        return None
    return f"this machine does not allow strace ({' '.join(run.stderr.split())}); needs CAP_SYS_PTRACE"


def watching(log: Path, paths: Sequence[Path]) -> list[str]:
    """What goes before a command whose calls on these very paths go into `log`."""
    return [*_BASE, "-e", "signal=none", "--seccomp-bpf", "-o", str(log), *_only(paths)]


def hurting(log: Path, paths: Sequence[Path], fault: str, place: Place) -> list[str]:
    """The same with a fault at every thread's call of that name and number. A signal is lost under --seccomp-bpf."""
    quick = [] if fault == "kill" else ["--seccomp-bpf"]
    return [*_BASE, "-e", f"inject={place.name}:{FAULTS[fault]}:when={place.number}", *quick, "-o", str(log),
            *_only(paths)]


def _only(paths: Sequence[Path]) -> list[str]:
    return [word for path in paths for word in ("-P", str(path))]


def read_calls(log: Path) -> list[Call]:
    """In the order in which they began; one that another thread's cut in two is put together."""
    calls: list[Call] = []
    begun: dict[str, int] = {}
    for line in log.read_text(errors="replace").splitlines():
        thread, text = line.split(maxsplit=1)
        if text.startswith(("+++", "---")):
            continue
        if text.startswith("<..."):
            place = begun.pop(thread)
            calls[place] = Call(thread, calls[place].text + text.split("resumed>", 1)[1])
            continue
        if text.endswith("<unfinished ...>"):
            begun[thread] = len(calls)
        calls.append(Call(thread, text.removesuffix("<unfinished ...>")))
    return calls


def was_killed(log: Path) -> bool:
    return "+++ killed by SIGKILL +++" in log.read_text(errors="replace")


def places_of(calls: Sequence[Call]) -> list[Place]:
    """Where a fault can be put, in the order of the calls."""
    count: Counter[tuple[str, str]] = Counter()
    places: dict[Place, None] = {}
    for call in calls:
        count[call.thread, call.name] += 1
        places[Place(call.name, count[call.thread, call.name])] = None
    return list(places)
