"""A save that is killed, or whose disk fails, at each of its system calls: the old or the new checkpoint loads.

    saves.py BUILD_DIR [--every 1]

Saves of four kinds: the first into an empty folder; the third, over which an older one is removed; the same while
training goes on; the same by two ranks, each of which is hit. strace makes one call that changes a file or folder of
the checkpoint fail with ENOSPC or EIO, or kills the rank there, call by call. Then

  * all ranks leave with the code of a checkpoint, 16, where an error has hit the save; one in removing an old
    checkpoint ends nothing; a killed rank's peer leaves with 12;
  * of what strace saw renamed, the two newest checkpoints are there, whole by their hashes, and nothing else has
    their name;
  * a run without faults loads the newest of them, or begins where there is none, and gives the losses and the last
    checkpoint of a run that nobody disturbed, bit for bit.

A run without faults shows what is synced: each file and its folder before the rename, the folder of both after it. The
whole form also has a row for how long asynchronous saves stall training.
Prints rows of `make stress`; exits with 1 where one is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import strace
from ranks import Ended, Ranks, write_config
from rows import print_row, print_skipped, tell

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from ports import free_port  # noqa: E402

STEPS, INTERVAL = 6, 2
KEPT = 2
START, PEER_LOST, CHECKPOINT = 11, 12, 16  # examples/pretrain_gpt/failures/exit_code.h
WORKERS = 2
TRIES = 3
SETTINGS = {"pipeline_schedule": "builtin_1f1b", "global_batch_size": 2, "seq_length": 16, "hidden_size": 16,
            "vocab_size": 256, "save_interval": INTERVAL, "train_iters": STEPS}


@dataclass(frozen=True)
class Kind:
    name: str
    size: int = 1
    settings: tuple[str, ...] = ()
    before: tuple[int, ...] = (2, 4)  # Checkpoints that are there.

    @property
    def saved(self) -> int:
        return max(self.before, default=0) + INTERVAL


KINDS = (Kind("the first save", before=()), Kind("the third save"),
         Kind("an asynchronous save", settings=("async_save=true",)), Kind("a save of two ranks", size=2))


@dataclass(frozen=True)
class Case:
    kind: Kind
    rank: int
    fault: str
    place: strace.Place

    def __str__(self) -> str:
        return f"{self.kind.name}, {self.fault} at {self.place.name} {self.place.number} of rank {self.rank}"


@dataclass(frozen=True)
class Outcome:
    is_hit: bool
    problem: str = ""


class Saves:
    def __init__(self, program: Path, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.configs, self.losses, self.hashes = {}, {}, {}
        self.ports: set[int] = set()
        self.lock = threading.Lock()
        for size in sorted({kind.size for kind in KINDS}):
            self.prepare(size)

    def prepare(self, size: int) -> None:
        """The run that nobody disturbs, whose checkpoints are those that others begin with."""
        whole = self.folder / f"whole{size}"
        whole.mkdir()
        self.configs[size] = write_config(self.program, whole, **SETTINGS, num_layers=size,
                                          pipeline_model_parallel_size=size)
        self.train_unhurt(size, whole / "run", f"save={whole / 'saved'}", f"checkpoints_to_keep={STEPS}")
        self.losses[size] = losses_of(whole / "run")
        self.hashes[size] = hashes_of(whole / "saved" / name_of(STEPS))

    def port(self) -> int:
        """Not one that a run at the same time may be about to take."""
        with self.lock:
            while (port := free_port()) in self.ports:
                pass
            self.ports.add(port)
            return port

    def train(self, size: int, output: Path, *settings: str,
              prefixes: dict[int, list[str]] | None = None) -> list[Ended]:
        """Again where another program has taken the port since it was found free: nothing is saved by then."""
        for _ in range(TRIES):
            with Ranks(self.program, self.configs[size], size, output, settings=[f"output_dir={output}", *settings],
                       prefix=lambda rank: (prefixes or {}).get(rank, []), port=self.port()) as run:
                ended = run.wait(180)
            if not any(one.code == START and "[MASTER_PORT]" in one.text for one in ended):
                break
        return ended

    def train_unhurt(self, *arguments: object, **more: object) -> list[Ended]:
        ended = self.train(*arguments, **more)
        if any(one.code != 0 for one in ended):
            raise RuntimeError("a run that nobody hurt failed: " + "\n".join(map(str, ended)))
        return ended

    def stalled_shares(self) -> list[float]:
        """Of asynchronous saves of two ranks: for how many % of their length training waited, as the log has it."""
        log = self.train_unhurt(2, self.folder / "stalled", f"save={self.folder / 'stalled' / 'saved'}",
                                "async_save=true", "save_interval=3", "hidden_size=256", "train_iters=18")[0].text
        return [float(share) for share in re.findall(r"training waited [\d.]+ ms \(([\d.]+) %\)", log)]

    def begin(self, kind: Kind, case: Path) -> tuple[Path, list[str]]:
        """The folder of checkpoints as it is before the save, and the settings of a run that makes it."""
        saved = case / "saved"
        for name in map(name_of, kind.before):
            shutil.copytree(self.folder / f"whole{kind.size}" / "saved" / name, saved / name)
        return saved, [f"save={saved}", f"load={saved}", f"train_iters={kind.saved}", *kind.settings]

    def calls_of(self, kind: Kind) -> list[list[strace.Call]]:
        """Of each rank, in a run without faults."""
        case = self.folder / f"calls{KINDS.index(kind)}"
        saved, settings = self.begin(kind, case)
        logs = [case / f"calls{rank}" for rank in range(kind.size)]
        self.train_unhurt(kind.size, case / "counted", *settings,
                          prefixes={rank: strace.watching(log, paths_of(saved)) for rank, log in enumerate(logs)})
        return [strace.read_calls(log) for log in logs]

    def disturb(self, number: int, case: Case) -> Outcome:
        """Again where no call was hit."""
        for _ in range(TRIES):
            outcome = self.disturb_once(number, case)
            if outcome.is_hit or outcome.problem:
                break
        return outcome

    def disturb_once(self, number: int, case: Case) -> Outcome:
        folder = self.folder / f"case{number}"
        saved, settings = self.begin(case.kind, folder)
        log = folder / "calls"
        prefix = strace.hurting(log, paths_of(saved), case.fault, case.place)
        folder.mkdir(exist_ok=True)
        ended = self.train(case.kind.size, folder / "disturbed", *settings, prefixes={case.rank: prefix})
        calls = strace.read_calls(log)
        is_hit = strace.was_killed(log) if case.fault == "kill" else any(call.is_injected for call in calls)
        problem = (complaint_of_codes(case, ended, calls) if is_hit else "") or self.complaint(case, folder, calls)
        shutil.rmtree(folder)
        return Outcome(is_hit, problem and f"{problem}\n" + "\n".join(map(str, ended)))

    def complaint(self, case: Case, folder: Path, calls: Sequence[strace.Call]) -> str:
        """What is wrong with the checkpoints that the save has left, and with what a run makes of them."""
        kind, saved = case.kind, folder / "saved"
        there = checkpoints_in(saved)
        whole = [iteration for iteration in there if is_whole(saved / name_of(iteration))]
        wanted = sorted({*kind.before, *renamed(calls)})[-KEPT:] if case.rank == 0 else list(kind.before)
        if whole != there or not set(wanted) <= set(whole) <= {*kind.before, kind.saved}:
            return f"checkpoints {there}, whole {whole}, where {wanted} have to be"
        ended = self.train(kind.size, folder / "resumed", f"save={saved}", f"load={saved}", *kind.settings)
        text = "\n".join(map(str, ended))
        if any(one.code != 0 for one in ended):
            return "the run that went on failed:\n" + text
        loaded = re.findall(r"loaded .*: iteration (\d+),", text)
        first, losses = max(whole, default=0), losses_of(folder / "resumed")
        if loaded != ([str(first)] if whole else []):
            return f"{loaded} was loaded instead of {first}:\n{text}"
        if losses != {step: loss for step, loss in self.losses[kind.size].items() if step > first}:
            return f"the losses are {losses} instead of {self.losses[kind.size]}"
        if hashes_of(saved / name_of(STEPS)) != self.hashes[kind.size]:
            return "the last checkpoint is another"
        return ""


def name_of(iteration: int) -> str:
    return f"iter_{iteration:07}"


def paths_of(saved: Path) -> list[Path]:
    """All that a save may make, rename and remove, which strace wants to know beforehand."""
    folders = [saved / f"{name_of(iteration)}{ending}" for iteration in range(INTERVAL, STEPS + 1, INTERVAL)
               for ending in ("", ".tmp", ".removed")]
    files = ("rank_00000.safetensors", "rank_00001.safetensors", "manifest.json", "manifest.json.sha256")
    return [saved, saved.parent, *folders, *(folder / file for folder in folders for file in files)]


def checkpoints_in(saved: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in saved.glob("iter_*") if re.fullmatch(r"iter_\d{7}", path.name))


def is_whole(checkpoint: Path) -> bool:
    """By its hashes, without the trainer."""
    try:
        text = (checkpoint / "manifest.json").read_bytes()
        line = (checkpoint / "manifest.json.sha256").read_text()
        files = {file["name"]: file["sha256"] for file in json.loads(text)["files"]}
        return line == f"{hashlib.sha256(text).hexdigest()}  manifest.json\n" and bool(files) and all(
            hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError):
        return False


def hashes_of(checkpoint: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in checkpoint.glob("*.safetensors")}


def losses_of(output: Path) -> dict[int, str]:
    metrics = output / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return {json.loads(line)["iteration"]: re.search(r'"lm_loss":[^,]+', line).group() for line in lines}


def renaming(call: strace.Call) -> re.Match[str] | None:
    """The rename that makes a checkpoint."""
    return re.match(r'rename\w*\(.*"(?P<to>[^"]*/iter_(?P<iteration>\d+))\.tmp".*"(?P=to)"', call.text)


def renamed(calls: Sequence[strace.Call]) -> list[int]:
    return [int(match["iteration"]) for call in calls if call.is_done and (match := renaming(call))]


def removes(calls: Sequence[strace.Call]) -> bool:
    """Whether the last of these calls belongs to the removal of an old checkpoint."""
    return any(".removed" in call.text for call in calls)


def complaint_of_codes(case: Case, ended: Sequence[Ended], calls: Sequence[strace.Call]) -> str:
    codes = [one.code for one in ended]
    if case.fault == "kill":
        wanted = [-signal.SIGKILL if one.rank == case.rank else PEER_LOST for one in ended]
    else:
        hit = next(place for place, call in enumerate(calls) if call.is_injected)
        wanted = [0 if removes(calls[:hit + 1]) else CHECKPOINT] * len(ended)
    return "" if codes == wanted else f"exit codes {codes} instead of {wanted}"


def unsynced(calls: Sequence[strace.Call]) -> list[str]:
    """What a rank wrote and did not sync where it has to."""
    missing = []
    for place, call in enumerate(calls):
        if (path := written(call)) and not is_synced(calls[place + 1:until_rename(calls, place)], path):
            missing.append(f"{path} before it is renamed")
        if match := renaming(call):
            before, behind = calls[:place], calls[place + 1:]
            last = max(index for index, other in enumerate(before) if written(other))
            if not is_synced(before[last:], match["to"] + ".tmp"):
                missing.append(f"{match['to']}.tmp before it is renamed")
            behind = behind[:next((index for index in range(len(behind)) if removes(behind[index:index + 1])), None)]
            if not is_synced(behind, str(Path(match["to"]).parent)):
                missing.append(f"the folder of {match['to']} after it was renamed")
    return missing


def written(call: strace.Call) -> str | None:
    match = re.match(r"p?write(?:v|64)?\(\d+<([^>]+)>", call.text)
    return match[1] if match and "/iter_" in match[1] else None


def until_rename(calls: Sequence[strace.Call], place: int) -> int:
    return next((index for index in range(place, len(calls)) if renaming(calls[index])), len(calls))


def is_synced(calls: Sequence[strace.Call], path: str) -> bool:
    return any(re.match(rf"f(data)?sync\(\d+<{re.escape(path)}>\) *= 0", call.text) for call in calls)


def cases_of(kind: Kind, calls: Sequence[Sequence[strace.Call]], every: int) -> list[Case]:
    """Each fault begins at another call, so that fewer of each still are at more of them together."""
    return [Case(kind, rank, fault, place) for rank, mine in enumerate(calls)
            for number, fault in enumerate(strace.FAULTS)
            for place in strace.places_of(mine)[number * every // len(strace.FAULTS)::every]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--every", type=int, default=1, help="of the calls, each so-manieth")
    options = parser.parse_args()
    what, wanted = "kill -9, ENOSPC and EIO at each system call of saves", "all load the newest whole one, to the bit"
    if (reason := strace.why_not()) is not None:
        print_skipped(what, wanted, reason)
        return 1
    with tempfile.TemporaryDirectory() as name:
        saves = Saves(options.build.resolve() / "bin" / "pretrain_gpt", Path(name).resolve())
        stalled = saves.stalled_shares() if options.every == 1 else None
        calls = {kind: saves.calls_of(kind) for kind in KINDS}
        cases = [case for kind in KINDS for case in cases_of(kind, calls[kind], options.every)]
        outcomes = try_all(saves, cases)
    bad = sum(bool(outcome.problem) for outcome in outcomes)
    unhit = sum(not outcome.is_hit for outcome in outcomes)
    if options.every > 1:
        what += f", one in {options.every}"
    missing = [text for of_ranks in calls.values() for mine in of_ranks for text in unsynced(mine)]
    tell("\n".join(missing))
    renames = sum(len(renamed(mine)) for of_ranks in calls.values() for mine in of_ranks)
    reached = [
        print_row(what, f"{wanted}; all errors of a save end the run with code {CHECKPOINT}",
                  f"{len(outcomes) - bad} of {len(outcomes)} faults" + (f"; {unhit} hit no call" if unhit else ""),
                  bool(outcomes) and not bad and not unhit),
        print_row("what a save syncs", "each file and its folder before the rename, the folder of both after it",
                  f"{renames} saves without a gap" if not missing else f"not {', '.join(missing[:3])}",
                  renames == len(KINDS) and not missing)]
    if stalled is not None:
        share = statistics.median(stalled) if stalled else 100.0
        reached.append(print_row("what an asynchronous save stalls training, median of 6",
                                 "under 10 % of its length", f"{share:.1f} %", share < 10 and len(stalled) == 6))
    return 0 if all(reached) else 1


def try_all(saves: Saves, cases: Sequence[Case]) -> list[Outcome]:
    outcomes = []
    with ThreadPoolExecutor(WORKERS) as pool:
        for case, outcome in zip(cases, pool.map(saves.disturb, range(len(cases)), cases)):
            outcomes.append(outcome)
            if not outcome.is_hit:
                tell(f"{case}: no call was hit")
            if outcome.problem:
                tell(f"{case}: {outcome.problem}")
            if len(outcomes) % 20 == 0 or len(outcomes) == len(cases):
                tell(f"{len(outcomes)}/{len(cases)} faults")
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
