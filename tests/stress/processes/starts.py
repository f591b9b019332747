"""Starts of which one rank has one field different: all refused within the bound, both values and the rank named.

    starts.py BUILD_DIR [--cases 100] [--seed 1]

Prints a row of `make stress`; exits with 1 where it is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from ranks import Ended, Ranks, write_config
from rows import print_row

SIZE = 4
BOUND = 5.0
# What one rank has instead of what all others have (write_config()).
OTHERS = {
    "pipeline_schedule": ["dualpipev", "builtin_1f1b", "zb1p", "1f1b"],
    "num_layers": ["8"],
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
    "pipeline_layer_counts": ["[2, 1, 1, 0]"],
}


class Starts:
    def __init__(self, program: Path, folder: Path, seed: int) -> None:
        self.program, self.folder, self.random = program, folder, random.Random(seed)
        self.config = write_config(program, folder, untie_embeddings_and_output_weights="false")
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


def is_refused(ended: list[Ended], key: str) -> bool:
    """Every rank ends by itself with an error's code, and says which field."""
    return all(one.code is not None and one.code > 0 and key in one.text for one in ended)


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
            good = is_refused(ended, key) and seconds <= BOUND
            refused += good
            slowest = max(slowest, seconds)
            print(f"{case + 1}/{options.cases} {key}={value} on rank {rank}: {seconds:.2f} s", file=sys.stderr)
            if not good:
                print("\n".join(map(str, ended)), file=sys.stderr)
    reached = print_row(f"starts with one field different, {options.cases}", f"all refused in {BOUND:g} s",
                        f"{refused} refused, the slowest in {slowest:.2f} s", refused == options.cases, options.seed)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
