"""Starts of which one rank has one field different: all refused within the bound, both values and their ranks named.

    starts.py BUILD_DIR [--cases 100] [--seed 1]

Each value is one that a rank may have, so that only the comparison can refuse it. Every rank has to leave with the code
of a mistake in the configuration, 10, and a message that has the field, both values and who has which. Prints a row of
`make stress`; exits with 1 where it is missed.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from pathlib import Path

from ranks import Ended, Ranks, write_config
from rows import print_row, tell

SIZE = 4
BOUND = 5.0
CONFIGURATION = 10  # examples/pretrain_gpt/failures/exit_code.h
SETTINGS = {"num_layers": 8, "untie_embeddings_and_output_weights": "false"}
# What one rank has instead of what all others have (write_config()).
OTHERS = {
    "pipeline_schedule": ["dualpipev", "builtin_1f1b", "zb1p", "1f1b"],
    "num_layers": ["9"],
    "hidden_size": ["64"],
    "ffn_hidden_size": ["48"],
    "num_attention_heads": ["4"],
    "seq_length": ["16"],
    "vocab_size": ["512"],
    "micro_batch_size": ["2"],
    "global_batch_size": ["32"],
    "params_dtype": ["float64", "bfloat16"],
    "init_method_std": ["0.03"],
    "hidden_dropout": ["0.1"],
    "attention_dropout": ["0.1"],
    "untie_embeddings_and_output_weights": ["true"],
    "recompute_granularity": ["full", "selective"],
    "seed": ["7", "99"],
    "lr": ["0.004"],
    "min_lr": ["0.0001"],
    "weight_decay": ["0.2"],
    "adam_beta1": ["0.8"],
    "adam_beta2": ["0.9"],
    "clip_grad": ["0.5"],
    "train_iters": ["7"],
    "split": ["90,10"],
    "eval_interval": ["3"],
    "pipeline_layer_counts": ["[3, 2, 2, 1]"],
}


class Starts:
    def __init__(self, program: Path, folder: Path, seed: int) -> None:
        self.program, self.folder, self.random = program, folder, random.Random(seed)
        self.config = write_config(program, folder, **SETTINGS)
        self.count = 0

    def run(self, key: str, value: str) -> tuple[list[Ended], int, float]:
        """How the ranks ended, which one was different, and the seconds from the last rank's start."""
        self.count += 1
        rank = self.random.randrange(SIZE)
        output = self.folder / f"start{self.count}"
        with Ranks(self.program, self.config, SIZE, output, settings=[f"output_dir={output}"],
                   per_rank={rank: [f"{key}={value}"]}) as run:
            began = time.monotonic()
            ended = run.wait(BOUND + 20)
        return ended, rank, max(one.at for one in ended) - began


def is_refused(ended: list[Ended], key: str, value: str, rank: int) -> bool:
    return all(one.code == CONFIGURATION and tells(one.text, key, value, rank) for one in ended)


def tells(text: str, key: str, value: str, rank: int) -> bool:
    """Whether it says that this rank has the value, and all others another."""
    holder = r"(.+) on ranks? ([\d, ]+)"
    found = re.search(rf"{key} must be the same on every rank, got {holder} and {holder};", text)
    if found is None:
        return False
    holders = {found[1]: ranks_in(found[2]), found[3]: ranks_in(found[4])}
    return holders.pop(value, None) == {rank} and list(holders.values()) == [set(range(SIZE)) - {rank}]


def ranks_in(text: str) -> set[int]:
    return {int(number) for number in text.split(", ")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    fields = [(key, value) for key, values in OTHERS.items() for value in values]
    random.Random(options.seed).shuffle(fields)
    refused, slowest = 0, 0.0
    with tempfile.TemporaryDirectory() as name:
        starts = Starts(options.build.resolve() / "bin" / "pretrain_gpt", Path(name), options.seed)
        for case in range(options.cases):
            key, value = fields[case % len(fields)]
            ended, rank, seconds = starts.run(key, value)
            good = is_refused(ended, key, value, rank) and seconds <= BOUND
            refused += good
            slowest = max(slowest, seconds)
            tell(f"{case + 1}/{options.cases} {key}={value} on rank {rank}: {seconds:.2f} s")
            if not good:
                tell("\n".join(map(str, ended)))
    reached = print_row(f"starts with one field different, {options.cases}",
                        f"all refused in {BOUND:g} s, both values and their ranks named",
                        f"{refused} refused, the slowest in {slowest:.2f} s", refused == options.cases, options.seed)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
