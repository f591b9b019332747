"""The engine beside its peers, on the same sleeping compute, in turns: PyTorch's schedules, the reference, bare loops.

    bench_peers [--json] [--rounds N] [--cpu-rounds N] [--bounded] [--reference DIR]

Exits with 0 where every bound is reached, 1 where one is missed, 2 where nothing was measured; tests/bench/README.md.
"""

import argparse
import contextlib
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "executor")]
from bounds import bound, missed  # noqa: E402
from engine_figures import MICROBATCHES, PACE_MS, RANKS, SIZES, Samples, step_of, without_compute  # noqa: E402
from memory import make_room  # noqa: E402
from program import leave_with, parser_of, report_and_judge  # noqa: E402
from rank_group import Failed, RankGroup  # noqa: E402

# What each peer of ours is a peer of; and the ideal of both.
TORCH = {"torch_dualpipev": "dualpipev", "torch_1f1b": "1f1b", "torch_zb1p": "zb1p", "torch_zbv": "zbv"}
REFERENCE = {"reference_dualpipe": "dualpipe", "reference_dualpipev": "dualpipev"}
OURS = ("dualpipe", "dualpipev", "1f1b", "zb1p")
BUILTIN, BUILTIN_SIZE = "builtin_1f1b", 1 << 10  # The trainer's own, with messages of one size.
BARE = ("early", "waiting")
BARE_SCHEDULES = ("dualpipe", "dualpipev")
# Makespan over ideal of the reference's DualPipe, measured elsewhere on two cores: the bound where it is not here.
PUBLISHED = {1 << 10: 1.036, 1 << 20: 1.09, 4 << 20: 1.17}
# Of what a peer loses over the ideal, how much we may.
SHARE_OF_REFERENCE = {1 << 10: 0.5, 1 << 20: 0.5, 4 << 20: 0.6}
SHARE_OF_TORCH = {1 << 10: 0.5, 1 << 20: 0.6, 4 << 20: 0.7}
OVER_BARE, OVER_TORCH, OVER_TORCH_1F1B = 1.2, 1 / 3, 1.02
OVER_TORCH_KIND = "torch_dualpipev"  # What CPU per action is compared with.
PING = {"kind": "ping", "exchanges": 500, "bytes": 1 << 10}
PYTHON_STEPS = 2  # In a row, without compute.


# No bound looks at them, so their steps take one turn.
SHOWN_ALONE = {"zb1p", "torch_zb1p", "torch_zbv", "reference_dualpipev",
               *(f"bare {kind} {schedule}" for kind in BARE for schedule in BARE_SCHEDULES)}


class Groups:
    """Ours and theirs. Those that are not asked are stopped."""

    def __init__(self, options, stack):
        peers = [options.python, HERE / "torch_rank.py"]
        reference = ["--reference", options.reference] if options.reference else []
        start = lambda name, command: stack.enter_context(RankGroup(name, command, RANKS))
        self.engine = start("the engine", [options.engine])
        self.bare = start("the bare loops", [options.bare])
        self.python = start("the peers in Python", peers + reference)
        self.yielding = start("the bare loops that yield", [options.bare, "yield"])  # Their Gloo threads, as ours.
        self.all = [self.engine, self.bare, self.yielding, self.python]
        self.builtin = None  # A build without the trainer.
        if pathlib.Path(options.builtin).exists():
            self.builtin = start("the trainer's own 1F1B", [options.builtin, MICROBATCHES])
            self.all.append(self.builtin)
        for group in self.all:
            group.wait_until_up()

    def real_time(self, on):
        return all([group.real_time(on) for group in self.all])


class Peer:
    """One kind of step of one group, and what it took so far."""

    def __init__(self, name, group, request, ideal_ms=None):
        self.name, self.group, self.request, self.ideal_ms = name, group, request, ideal_ms
        self.samples = Samples()

    def measure(self):
        self.samples.add(self.group.measure(self.request), self.ideal_ms)


def take_turns(peers, rounds, once=()):
    for peer in peers:
        peer.group.prepare(peer.request)
    for turn in range(rounds):
        for peer in peers:
            if turn == 0 or peer.name not in once:
                peer.measure()
    return {peer.name: peer.samples for peer in peers}


