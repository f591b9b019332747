"""Starts of which one rank has one field different: all refused within the bound, both values and their ranks named.

    starts.py BUILD_DIR [--cases 100] [--seed 1]

A rank is told something else, or sees something else in files of the same name, as on a machine that has its own. Each
value is one that a rank may have, so that only the comparison can refuse it. Every rank has to leave with the code of a
mistake in the configuration, 10, and a message that has the field, both values and who has which; checkpoints stay as
they are. Prints a row of `make stress`; exits with 1 where it is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ranks import Ended, Ranks, write_config
from rows import print_row, tell

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from trainer_ranks import prepare_data  # noqa: E402

SIZE = 4
BOUND = 5.0
CONFIGURATION = 10  # examples/pretrain_gpt/failures/exit_code.h
LAYERS, TOKEN_BYTES = 8, 1
# Two pipelines of two ranks, so that each of the parallel sizes may be another.
SETTINGS = {"num_layers": LAYERS, "untie_embeddings_and_output_weights": "false", "pipeline_model_parallel_size": 2,
            "num_experts": 4}
# What one rank is told instead of what all others are (write_config()).
OTHERS = {
    "pipeline_schedule": ["dualpipev", "builtin_1f1b", "zb1p", "1f1b", "auto"],
    "num_layers": ["9"],
    "hidden_size": ["64"],
    "ffn_hidden_size": ["48"],
    "num_attention_heads": ["4"],
    "seq_length": ["16"],
    "vocab_size": ["512"],
    "rotary_base": ["5000"],
    "norm_epsilon": ["1e-06"],
    "init_method_std": ["0.03"],
    "hidden_dropout": ["0.1"],
    "attention_dropout": ["0.1"],
    "untie_embeddings_and_output_weights": ["true"],
    "params_dtype": ["float64", "bfloat16"],
    "num_experts": ["8", "0"],
    "moe_router_topk": ["1"],
    "moe_layer_freq": ["2"],
    "moe_ffn_hidden_size": ["32"],
    "moe_shared_expert_intermediate_size": ["32"],
    "moe_router_load_balancing_type": ["none"],
    "moe_aux_loss_coeff": ["0.02"],
    "moe_router_enable_expert_bias": ["true"],
    "moe_router_bias_update_rate": ["0.01"],
    "tensor_model_parallel_size": ["2"],
    "pipeline_model_parallel_size": ["4"],
    "expert_model_parallel_size": ["2"],
    "expert_tensor_parallel_size": ["1"],
    "use_distributed_optimizer": ["true"],
    "accumulate_allreduce_grads_in_fp32": ["true"],
    "micro_batch_size": ["2"],
    "global_batch_size": ["32"],
    "last_batch": ["pad", "drop"],
    "recompute_granularity": ["full", "selective"],
    "overlap_moe_expert_parallel_comm": ["false"],
    "pipeline_layer_counts": ["[5, 3]"],
    "variable_seq_lengths": ["true"],
    "defer_tail_weight_gradients": ["true"],
    "schedule_search_s": ["5"],
    "memory_limit_gb": ["80"],
    "record_actions": ["true"],
    "record_phases": ["true"],
    "record_timeline": ["2"],
    "train_iters": ["7"],
    "lr": ["0.004"],
    "min_lr": ["0.0001"],
    "lr_warmup_iters": ["3"],
    "lr_decay_iters": ["1000"],
    "weight_decay": ["0.2"],
    "adam_beta1": ["0.8"],
    "adam_beta2": ["0.9"],
    "adam_eps": ["1e-07"],
    "clip_grad": ["0.5"],
    "seed": ["7", "99"],
    "max_skipped_steps": ["3"],
    "check_for_nan_in_loss_and_grad": ["false"],
    "split": ["90,10"],
    "eod_mask_loss": ["true"],
    "eval_interval": ["3"],
    "eval_iters": ["2"],
    "checkpoints_to_keep": ["3"],
    "save": ["other/checkpoints"],
    "load": ["other/checkpoints"],
    "log_interval": ["20"],
    "timeout_s": ["90"],
    "step_timeout": ["40"],
}
# The same of keys that go with `save` or `load`.
OTHERS_OF_CHECKPOINTS = {"save_interval": "5", "async_save": "true", "ckpt_step": "2", "finetune": "true",
                         "exit_on_missing_checkpoint": "true"}
USUAL = "usual"  # The machine of all other ranks.


@dataclass(frozen=True)
class Start:
    """What is different on one rank: its settings, its variables, or the machine it is on. `value` is what the message
    has to say of it, and `key` of what; `shared` are settings of all ranks."""

    key: str
    value: str
    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    machine: str = USUAL

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


def told_otherwise() -> list[Start]:
    checkpoints = ("save=saved", "load=saved")
    return [*(Start(key, value, own=(f"{key}={value}",)) for key, values in OTHERS.items() for value in values),
            *(Start(key, value, own=(f"{key}={value}",), shared=checkpoints)
              for key, value in OTHERS_OF_CHECKPOINTS.items()),
            Start("DUALPIPE_SCHEDULE", "zb1p", variables={"DUALPIPE_SCHEDULE": "zb1p"}),
            Start("DUALPIPE_OUTPUT", "elsewhere", variables={"DUALPIPE_OUTPUT": "elsewhere"})]


class Machines:
    """Folders in which ranks run, each with files of the same names. `seen` are the starts of which one rank is on a
    machine that has one of them different."""

    def __init__(self, build: Path, folder: Path) -> None:
        self.build, self.folder = build, folder
        self.seen: list[Start] = []
        self.write_checkpoints(USUAL, {2: "two", 4: "four"})
        self.add_checkpoints("behind", {2: "two"}, f"iter_0000002 with manifest {sha256('two')}")
        self.add_checkpoints("ahead", {4: "four", 6: "six"}, f"iter_0000006 with manifest {sha256('six')}")
        self.add_checkpoints("rewritten", {2: "two", 4: "4"}, f"iter_0000004 with manifest {sha256('4')}")
        self.add_checkpoints("torn", {2: "two", 4: None}, "iter_0000004 without a manifest")
        self.add_checkpoints("empty", {}, "none")
        self.add_file("the number of tokens in data_path", self.write_data(USUAL, 3000), "shorter",
                      self.write_data("shorter", 2000), ("data_path=text",))
        self.add_file("the layers in cost_file", self.write_costs(USUAL, 1), "slower", self.write_costs("slower", 2),
                      ("balance=measured", "cost_file=cost.json"))
        self.add_file("the file in pipeline_schedule", self.write_schedule(USUAL, "1f1b"), "reordered",
                      self.write_schedule("reordered", "zb1p"), ("pipeline_schedule=own.csv",))
        self.seen.append(Start("balance", "measured", own=("balance=measured", "cost_file=cost.json")))

    def path(self, machine: str) -> Path:
        path = self.folder / machine
        path.mkdir(exist_ok=True)
        return path

    def add_checkpoints(self, machine: str, manifests: Mapping[int, str | None], value: str) -> None:
        self.write_checkpoints(machine, manifests)
        self.seen.append(Start("the checkpoint in load", value, shared=("save=saved", "load=saved"), machine=machine))

    def add_file(self, key: str, usual: str, machine: str, value: str, shared: tuple[str, ...]) -> None:
        if usual == value:
            raise ValueError(f"{key} is {value} on all machines")
        self.seen.append(Start(key, value, shared=shared, machine=machine))

    def write_checkpoints(self, machine: str, manifests: Mapping[int, str | None]) -> None:
        """Manifests by iteration; what is in them is for later."""
        for iteration, text in manifests.items():
            checkpoint = self.path(machine) / f"saved/iter_{iteration:07}"
            checkpoint.mkdir(parents=True)
            if text is not None:
                (checkpoint / "manifest.json").write_text(text)

    def write_data(self, machine: str, functions: int) -> str:
        prefix = prepare_data(self.build / "bin" / "pretrain_gpt", self.path(machine), functions)
        return str(prefix.with_suffix(".bin").stat().st_size // TOKEN_BYTES)

    def write_costs(self, machine: str, forward: int) -> str:
        times = {"forward": forward, "backward_input": 1, "backward_weight": 1}
        names = ["embedding", *(f"layer {i}" for i in range(LAYERS)), "head"]
        costs = {"format": "dualpipe-cost", "version": 1, "layers": [{"name": name, **times} for name in names]}
        (self.path(machine) / "cost.json").write_text(json.dumps(costs))
        return ", ".join([str(forward + 2)] * len(names))

    def write_schedule(self, machine: str, name: str) -> str:
        """The fingerprint of the file: FNV-1a."""
        file = self.path(machine) / "own.csv"
        plan = [self.build / "bin" / "dualpipe", "plan", "-s", name, "-P", "2", "-M", "8", "--format", "csv", "-o",
                file]
        subprocess.run(plan, check=True, stdout=subprocess.DEVNULL, timeout=60)
        print_of = 14695981039346656037
        for byte in file.read_bytes():
            print_of = (print_of ^ byte) * 1099511628211 % 2**64
        return str(print_of)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Starts:
    def __init__(self, build: Path, folder: Path, seed: int) -> None:
        self.program, self.folder, self.random = build / "bin" / "pretrain_gpt", folder, random.Random(seed)
        self.config = write_config(self.program, folder, **SETTINGS)
        self.machines = Machines(build, folder)
        self.count = 0

    def run(self, start: Start) -> tuple[list[Ended], int, float]:
        """How the ranks ended, which one was different, and the seconds from the last rank's start."""
        self.count += 1
        rank = self.random.randrange(SIZE)
        output = self.folder / f"start{self.count}"

        def enter(other: int) -> list[str]:
            return ["env", "-C", str(self.machines.path(start.machine if other == rank else USUAL))]

        with Ranks(self.program, self.config, SIZE, output, settings=[f"output_dir={output}", *start.shared],
                   per_rank={rank: start.own}, prefix=enter,
                   environment=lambda other: start.variables if other == rank else {}) as run:
            began = time.monotonic()
            ended = run.wait(BOUND + 20)
        return ended, rank, max(one.at for one in ended) - began

    def checkpoints(self) -> list[tuple[str, int]]:
        """Every file and folder of checkpoints, and when it was changed."""
        return sorted((str(path), path.lstat().st_mtime_ns) for path in self.folder.glob("*/saved/**/*"))


