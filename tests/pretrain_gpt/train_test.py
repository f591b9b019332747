"""The program `pretrain_gpt` as users start it: several processes, real text, and every kind of mistake.

train_test.py PROGRAM
"""

import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from outputs import communicate_all  # noqa: E402
from ports import free_port  # noqa: E402
from trainer_ranks import own_variables, prepare_data, rank_variables, train_command  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
CONFIGURATION, PEER_LOST = 10, 12  # Exit codes.

CONFIG = """
num_layers: 4
hidden_size: 32
num_attention_heads: 2
seq_length: 32
micro_batch_size: 2
global_batch_size: 8
train_iters: 20
lr: 0.003
lr_warmup_iters: 2
log_interval: 5
timeout_s: 20
"""


class TrainTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        prepare_data(PROGRAM, cls.folder)
        (cls.folder / "gpt.yaml").write_text(CONFIG + f"data_path: {cls.folder}/text\n")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def prepare(cls, source, prefix):
        subprocess.run([PROGRAM, "prepare-data", "--input", cls.folder / source, "--output", cls.folder / prefix],
                       check=True, stdout=subprocess.DEVNULL)

    def start(self, world_size, settings=(), per_rank=None, environment=None):
        """One process per rank; `per_rank` gives a rank settings of its own, a function `environment` variables."""
        port = free_port()
        processes = []
        for rank in range(world_size):
            more = environment(rank) if callable(environment) else environment or {}
            variables = rank_variables(rank, world_size, port) | more
            own = (per_rank or {}).get(rank, [])
            arguments = train_command(PROGRAM, self.folder / "gpt.yaml", [*settings, *own])
            processes.append(subprocess.Popen(arguments, env=variables, text=True, stdout=subprocess.PIPE,
                                              stderr=subprocess.PIPE))
        return processes

    def finish(self, processes, timeout=60):
        texts = communicate_all(processes, timeout)
        return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]

    def train(self, world_size, settings=(), **more):
        """The metrics of a run that has to end well."""
        output = tempfile.mkdtemp(dir=self.folder)
        outcomes = self.finish(self.start(world_size, [f"output_dir={output}", *settings], **more))
        for code, out, err in outcomes:
            self.assertEqual(code, 0, out + err)
        self.output = pathlib.Path(output)
        self.out = outcomes[0][1]
        return [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]

    def refused(self, world_size, message, settings=(), **more):
        """Every rank ends with the code of a mistake and says so."""
        settings = [f"output_dir={tempfile.mkdtemp(dir=self.folder)}", *settings]
        start = time.monotonic()
        outcomes = self.finish(self.start(world_size, settings, **more))
        for rank, (code, out, err) in enumerate(outcomes):
            self.assertEqual(code, CONFIGURATION, f"rank {rank}: {out}{err}")
            self.assertIn(message, err)
            self.assertIn(f"[rank {rank}] error: ", err)
        self.assertLess(time.monotonic() - start, 20)
        return outcomes

    def test_loss_falls_and_lines_have_megatrons_form(self):
        metrics = self.train(1, ["train_iters=40"])
        self.assertAlmostEqual(metrics[0]["lm_loss"], math.log(256), delta=0.1)
        self.assertLess(metrics[-1]["lm_loss"], 3.5)
        self.assertEqual([m["iteration"] for m in metrics], list(range(1, 41)))
        self.assertEqual(list(metrics[0]), ["iteration", "lm_loss", "grad_norm", "lr", "ms", "tokens_per_second"])
        self.assertRegex(self.out, r" iteration +5/ +40 \| consumed samples: +40 \| elapsed time per iteration \(ms\): "
                                   r"[\d.]+ \| tokens per second: \d+ \| learning rate: 2\.9\d+E-03 \| "
                                   r"global batch size: +8 \| lm loss: \d\.\d+E\+00 \| grad norm: [\d.]+ \| "
                                   r"number of skipped iterations: +0")
        self.assertIn(f"metrics of every step: {self.output}/metrics.jsonl", self.out)
        self.assertNotIn("\x1b", self.out)

    def test_losses_do_not_depend_on_the_number_of_processes(self):
        wanted = self.train(1)
        for world_size in (2, 4):
            got = self.train(world_size)
            self.assertLess(abs(got[0]["lm_loss"] / wanted[0]["lm_loss"] - 1), 1e-6)
            self.assertLess(abs(got[0]["grad_norm"] / wanted[0]["grad_norm"] - 1), 1e-5)
            for a, b in zip(got, wanted, strict=True):
                self.assertLess(abs(a["lm_loss"] - b["lm_loss"]), 1e-4)

    def test_the_same_run_twice_is_equal_to_the_bit(self):
        runs = [[(m["lm_loss"], m["grad_norm"]) for m in self.train(2)] for _ in range(2)]
        self.assertEqual(runs[0], runs[1])

    def test_float64_agrees_closely_and_bfloat16_runs(self):
        losses = [[m["lm_loss"] for m in self.train(n, ["params_dtype=float64"])] for n in (1, 4)]
        for a, b in zip(*losses, strict=True):
            self.assertLess(abs(a - b), 1e-10)
        self.assertLess(self.train(2, ["params_dtype=bfloat16"])[-1]["lm_loss"], 5)

    def test_evaluates_and_records_actions(self):
        metrics = self.train(2, ["eval_interval=10", "split=9,1", "record_actions=true", "global_batch_size=4"])
        self.assertEqual([m["iteration"] for m in metrics if "validation_loss" in m], [10, 20])
        self.assertAlmostEqual(metrics[-1]["validation_loss"], metrics[-1]["lm_loss"], delta=1)
        self.assertEqual((self.output / "actions.csv").read_text(), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")

    def test_refuses_mistakes_on_every_rank(self):
        self.refused(2, "[--set lr=x] lr must be a number of at least 0", ["lr=x"])
        self.refused(2, "[pipeline_schedule] must be one of builtin_1f1b", ["pipeline_schedule=builtin_1f2b"])
        self.refused(2, "[num_layers] must be at least the number of stages = 2, got 1", ["num_layers=1"])
        self.refused(2, "none.idx] must be a readable file", [f"data_path={self.folder}/none"])
        self.refused(2, "output_dir", [f"output_dir={self.folder}/text.py/x"])

    def test_field_report_67_world_size_wins_and_must_fit(self):
        self.refused(3, "[WORLD_SIZE] the number of processes must be a multiple of tensor_model_parallel_size x "
                        "pipeline_model_parallel_size = 1 x 2 = 2, got 3; for example start 4 processes",
                     ["pipeline_model_parallel_size=2"])
        variables = {**os.environ, "RANK": "abc", "WORLD_SIZE": "2"}
        run = subprocess.run([PROGRAM, "train", "--config", self.folder / "gpt.yaml"], env=variables, text=True,
                             capture_output=True, timeout=20)
        self.assertEqual((run.returncode, run.stderr),
                         (CONFIGURATION, "error: [RANK] must be an integer of at least 0, got 'abc'; for example RANK=0\n"))

    def test_field_report_64_eight_processes_in_every_dimension(self):
        experts = ["num_experts=4", "moe_ffn_hidden_size=16"]
        for settings, more in (([], []), (experts, ["expert_model_parallel_size=2"]),
                               (experts, ["expert_model_parallel_size=4", "expert_tensor_parallel_size=1",
                                          "sequence_parallel=true", "use_distributed_optimizer=true"])):
            settings = [*settings, "train_iters=3", "params_dtype=float64"]
            wanted = self.train(1, settings)
            start = time.monotonic()
            got = self.train(8, [*settings, "tensor_model_parallel_size=2", "pipeline_model_parallel_size=2", *more])
            self.assertLess(time.monotonic() - start, 30)
            for a, b in zip(got, wanted, strict=True):
                self.assertLess(abs(a["lm_loss"] - b["lm_loss"]), 1e-10)
                self.assertLess(abs(a["grad_norm"] / b["grad_norm"] - 1), 1e-10)
        self.refused(6, "[WORLD_SIZE] the number of processes must be a multiple of tensor_model_parallel_size x "
                        "pipeline_model_parallel_size = 2 x 2 = 4, got 6; for example start 8 processes",
                     ["tensor_model_parallel_size=2", "pipeline_model_parallel_size=2"])

    def test_prints_the_groups_of_a_layout(self):
        run = subprocess.run([PROGRAM, "groups", "--config", self.folder / "gpt.yaml", "--world-size", "8",
                              "--set", "tensor_model_parallel_size=2", "--set", "pipeline_model_parallel_size=2"],
                             text=True, capture_output=True, check=True)
        self.assertEqual(run.stdout.splitlines()[:3], ["tensor          [0 1] [2 3] [4 5] [6 7]",
                                                       "pipeline        [0 4] [1 5] [2 6] [3 7]",
                                                       "data            [0 2] [1 3] [4 6] [5 7]"])

    def test_every_group_takes_the_interface_that_is_named(self):
        settings = ["tensor_model_parallel_size=2", "pipeline_model_parallel_size=2", "train_iters=3"]
        self.train(8, settings, environment={"GLOO_SOCKET_IFNAME": "lo"})
        outcomes = self.finish(self.start(4, settings, environment={"GLOO_SOCKET_IFNAME": "none0"}))
        self.assertTrue(all(code >= CONFIGURATION for code, _, _ in outcomes), outcomes)

    def test_bytes_per_rank_are_those_of_their_formulas(self):
        for expert, more in ((1, []), (2, []), (2, ["params_dtype=bfloat16"])):
            self.train(4, ["num_experts=4", "pipeline_model_parallel_size=2", "train_iters=3", "global_batch_size=32",
                           f"expert_model_parallel_size={expert}", *more])
            lines = re.findall(r"^rank (\d): parameters (\d+) B \(formula (\d+)\), gradients (\d+) B \(formula (\d+)\), "
                               r"optimizer state (\d+) B \(formula (\d+)\), peak activations (\d+) B "
                               r"\(formula (\d) x (\d+) = (\d+)\)$", self.out, re.MULTILINE)
            self.assertEqual([(line[0], line[8]) for line in lines], [("0", "2"), ("2", "1")], self.out)
            for line in lines:
                self.assertEqual(line[1::2][:3], line[2::2][:3])
                self.assertGreaterEqual(int(line[7]), int(line[10]))
                self.assertLess(int(line[7]), 2.5 * int(line[10]))

    def test_field_report_56_the_last_incomplete_batch(self):
        (self.folder / "short.txt").write_text("abcdefghijklmnop" * 45)  # 22 samples of 32 tokens.
        self.prepare("short.txt", "short")
        settings = [f"data_path={self.folder}/short", "split=1", "train_iters=6", "pipeline_model_parallel_size=2"]
        for rule, consumed in (("continue", 48), ("pad", 44), ("drop", 66)):
            losses = [[m["lm_loss"] for m in self.train(n, [*settings, f"last_batch={rule}"])] for n in (2, 4)]
            self.assertIn(f"consumed samples: {consumed:12} |", self.out)
            for a, b in zip(*losses, strict=True):
                self.assertLess(abs(a - b), 1e-5)

    def test_ranks_must_agree(self):
        self.refused(2, "[config] seed must be the same on every rank, got 1234 on rank 0 and 7 on rank 1",
                     per_rank={1: ["seed=7"]})

    def test_a_mistake_of_one_rank_reaches_the_others(self):
        for rank in (0, 1):
            outcomes = self.refused(2, "[--set seed=x] seed must be an integer", per_rank={rank: ["seed=x"]})
            self.assertIn(f"rank {rank} failed: ", outcomes[1 - rank][2])

    def test_a_failure_in_a_step_ends_all_ranks_with_its_message(self):
        # Bytes above 127 are in the data, so a vocabulary of 128 fails once one of them is read.
        (self.folder / "late.txt").write_bytes(b"plain text " * 100 + b"\xff" * 100)
        self.prepare("late.txt", "late")
        outcomes = self.refused(4, "[vocab_size] must be above every token of the data, got 128 with token 255; for "
                                   "example 256",
                                [f"data_path={self.folder}/late", "vocab_size=128", "train_iters=100000"])
        self.assertRegex(outcomes[1][2], r"rank \d failed in step \d+")

    def test_a_killed_rank_ends_the_others(self):
        for victim in (0, 2):
            processes = self.start(4, [f"output_dir={tempfile.mkdtemp(dir=self.folder)}", "train_iters=1000000"])
            for line in processes[0].stdout:
                if " iteration " in line:
                    break
            processes[victim].send_signal(signal.SIGKILL)
            start = time.monotonic()
            outcomes = self.finish(processes, timeout=30)
            self.assertLess(time.monotonic() - start, 30)
            for rank, (code, _, err) in enumerate(outcomes):
                self.assertEqual(code, -signal.SIGKILL if rank == victim else PEER_LOST, err)

    def test_a_full_disk_is_reported(self):
        for name, settings in (("metrics.jsonl", []), ("actions.csv", ["record_actions=true"]),
                               ("timeline_rank0.jsonl", ["record_timeline=1"])):
            output = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
            (output / name).symlink_to("/dev/full")
            self.refused(2, f"[{output}/{name}] must be a file that can be written, got: No space left on device",
                         [*settings, f"output_dir={output}"])

    def read_timelines(self, output, world_size):
        """By rank: the header and the steps."""
        lines = [[json.loads(line) for line in (output / f"timeline_rank{rank}.jsonl").read_text().splitlines()]
                 for rank in range(world_size)]
        return [(ranks[0], ranks[1:]) for ranks in lines]

    def test_variables_replace_keys_and_record_the_last_steps(self):
        settings = ["num_experts=4", "pipeline_model_parallel_size=2", "expert_model_parallel_size=2",
                    "global_batch_size=16", "train_iters=6", "lr_warmup_iters=2"]
        wanted = self.train(4, settings)
        self.assertEqual([path.name for path in self.output.glob("timeline*")], [])
        output = self.folder / "variables"
        began = time.time()
        outcomes = self.finish(self.start(4, [*settings, "pipeline_schedule=none", f"output_dir={self.folder}/unused"],
                                          environment={"DUALPIPE_SCHEDULE": "builtin_1f1b",
                                                       "DUALPIPE_OUTPUT": str(output)}))
        ended = time.time()
        self.assertEqual([code for code, _, _ in outcomes], [0] * 4, outcomes)
        self.assertFalse((self.folder / "unused").exists())
        metrics = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([(m["lm_loss"], m["grad_norm"]) for m in metrics],
                         [(m["lm_loss"], m["grad_norm"]) for m in wanted])
        self.assertIn("builtin_1f1b: 4 process(es)", outcomes[0][1])

        bytes_of = {int(rank): [int(n) for n in numbers] for rank, *numbers in re.findall(
            r"^rank (\d): parameters (\d+) B .*?gradients (\d+) B .*?optimizer state (\d+) B ", outcomes[0][1],
            re.MULTILINE)}
        rows = {0: ["0F0", "0F1", "0B0", "0F2", "0B1", "0F3", "0B2", "0B3"],
                1: ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2", "1F3", "1B3"]}
        timelines = self.read_timelines(output, 4)
        for rank, (header, steps) in enumerate(timelines):
            stage = rank // 2
            expected = {"format": "dualpipe-timeline", "version": 1, "schedule": "builtin_1f1b", "rank": rank,
                        "world_size": 4, "pipeline_rank": stage, "pipeline_model_parallel_size": 2,
                        "num_microbatches": 4, "num_stages": 2, "stages": [stage]}
            self.assertEqual({key: header[key] for key in expected}, expected)
            if rank in bytes_of:
                self.assertEqual([header[f"{what}_bytes"] for what in ("parameter", "gradient", "optimizer")],
                                 bytes_of[rank])
            self.assertEqual([step["iteration"] for step in steps], [2, 3, 4, 5, 6])
            for step in steps:
                self.check_step(step, rows[stage])
                if rank == 0:
                    self.assertLess(step["seconds"], metrics[step["iteration"] - 1]["ms"] / 1e3 + 0.01)
                self.assertTrue(began < step["began"] < step["began"] + step["seconds"] < ended)
        # One clock: the second stage begins a micro-batch behind the first.
        for rank in (0, 1):
            for first, second in zip(timelines[rank][1], timelines[rank + 2][1], strict=True):
                start = [{name: step["began"] + begin for name, begin, *_ in step["spans"]} for step in (first, second)]
                for k in range(4):
                    self.assertLess(start[0][f"0F{k}"], start[1][f"1F{k}"])
                    self.assertLess(start[1][f"1B{k}"], start[0][f"0B{k}"])

    def check_step(self, step, row):
        self.assertEqual([name for name, *_ in step["spans"]], row)
        times = [time for _, start, end, *_ in step["spans"] for time in (start, end)]
        self.assertEqual(times, sorted(times))
        self.assertLess(times[-1], step["seconds"])
        exchanges = [(end - start, waited) for _, start, end, waited in step["phases"]]
        self.assertEqual({name.split(" ")[0] for name, *_ in step["phases"]}, set(row))
        self.assertEqual({name.split(".")[1] for name, *_ in step["phases"]}, {"counts", "dispatch", "combine"})
        self.assertAlmostEqual(step["exchange_seconds"], sum(length for length, _ in exchanges), places=9)
        self.assertAlmostEqual(step["exposed_seconds"], sum(waited for _, waited in exchanges), places=9)
        self.assertTrue(0 < step["exposed_seconds"] < step["exchange_seconds"] < times[-1])
        self.assertEqual(step["peak_activations"], 2 if row[1] == "0F1" else 1)
        self.assertEqual([seconds for seconds, _ in step["memory"]], [0, *times[1::2]])
        live = [size for _, size in step["memory"]]
        self.assertEqual(live[0], 0)
        for cell, before, after in zip(row, live[:-1], live[1:], strict=True):
            (self.assertLess if "F" in cell else self.assertGreater)(before, after, cell)
        self.assertLessEqual(max(live), step["peak_activation_bytes"])

    def parameter_bytes(self, world_size):
        return [json.loads((self.output / f"timeline_rank{rank}.jsonl").read_text().splitlines()[0])["parameter_bytes"]
                for rank in range(world_size)]

    def test_layers_are_balanced_by_measured_cost(self):
        """The first layer takes five times as long as any other: it gets a process of its own, and nothing else changes."""
        times = {"embedding": 0, "0": 5, "1": 1, "2": 1, "3": 1, "head": 1}
        layers = [{"name": name, "forward": ms, "backward_input": ms, "backward_weight": ms}
                  for name, ms in times.items()]
        costs = {"format": "dualpipe-cost", "version": 1, "unit": "ms", "stages": [], "layers": layers}
        (self.folder / "cost.json").write_text(json.dumps(costs))
        short = ["train_iters=5", "record_timeline=1"]
        even = self.train(2, short)
        even_bytes = self.parameter_bytes(2)
        measured = self.train(2, [*short, "balance=measured", f"cost_file={self.folder}/cost.json"])
        measured_bytes = self.parameter_bytes(2)
        self.assertEqual(sum(measured_bytes), sum(even_bytes))
        self.assertLess(measured_bytes[0], even_bytes[0])
        for a, b in zip(even, measured, strict=True):
            self.assertLess(abs(a["lm_loss"] - b["lm_loss"]), 1e-4)

    def test_variables_are_checked_as_what_they_replace(self):
        self.refused(2, "[DUALPIPE_SCHEDULE] must be one of builtin_1f1b",
                     environment={"DUALPIPE_SCHEDULE": "builtin_1f2b"})
        self.refused(2, f"[DUALPIPE_OUTPUT] must be a folder that can be made, got {self.folder}/text.py/x: Not a "
                        "directory; for example output", environment={"DUALPIPE_OUTPUT": f"{self.folder}/text.py/x"})
        self.refused(2, f"[config] DUALPIPE_OUTPUT must be the same on every rank, got {self.folder}/a0 on rank 0 and "
                        f"{self.folder}/a1 on rank 1; start all ranks with one configuration",
                     environment=lambda rank: {"DUALPIPE_OUTPUT": f"{self.folder}/a{rank}"})

    def test_a_rank_that_needs_more_memory_than_there_is(self):
        outcomes = self.refused(2, "[memory_limit_gb] must be at least what rank ", ["memory_limit_gb=0.0001"])
        needed = re.search(r"needs under builtin_1f1b = ([\d.]+), got 0.0001; for example", outcomes[0][2])
        self.train(2, [f"memory_limit_gb={2 * float(needed.group(1))}"])

    def test_processes_of_the_script_end_with_it(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            process = self.start_script("--set", "train_iters=1000000")
            for line in process.stdout:
                if " iteration " in line:
                    break
            process.send_signal(number)
            process.communicate(timeout=20)  # Its pipes are closed once every process is gone.
            self.assertEqual(process.returncode, code)

    def test_the_script_returns_the_failure_of_a_process(self):
        process = self.start_script("--set", "lr=x")
        self.assertEqual(process.communicate(timeout=60)[1].count("[--set lr=x] lr must be"), 2)
        self.assertEqual(process.returncode, CONFIGURATION)

    def start_script(self, *arguments):
        """train.sh in a checkout without .venv, so that it starts the processes itself."""
        root = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        script = root / "examples/pretrain_gpt/train.sh"
        script.parent.mkdir(parents=True)
        for name in ("train.sh", "prepare_data.sh"):
            shutil.copy(f"examples/pretrain_gpt/{name}", script.parent)
        (root / "data").mkdir()
        (root / "data/python.idx").touch()
        variables = own_variables() | {"NPROC": "2", "BUILD_DIR": str(pathlib.Path(PROGRAM).parents[1])}
        return subprocess.Popen([script, self.folder / "gpt.yaml", *arguments, "--set", f"output_dir={root}/output"],
                                env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def test_lists_schedules(self):
        run = subprocess.run([PROGRAM, "schedules"], text=True, capture_output=True, check=True)
        self.assertIn("builtin_1f1b", run.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