def ideal_of(groups, schedule, options):
    return groups.engine.prepare(step_of(schedule, 1 << 10, options.pace, ideal_only=True))[0]["ideal_ms"]


def ideal_of_torch(groups, kind, options):
    """Of an order that only torch has."""
    order = groups.python.prepare({**step_of("", 1 << 10, options.pace), "kind": kind, "order": True})[0]["order"]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / f"{kind}.csv"
        file.write_text("".join(",".join(row) + "\n" for row in order))
        return ideal_of(groups, str(file), options)


def ideals(groups, options):
    known = {schedule: ideal_of(groups, schedule, options) for schedule in OURS}
    return known | {"zbv": ideal_of_torch(groups, "torch_zbv", options)}


def is_wanted(name, options):
    return not (options.bounded and name in SHOWN_ALONE)


def stepping(groups, ideal_ms, size, options):
    request = lambda schedule, **more: step_of(schedule, size, options.pace, **more)
    peers = [Peer(schedule, groups.engine, request(schedule)) for schedule in OURS]
    if groups.builtin and size == BUILTIN_SIZE:
        peers.append(Peer(BUILTIN, groups.builtin, request("1f1b"), ideal_ms["1f1b"]))
    theirs = TORCH | (REFERENCE if options.has_reference else {})
    peers += [Peer(kind, groups.python, request(schedule, kind=kind), ideal_ms[schedule])
              for kind, schedule in theirs.items()]
    peers += [Peer(f"bare {kind} {schedule}", groups.bare, request(schedule, kind=kind), ideal_ms[schedule])
              for kind in BARE for schedule in BARE_SCHEDULES]
    return [peer for peer in peers if is_wanted(peer.name, options)]


def computing_nothing(groups, options):
    """What is compared stands side by side: a bare loop and the engine, the engine and PyTorch."""
    request = lambda schedule: without_compute(schedule, options.steps)
    early = lambda schedule: {**request(schedule), "kind": "early"}
    bare = lambda schedule: Peer(f"bare early {schedule}", groups.bare, early(schedule))
    yielding = lambda schedule: Peer(f"bare yielding {schedule}", groups.yielding, early(schedule))
    ours = lambda schedule: Peer(schedule, groups.engine, request(schedule))
    theirs = lambda kind: Peer(kind, groups.python, {**without_compute(TORCH[kind], PYTHON_STEPS), "kind": kind})
    peers = [yielding("dualpipe"), bare("dualpipe"), ours("dualpipe"), theirs(OVER_TORCH_KIND), ours("dualpipev"),
             bare("dualpipev"), yielding("dualpipev")]
    others = [Peer("ping", groups.bare, PING), *(theirs(kind) for kind in TORCH if kind != OVER_TORCH_KIND)]
    return peers + ([] if options.bounded else others)


def require_torch(python):
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0:
        raise Failed(f"the peers in Python need torch, which {python} does not have")


def measure(options):
    require_torch(options.python)
    with contextlib.ExitStack() as stack:
        groups = Groups(options, stack)
        ideal_ms = ideals(groups, options)
        cpu = take_turns(computing_nothing(groups, options), options.cpu_rounds)
        make_room()
        real_time = groups.real_time(True)
        steps = {size: take_turns(stepping(groups, ideal_ms, size, options), options.rounds, SHOWN_ALONE)
                 for size in options.sizes}
    return {"real_time": real_time, "ideal_ms": ideal_ms,
            "steps": {size: {name: samples.figures() for name, samples in by_name.items()}
                      for size, by_name in steps.items()},
            "cpu": {name: samples.figures() for name, samples in cpu.items()}}


def share(ours, theirs, part, what, of):
    return bound(ours, 1 + part * (theirs - 1), what, f"{part}x of what {of} loses, {theirs:.3f}")