def is_refused(ended: list[Ended], start: Start, rank: int) -> bool:
    return all(one.code == CONFIGURATION and tells(one.text, start, rank) for one in ended)


def tells(text: str, start: Start, rank: int) -> bool:
    """Whether it says that this rank has the value, and all others another."""
    holder = r"(.+) on ranks? ([\d, ]+)"
    found = re.search(rf"{re.escape(start.key)} must be the same on every rank, got {holder} and {holder};", text)
    if found is None:
        return False
    holders = {found[1]: ranks_in(found[2]), found[3]: ranks_in(found[4])}
    return holders.pop(start.value, None) == {rank} and list(holders.values()) == [set(range(SIZE)) - {rank}]


def ranks_in(text: str) -> set[int]:
    return {int(number) for number in text.split(", ")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slack", type=float, default=0.0, help="seconds more than the bound, for a busy machine")
    options = parser.parse_args()
    bound, refused, slowest = BOUND + options.slack, 0, 0.0
    keys = set()
    with tempfile.TemporaryDirectory() as name:
        starts = Starts(options.build.resolve(), Path(name), options.seed)
        all_starts = [*told_otherwise(), *starts.machines.seen]
        random.Random(options.seed).shuffle(all_starts)
        checkpoints = starts.checkpoints()
        for case in range(options.cases):
            start = all_starts[case % len(all_starts)]
            ended, rank, seconds = starts.run(start)
            good = is_refused(ended, start, rank) and seconds <= bound and starts.checkpoints() == checkpoints
            refused += good
            keys.add(start.key)
            slowest = max(slowest, seconds)
            tell(f"{case + 1}/{options.cases} {start} on rank {rank}: {seconds:.2f} s")
            if not good:
                tell("\n".join(map(str, ended)))
    reached = print_row(f"starts with one field different, {options.cases}",
                        f"all refused in {bound:g} s, both values and their ranks named",
                        f"{refused} refused, of {len(keys)} different fields, the slowest in {slowest:.2f} s",
                        refused == options.cases, options.seed)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
