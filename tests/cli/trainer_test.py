"""The command on the real trainer: profile, plan and ab with what it measured, and postmortem of a run that failed.

    trainer_test.py BUILD_DIR
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))
from outputs import communicate_all  # noqa: E402
from ports import free_port  # noqa: E402
from trainer_ranks import own_variables, prepare_data, rank_variables, train_command  # noqa: E402

PROGRAMS = Path(sys.argv.pop(1)).resolve() / "bin"
CONFIGURATION = 10  # Exit code.
LAYERS, HIDDEN, VOCABULARY, MICRO_BATCHES = 6, 32, 2048, 8

CONFIG = f"""
hidden_size: {HIDDEN}
num_attention_heads: 2
seq_length: 32
micro_batch_size: 1
global_batch_size: {MICRO_BATCHES}
lr: 0.003
log_interval: 1
timeout_s: 60
"""


def run_dualpipe(*arguments: object) -> str:
    """What it prints; it has to end well."""
    run = subprocess.run([str(word) for word in (PROGRAMS / "dualpipe", *arguments)], cwd=SOURCE, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240,
                         env=own_variables() | {"OMP_NUM_THREADS": "1"})
    if run.returncode != 0:
        raise AssertionError(f"exit code {run.returncode}\n{run.stdout}")
    return run.stdout


def train(config: Path, world_size: int, settings: Iterable[str], folders: dict[int, Path] | None = None
          ) -> list[tuple[int, str]]:
    """Exit code and output of every rank; `folders` are where some of them run."""
    port, settings = free_port(), list(settings)
    processes = [subprocess.Popen(train_command(PROGRAMS / "pretrain_gpt", config, settings), text=True,
                                  env=rank_variables(rank, world_size, port), cwd=(folders or {}).get(rank, SOURCE),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(world_size)]
    try:
        texts = communicate_all(processes, timeout=100)
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, (text, _) in zip(processes, texts, strict=True)]


class Case(unittest.TestCase):
    folder: Path

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)


class Profile(Case):
    """A model whose head costs as much as several layers."""

    costs: dict[str, Any]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        data = prepare_data(PROGRAMS / "pretrain_gpt", cls.folder)
        cls.config, cls.cost_file = cls.folder / "gpt.yaml", cls.folder / "cost.json"
        cls.config.write_text(f"{CONFIG}num_layers: {LAYERS}\nvocab_size: {VOCABULARY}\ntrain_iters: 5\n"
                              f"data_path: {data}\n")
        cls.told = run_dualpipe("profile", "--config", cls.config, "--nproc", 2, "-o", cls.cost_file)
        cls.costs = json.loads(cls.cost_file.read_text())
        if "layers" not in cls.costs:
            raise AssertionError(f"no layers were measured\n{cls.told}")

    def plan(self) -> dict[str, dict[str, Any]]:
        text = run_dualpipe("plan", "--cost", self.cost_file, "-P", 2, "-M", MICRO_BATCHES, "--format", "json")
        return {row["schedule"]: row for row in json.loads(text)["schedules"]}

    def test_profile_measures_every_stage_and_layer(self) -> None:
        self.assertIn("dualpipev: running\ndualpipev: running once more, layer by layer\n", self.told)
        self.assertIn(f"\nwritten to {self.cost_file}; next: dualpipe plan --cost {self.cost_file} -P 2 -M "
                      f"{MICRO_BATCHES}\n", self.told)
        self.assertEqual(self.costs["source"], f"dualpipev of {self.config}")
        self.assertEqual(len(self.costs["stages"]), 4)
        for stage in self.costs["stages"]:
            for key in ("forward", "backward_input", "backward_weight", "overlapped", "parameter_bytes",
                        "optimizer_bytes", "activation_bytes"):
                self.assertGreater(stage[key], 0, key)
        self.assertEqual([layer["name"] for layer in self.costs["layers"]],
                         ["embedding", *map(str, range(LAYERS)), "head"])
        self.assertTrue(all(layer["forward"] > 0 for layer in self.costs["layers"]))

    def test_plan_takes_the_file(self) -> None:
        plan = self.plan()
        self.assertEqual(set(plan), {"1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev"})
        sums = [sum(stage[key] for key in ("forward", "backward_input", "backward_weight"))
                for stage in self.costs["stages"]]
        for name in ("1f1b", "interleaved_1f1b", "zb1p"):  # No rank is faster than its own work.
            stages = ((0, 2), (1, 3)) if name == "interleaved_1f1b" else ((0, 1), (2, 3))
            slowest = max(sums[first] + sums[second] for first, second in stages)
            least = MICRO_BATCHES * slowest + self.costs["step_overhead"]
            self.assertGreaterEqual(plan[name]["iteration"], least, name)
        for name, row in plan.items():
            self.assertIsNone(row["refusal"], name)
            self.assertGreater(min(memory["total"] for memory in row["memory"]), 0, name)

    def test_ab_shows_what_plan_says_beside_what_was_measured(self) -> None:
        output = self.folder / "ab"
        text = run_dualpipe("ab", "--config", self.config, "--schedules", "builtin_1f1b,dualpipev", "--iterations", 5,
                            "--rounds", 1, "--nproc", 2, "--cost", self.cost_file, "-o", output)
        comparison, plan = json.loads((output / "comparison.json").read_text()), self.plan()
        self.assertEqual(comparison["cost_file"], str(self.cost_file))
        for run, planned in zip(comparison["runs"], ("1f1b", "dualpipev"), strict=True):
            self.assertAlmostEqual(run["predicted_ms"], plan[planned]["iteration"], places=9)
            self.assertAlmostEqual(run["predicted_difference"], run["predicted_ms"] / run["ms"]["median"] - 1, places=9)
        self.assertIn(f"\npredicted: an iteration by the costs of {self.cost_file}, as dualpipe plan gives it", text)

    def best_division(self) -> int:
        """Layers of the first of two stages: of all divisions the one whose slower stage is the fastest."""
        times = [sum(layer[key] for key in ("forward", "backward_input", "backward_weight"))
                 for layer in self.costs["layers"]]
        return min(range(1, LAYERS), key=lambda count: max(sum(times[:1 + count]), sum(times[1 + count:])))

    def train_with(self, name: str, *settings: str) -> tuple[list[float], list[int]]:
        """Losses, and the bytes of parameters of both ranks."""
        output = self.folder / name
        for code, text in train(self.config, 2, ["pipeline_schedule=1f1b", "record_timeline=1", f"output_dir={output}",
                                                 *settings]):
            self.assertEqual(code, 0, text)
        heads = [json.loads((output / f"timeline_rank{rank}.jsonl").read_text().splitlines()[0]) for rank in range(2)]
        losses = [json.loads(line)["lm_loss"] for line in (output / "metrics.jsonl").read_text().splitlines()]
        return losses, [head["parameter_bytes"] for head in heads]

    def test_layers_are_divided_by_what_profile_measured(self) -> None:
        losses, sizes = self.train_with("measured", "balance=measured", f"cost_file={self.cost_file}")
        # Float32; both hold the tied weight, and the last one a norm behind the layers.
        layer, rest = divmod(sum(sizes) // 4 - 2 * VOCABULARY * HIDDEN - HIDDEN, LAYERS)
        self.assertEqual(rest, 0)
        self.assertEqual((sizes[0] // 4 - VOCABULARY * HIDDEN) / layer, self.best_division())
        even_losses, even_sizes = self.train_with("even")
        self.assertEqual(sum(sizes), sum(even_sizes))
        self.assertEqual(len(losses), 5)
        for loss, even in zip(losses, even_losses, strict=True):
            self.assertAlmostEqual(loss, even, delta=1e-4)


class PostmortemTest(Case):
    """Ranks read one data set by a relative path. That of one rank has a token that the model does not know, so that it
    throws, and it alone."""

    RANKS = 4

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        text = b"a text of plain words " * 60
        half = len(text) // 2
        for name, content in {"good": text, "bad": text[:half] + b"\xff" + text[half + 1:]}.items():
            (cls.folder / name).mkdir()
            (cls.folder / name / "text.txt").write_bytes(content)
            subprocess.run([PROGRAMS / "pretrain_gpt", "prepare-data", "--input", "text.txt", "--output", "text"],
                           cwd=cls.folder / name, check=True, stdout=subprocess.DEVNULL, timeout=60)
        cls.config = cls.folder / "gpt.yaml"
        cls.config.write_text(f"{CONFIG}num_layers: {cls.RANKS}\nvocab_size: 128\ntrain_iters: 100\ndata_path: text\n")

    def postmortem(self, schedule: str, victim: int) -> str:
        output = self.folder / f"{schedule}_{victim}"
        folders = {rank: self.folder / ("bad" if rank == victim else "good") for rank in range(self.RANKS)}
        outcomes = train(self.config, self.RANKS, [f"pipeline_schedule={schedule}", f"output_dir={output}"], folders)
        said = "\n".join(text for _, text in outcomes)
        self.assertEqual([code for code, _ in outcomes], [CONFIGURATION] * self.RANKS, said)
        self.assertIn("[vocab_size] must be above every token of the data, got 128 with token 255", said)
        return run_dualpipe("postmortem", output)

    def check_report(self, schedule: str, victim: int) -> str:
        report = self.postmortem(schedule, victim)
        lines = report.splitlines()
        self.assertEqual(lines[0], f"{self.RANKS} of {self.RANKS} ranks left a log", report)
        ranks = lines[2:2 + self.RANKS]
        self.assertEqual([line[:7] for line in ranks], [f"rank {rank}:" for rank in range(self.RANKS)], report)
        # It reads its tokens in a forward, or, as the last rank and for a schedule of the plugin, ahead of all actions.
        in_forward = schedule == "builtin_1f1b" and victim == 0
        place, at = (r", 0F\d \(stage 0, micro-batch \d\)", r"at 0F\d, since [\d.]+ s before the end") if in_forward \
            else ("", "between actions")
        self.assertRegex(lines[1], rf"^rank {victim} failed first in step \d+{place}: \[vocab_size\] must be above ")
        self.assertRegex(ranks[victim], f"; {at}$")
        for line in lines[2 + self.RANKS:-1]:
            self.assertRegex(line, r"^rank \d waits for .+: (rank \d .+|which takes all ranks of a group)$")
            self.assertFalse(line.startswith(f"rank {victim} "), report)
        self.assertEqual(lines[-1], f"the ranks part at rank {victim}", report)
        return report

    def test_the_rank_that_threw_is_named_and_is_where_ranks_part(self) -> None:
        for schedule in ("builtin_1f1b", "dualpipe"):
            for victim in (0, self.RANKS - 1):
                with self.subTest(schedule=schedule, victim=victim):
                    self.check_report(schedule, victim)


if __name__ == "__main__":
    unittest.main(verbosity=2)