def judge_steps(steps, size, has_reference):
    label, ratio = SIZES.get(size, f"{size} bytes"), lambda name: steps[name]["ratio"]
    of = "the reference" if has_reference else "the reference, as published,"
    reference = ratio("reference_dualpipe") if has_reference else PUBLISHED.get(size, min(PUBLISHED.values()))
    like_torch = [name for name in ("1f1b", BUILTIN) if name in steps]
    no_builtin = size == BUILTIN_SIZE and BUILTIN not in steps
    return [share(ratio("dualpipe"), reference, SHARE_OF_REFERENCE.get(size, 0.5),
                  f"dualpipe, {label}: makespan / ideal", of),
            share(ratio("dualpipev"), ratio("torch_dualpipev"), SHARE_OF_TORCH.get(size, 0.5),
                  f"dualpipev, {label}: makespan / ideal", "PyTorch's DualPipeV"),
            *(bound(ratio(name), OVER_TORCH_1F1B * ratio("torch_1f1b"), f"{name}, {label}: makespan / ideal",
                    f"{OVER_TORCH_1F1B}x of PyTorch's 1F1B") for name in like_torch),
            *([missed(f"{BUILTIN}, {label}: makespan / ideal", "the trainer is not built")] if no_builtin else [])]


def paired(cpu, ours, theirs, limit, of, floor=None):
    """Both sides vary, and more from turn to turn than within one: the median over the turns of their ratio."""
    ratio = statistics.median(a / b for a, b in zip(cpu[ours]["cpu_us_samples"], cpu[theirs]["cpu_us_samples"]))
    us = lambda name: cpu[name]["cpu_us_per_action"]
    also = f"; {us(floor):.0f} us with Gloo's threads as the engine has them" if floor else ""
    return bound(ratio, limit, f"{ours}: CPU per action over Gloo, of {of}'s",
                 f"{us(ours):.0f} of {us(theirs):.0f} us, {len(cpu[ours]['cpu_us_samples'])} turns{also}")


def judge_cpu(cpu):
    return [row for schedule in BARE_SCHEDULES
            for row in (paired(cpu, schedule, f"bare early {schedule}", OVER_BARE, "a bare loop",
                               f"bare yielding {schedule}"),
                        paired(cpu, schedule, OVER_TORCH_KIND, OVER_TORCH, "PyTorch's DualPipeV"))]


def judge(report, options):
    rows = [row for size in options.sizes for row in judge_steps(report["steps"][size], size, options.has_reference)]
    return rows + judge_cpu(report["cpu"])


def print_report(report, options):
    print(f"{RANKS} ranks, F, I, W and F&B of {', '.join(str(ms) for ms in options.pace)} ms, makespan over ideal, "
          f"medians of {options.rounds}" + ("" if report["real_time"] else "; without real-time priority"))
    names = list(report["steps"][options.sizes[0]])
    print(f"  {'':24}" + "".join(f"{SIZES.get(size, size):>9}" for size in options.sizes)
          + f"{'CPU us per action, no compute':>31}")
    for name in [*names, *(name for name in report["cpu"] if name not in names)]:
        ratios = "".join(f"{steps[name]['ratio']:9.4f}" if name in steps else f"{'':9}"
                         for steps in report["steps"].values())
        cpu = f"{report['cpu'][name]['cpu_us_per_action']:31.0f}" if name in report["cpu"] else ""
        print(f"  {name:24}{ratios}{cpu}")
    print()


def parse():
    parser = parser_of("bench_peers", __doc__, SIZES, PACE_MS)
    for name in ("--engine", "--bare", "--builtin", "--python"):
        parser.add_argument(name, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each, of which the median counts")
    parser.add_argument("--cpu-rounds", type=int, default=7, help="likewise, of steps without compute")
    parser.add_argument("--bounded", action="store_true", help="leave out the peers that no bound looks at")
    parser.add_argument("--steps", type=int, default=20, help="of the engine in a row, without compute")
    parser.add_argument("--reference", help="a checkout of deepseek-ai/DualPipe, to be measured as well")
    options = parser.parse_args()
    options.has_reference = options.reference is not None
    return options


def main():
    return report_and_judge(parse(), measure, judge, print_report)


if __name__ == "__main__":
    leave_with("bench_peers", main)
