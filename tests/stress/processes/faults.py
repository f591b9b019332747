"""Faults of real processes: whatever happens to one rank, all are gone within the bound, and the culprit is named.

    faults.py BUILD_DIR [--cases 150] [--seed 1]

Four ranks under DualPipe (two where messages are large). Per case chance picks the rank and the moment:

    kill, stop        SIGKILL, SIGSTOP from outside
    throw, bad_alloc, exit, killed    in the middle of a forward, a backward or an optimizer's step
                                      (tests/support/trainer_fault.cc)
    hang              there too: it computes for ever, and its watch goes on
    message           SIGKILL while a message of 64 MiB is on a slow link
    link down         the rank's link to all others loses everything from now on
    link slow         a tenth of its rate: nobody may fail, and the losses stay what they were

Seconds count from the fault (the signal, the link's end, or what trainer_fault.cc noted) to the end of the last rank,
the culprit included; nothing is added to the bounds. Kinds of links need network namespaces (tests/support/hosts.py).
Prints rows of `make stress`; exits with 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ranks import Ended, Ranks, iterations, write_config
from rows import print_row, print_skipped, tell

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
import hosts  # noqa: E402
from trainer_ranks import fault_variables  # noqa: E402

SIZE = 4
STEP_TIMEOUT = 6
DEATH_BOUND = 2.0
HANG_BOUND = STEP_TIMEOUT + 2.0
SHARES = {"kill": 30, "stop": 20, "hang": 15, "throw": 15, "bad_alloc": 10, "exit": 15, "killed": 15, "message": 10,
          "link down": 10, "link slow": 10}
LINKS = ("message", "link down", "link slow")
HANGS = ("stop", "hang", "link down")
PARTS = ("forward", "backward", "optimizer")  # Of a step, as trainer_fault.cc has them.
PEER_LOST, EXCEPTION, TIMEOUT = 12, 13, 14  # examples/pretrain_gpt/failures/exit_code.h
KILLED = -signal.SIGKILL
# How the culprit ends. One that is stopped is ended by another; one that hangs or is cut off has a watch that notices.
OWN_CODES = {"kill": KILLED, "killed": KILLED, "message": KILLED, "exit": 7, "throw": EXCEPTION, "bad_alloc": EXCEPTION,
             "stop": KILLED, "hang": TIMEOUT, "link down": TIMEOUT}
PROCESSES_OF_ITS_OWN = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
MESSAGE_BYTES = 64 << 20
LARGE = {"pipeline_model_parallel_size": 2, "num_layers": 2, "hidden_size": 256, "ffn_hidden_size": 8,
         "num_attention_heads": 1, "seq_length": 128, "micro_batch_size": 512, "global_batch_size": 2048}


@dataclass
class Outcome:
    kind: str
    rank: int
    is_gone: bool
    seconds: float  # From the fault to the end of the last rank.
    is_named: bool | None  # By every other rank; None where nobody is to be blamed.
    has_codes: bool  # Every rank ended with the code of the README.
    logs: str

    def is_in_time(self, slack: float) -> bool:
        return self.is_gone and self.seconds <= bound_of(self.kind) + slack

    def is_reached(self, slack: float) -> bool:
        return self.is_in_time(slack) and self.is_named is not False and self.has_codes


def bound_of(kind: str) -> float:
    return HANG_BOUND if kind in HANGS else DEATH_BOUND


def blamed(text: str) -> set[int]:
    """The ranks that an error message blames."""
    errors = "\n".join(line for line in text.splitlines() if "error: " in line)
    return {int(number) for number in re.findall(r"rank (\d+) (?:failed|is gone|was lost|does not answer)", errors)}


def judge(kind: str, rank: int, ended: list[Ended], began: float) -> Outcome:
    others = [one for one in ended if one.rank != rank]
    namers = ended if kind == "hang" else others  # One that hangs has a watch that knows it, too.
    code = TIMEOUT if kind in HANGS else PEER_LOST
    return Outcome(kind, rank, all(one.code is not None for one in ended), max(one.at for one in ended) - began,
                   all(blamed(one.text) == {rank} for one in namers),
                   ended[rank].code == OWN_CODES[kind] and all(one.code == code for one in others),
                   "\n".join(map(str, ended)))


class Faults:
    def __init__(self, build: Path, folder: Path, seed: int) -> None:
        self.program = build / "bin" / "pretrain_gpt"
        self.library = build / "tests" / "libtrainer_fault.so"
        for file in (self.program, self.library):
            if not file.exists():
                sys.exit(f"{file} must be built; for example cmake --build {build}")
        self.folder, self.random = folder, random.Random(seed)
        (folder / "small").mkdir()
        (folder / "large").mkdir()
        self.config = write_config(self.program, folder / "small", step_timeout=STEP_TIMEOUT)
        self.large = write_config(self.program, folder / "large", **LARGE, step_timeout=60)
        self.count = 0

    def next_folder(self) -> Path:
        self.count += 1
        return self.folder / f"case{self.count}"

    def start(self, **more: object) -> tuple[Ranks, Path]:
        output = self.next_folder()
        config = more.pop("config", self.config)
        size = more.pop("size", SIZE)
        return Ranks(self.program, config, size, output, settings=[f"output_dir={output}"], **more), output

    def from_outside(self, kind: str) -> Outcome:
        rank = self.random.randrange(SIZE)
        run, output = self.start()
        with run:
            wait_for_steps(run, output, 2)
            time.sleep(0.3 * self.random.random())
            began = run.hurt(rank, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            return judge(kind, rank, run.wait(bound_of(kind) + 10), began)

    def in_a_step(self, kind: str) -> Outcome:
        rank = self.random.randrange(SIZE)
        moment = self.folder / f"moment{self.count}"
        fault = fault_variables(self.library, "kill" if kind == "killed" else kind, self.random.choice(PARTS),
                                self.random.randrange(40, 160), moment)
        run, _ = self.start(environment=lambda one: fault if one == rank else {})
        with run:
            run.wait_for(moment.exists, 60, "the fault")
            ended = run.wait(bound_of(kind) + 10)
        return judge(kind, rank, ended, float(moment.read_text()))

    @contextmanager
    def on_hosts(self, size: int, config: Path) -> Iterator[tuple[Ranks, Path]]:
        """A run with a host per rank, which has a network and processes of its own: no rank can end another."""
        with hosts.Lan(size, rate="400mbit") as lan:
            run, output = self.start(config=config, size=size, address=lan.addresses[0],
                                     prefix=lambda rank: [*PROCESSES_OF_ITS_OWN, "ip", "netns", "exec", f"host{rank}"],
                                     environment=lambda rank: {"GLOO_SOCKET_IFNAME": hosts.INTERFACE,
                                                               "LOCAL_WORLD_SIZE": "1"})
            with run:
                yield run, output

    def in_a_message(self, kind: str) -> Outcome:
        rank = self.random.randrange(2)
        with self.on_hosts(2, self.large) as (run, _):
            wanted = received(rank) + self.random.randrange(MESSAGE_BYTES // 8, MESSAGE_BYTES // 2)
            run.wait_for(lambda: received(rank) >= wanted, 120, "a message")
            began = run.hurt(rank, signal.SIGKILL)
            return judge(kind, rank, run.wait(DEATH_BOUND + 10), began)

    def link_down(self, kind: str) -> Outcome:
        rank = self.random.randrange(SIZE)
        with self.on_hosts(SIZE, self.config) as (run, output):
            wait_for_steps(run, output, 2)
            subprocess.run(["ip", "link", "set", f"port{rank}", "down"], check=True)
            began = time.monotonic()
            return judge(kind, rank, run.wait(HANG_BOUND + 10), began)

    def link_slow(self, kind: str) -> Outcome:
        """Reached where it trains on as if nothing had happened: there is no culprit to name."""
        rank = self.random.randrange(SIZE)
        with self.on_hosts(SIZE, self.config) as (run, output):
            wait_for_steps(run, output, 2)
            subprocess.run(["tc", "-n", f"host{rank}", "qdisc", "change", "dev", hosts.INTERFACE, "root", "tbf",
                            "rate", "40mbit", "burst", "16kb", "latency", "500ms"], check=True)
            wait_for_steps(run, output, 6)
            logs = "\n".join(run.text(one) for one in range(SIZE))
        losses = losses_of(output)[:6]
        same = losses == self.undisturbed() and not blamed(logs)
        return Outcome(kind, rank, same, 0, None, same, f"{logs}\n{losses} instead of {self.undisturbed()}")

    def undisturbed(self) -> list[str]:
        output = self.folder / "undisturbed"
        if not output.exists():
            settings = [f"output_dir={output}", "train_iters=6"]
            with Ranks(self.program, self.config, SIZE, output, settings=settings) as run:
                run.wait(60)
        return losses_of(output)

    def run(self, kind: str) -> Outcome:
        runs = {"kill": self.from_outside, "stop": self.from_outside, "message": self.in_a_message,
                "link down": self.link_down, "link slow": self.link_slow}
        return runs.get(kind, self.in_a_step)(kind)


def wait_for_steps(run: Ranks, output: Path, count: int) -> None:
    run.wait_for(lambda: iterations(output) >= count, 60, f"step {count}")


def received(rank: int) -> int:
    """Bytes that a host has sent, as its port of the switch counts them."""
    shown = subprocess.run(["ip", "-s", "-j", "link", "show", "dev", f"port{rank}"], check=True, capture_output=True)
    return json.loads(shown.stdout)[0]["stats64"]["rx"]["bytes"]


def losses_of(output: Path) -> list[str]:
    return [re.search(r'"lm_loss":[^,]+', line).group() for line in (output / "metrics.jsonl").read_text().splitlines()]


def cases(count: int, seed: int, with_links: bool) -> list[str]:
    """`count` kinds in the proportions of SHARES, at least one of each."""
    shares = {kind: share for kind, share in SHARES.items()
              if with_links or kind not in LINKS}
    kinds = [kind for kind, share in shares.items() for _ in range(max(1, round(share * count / sum(shares.values()))))]
    random.Random(seed).shuffle(kinds)
    return kinds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slack", type=float, default=0.0, help="seconds more than the bounds, for a busy machine")
    parser.add_argument("--only", choices=SHARES, help="one kind, --cases times")
    options = parser.parse_args()
    why_no_links = hosts.why_not()
    if why_no_links is None:
        hosts.enter()
    kinds = [options.only] * options.cases if options.only else cases(options.cases, options.seed, not why_no_links)
    outcomes = []
    with tempfile.TemporaryDirectory() as name:
        faults = Faults(options.build.resolve(), Path(name), options.seed)
        for kind in kinds:
            outcomes.append(faults.run(kind))
            one = outcomes[-1]
            tell(f"{len(outcomes)}/{len(kinds)} {kind} of rank {one.rank}: {one.seconds:.2f} s")
            if not one.is_reached(options.slack):
                tell(one.logs)
    reached = report(outcomes, options.seed, options.slack)
    if why_no_links is not None:
        reached &= print_skipped(f"faults over real processes: {', '.join(LINKS)}", "as the others", why_no_links)
    return 0 if reached else 1


def report(outcomes: list[Outcome], seed: int, slack: float) -> bool:
    count = len(outcomes)
    late = Counter(one.kind for one in outcomes if not one.is_in_time(slack))
    wrong = Counter(one.kind for one in outcomes if not one.has_codes)
    to_name = [one for one in outcomes if one.is_named is not None]
    named = sum(bool(one.is_named) for one in to_name)
    without = [one for one in outcomes if one.is_named is None]
    quiet = sum(one.is_reached(slack) for one in without)
    unnamed = Counter(one.kind for one in to_name if not one.is_named)
    deaths = [one.seconds for one in outcomes if one.kind not in HANGS]
    hangs = [one.seconds for one in outcomes if one.kind in HANGS]
    reached = [
        print_row(f"faults over real processes, {count}", f"no survivor, all gone {DEATH_BOUND:g} s after a death, "
                  f"{HANG_BOUND:g} s after a hang (step_timeout {STEP_TIMEOUT} s and {HANG_BOUND - STEP_TIMEOUT:g} s)"
                  f"{f', each with {slack:g} s more' if slack else ''}",
                  f"{count - late.total()} in time, the last after {max(deaths, default=0):.2f} and "
                  f"{max(hangs, default=0):.2f} s{listed('; late', late)}", not late, seed),
        print_row("faults over real processes, culprit named by every other rank", "99 %",
                  f"{named} of {len(to_name)} that have one{listed('; not', unnamed)}; "
                  f"{quiet} of {len(without)} with a slow link trained on and named nobody",
                  named >= 0.99 * len(to_name) and quiet == len(without), seed),
        print_row("faults over real processes, exit codes of all ranks", "as documented, all",
                  f"{count - wrong.total()} of {count}{listed('; others', wrong)}", not wrong, seed)]
    return all(reached)


def listed(title: str, kinds: Counter[str]) -> str:
    return f"{title}: " + ", ".join(f"{number} {kind}" for kind, number in kinds.items()) if kinds else ""


if __name__ == "__main__":
    sys.exit(main())
