"""The trainer with real layers: a step of configs/gpt_moe_tiny.yaml with all-to-all beside compute, and without.

Four processes (PP=2 x EP=2) on hosts of their own, with layers so large that the links carry all-to-all for about as
long as the processes compute. Both kinds take turns, run by run, and must train to the same numbers, to the bit.
"""

import json
import pathlib
import statistics
import subprocess
import tempfile

import hosts
from launch import Failed, outputs_of

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
RANKS = 4
ITERATIONS = 12
WARM_UP = 2  # Iterations that are left out.
LAYERS, EXCHANGES = 2, 4  # Of a stage; of a layer in forward and backward together.
SIZES = {"hidden_size": 256, "moe_ffn_hidden_size": 128, "seq_length": 256, "micro_batch_size": 1,
         "global_batch_size": 32}
SETTINGS = {**SIZES, "train_iters": ITERATIONS, "lr_warmup_iters": 1, "log_interval": ITERATIONS, "eval_interval": 0,
            "timeout_s": 120}
RATE = 2  # Over what --rate-mbit says: the trainer's exchanges have one group, which uses half of a link at a time.
KINDS = {"sequence": "false", "merged": "true"}  # overlap_moe_expert_parallel_comm
NOTE = "last step, on this rank: "


def all_to_all_ms(rate_mbit):
    """What a step's exchanges between experts need, if tokens spread evenly and directions follow one another."""
    micro_batches = SIZES["global_batch_size"] // (SIZES["micro_batch_size"] * 2)
    # Each token has two experts; one of the two is here.
    bytes_each = SIZES["micro_batch_size"] * SIZES["seq_length"] * SIZES["hidden_size"] * 4
    return 2 * micro_batches * LAYERS * EXCHANGES * bytes_each * 8 / (rate_mbit * 1e3)


def why_not(options):
    """Why there is nothing to run, in one sentence; None where there is."""
    if pathlib.Path(options.trainer).exists():
        return None
    return f"the real layers need the trainer, {options.trainer}: build it, or choose another measurement by --only"


def prepare_data(trainer, folder):
    subprocess.run([trainer, "prepare-data", "--input", REPOSITORY / "plugin", "--extensions", ".h", ".cc", "--output",
                    folder / "text"], check=True, stdout=subprocess.DEVNULL)


class Runs:
    """Of one kind: what each run measured."""

    def __init__(self, kind):
        self.kind = kind
        self.ms, self.numbers, self.notes = [], [], []

    def add(self, metrics, output):
        steps = [json.loads(line) for line in metrics.read_text().splitlines()]
        if len(steps) != ITERATIONS:
            raise Failed(f"{len(steps)} iterations of {ITERATIONS} are in {metrics}")
        self.ms += [step["ms"] for step in steps[WARM_UP:]]
        self.numbers.append([(step["lm_loss"], step["grad_norm"]) for step in steps])
        self.notes = [line.removeprefix(NOTE) for line in output.splitlines() if line.startswith(NOTE)]

    def report(self):
        return {"ms": statistics.median(self.ms), "samples_ms": self.ms, "statistics": self.notes}


def train(lan, options, folder, kind, port):
    """What rank 0 printed. Its metrics are in the folder."""
    settings = {**SETTINGS, "overlap_moe_expert_parallel_comm": KINDS[kind], "data_path": folder / "text",
                "output_dir": folder / kind}
    # A priority that the benchmark was started with is for sleeps; processes that share a core would starve each other.
    command = ["chrt", "--other", "0", options.trainer, "train", "--config", REPOSITORY / "configs/gpt_moe_tiny.yaml",
               *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": lan.addresses[0], "MASTER_PORT": str(port),
              "GLOO_SOCKET_IFNAME": hosts.INTERFACE, "OMP_NUM_THREADS": "1"}
    ranks = [lan.start(rank, command, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True) for rank in range(RANKS)]
    return outputs_of(ranks, f"pretrain_gpt train, {kind}")[0]


def check_same_numbers(runs):
    numbers = [run for kind in runs for run in kind.numbers]
    for step, values in enumerate(zip(*numbers, strict=True), 1):
        if len(set(values)) != 1:
            raise Failed(f"loss and gradient norm of step {step} differ between runs: {sorted(set(values))}")


def measure_links(options, folder, rate_mbit):
    runs = [Runs(kind) for kind in KINDS]
    with hosts.Lan(RANKS, rate=rate_mbit and f"{rate_mbit}mbit") as lan:
        for repeat in range(options.repeats):
            for i, kind in enumerate(runs):
                output = train(lan, options, folder, kind.kind, 29500 + repeat * len(runs) + i)
                kind.add(folder / kind.kind / "metrics.jsonl", output)
    check_same_numbers(runs)
    sequence, merged = (kind.report() for kind in runs)
    return {"rate_mbit": rate_mbit, "all_to_all_ms": rate_mbit and all_to_all_ms(rate_mbit), "runs": options.repeats,
            "sequence": sequence, "merged": merged, "gain": 1 - merged["ms"] / sequence["ms"]}


def measure(options):
    # In memory of this mount namespace alone: gone with it.
    with tempfile.TemporaryDirectory(dir="/run") as name:
        folder = pathlib.Path(name)
        prepare_data(options.trainer, folder)
        rates = (RATE * options.rate_mbit, None)
        return {"sizes": SIZES, "cases": [measure_links(options, folder, rate) for rate in rates]}


def print_report(report):
    for case in report["cases"]:
        links = (f"links of {case['rate_mbit']} Mbit/s, all-to-all about {case['all_to_all_ms']:.0f} ms a step"
                 if case["rate_mbit"] else "links without a limit")
        print(f"real layers of gpt_moe_tiny, {links}: {case['runs']} runs of each kind, the same losses and norms")
        print(f"  {'':10}{'ms per iteration':>18}  statistics of rank 0, last step")
        for kind in KINDS:
            print(f"  {kind:10}{case[kind]['ms']:18.1f}  {', '.join(case[kind]['statistics'])}")
        print(f"  gain {case['gain']:.1%}")
    print()
