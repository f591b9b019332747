"""Checkpoints of the program `pretrain_gpt` as users make and use them: resumed runs, killed ones, and the files.

checkpoint_test.py PROGRAM [FAULT_LIBRARY]

FAULT_LIBRARY (tests/support/trainer_fault.cc) is preloaded into a rank whose save is to be killed or held up.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from safetensors import safe_open

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from outputs import communicate_all  # noqa: E402
from ports import free_port  # noqa: E402
from trainer_ranks import fault_variables, prepare_data, rank_variables, train_command  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
FAULT_LIBRARY = os.path.abspath(sys.argv.pop(1)) if sys.argv[1:2] and sys.argv[1].endswith(".so") else None
CONFIGURATION_CODE, PEER_LOST_CODE, CHECKPOINT_CODE = 10, 12, 16
CONFIG = """
num_layers: 4
hidden_size: 32
num_attention_heads: 2
seq_length: 32
micro_batch_size: 2
global_batch_size: 8
train_iters: 12
lr: 0.003
lr_warmup_iters: 2
lr_decay_iters: 12
log_interval: 1
timeout_s: 30
"""
# Which rank is killed, and at which fsync, of its third save: its file, the manifest, the hash of that, the folder.
KILLS = ((0, 11), (0, 12), (0, 13), (0, 14), (1, 3))
MIXTURE = ["num_experts=4", "moe_layer_freq=2", "moe_router_enable_expert_bias=true", "hidden_dropout=0.1"]


class CheckpointTest(unittest.TestCase):
    folder: pathlib.Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        data = prepare_data(PROGRAM, cls.folder)
        (cls.folder / "gpt.yaml").write_text(CONFIG + f"data_path: {data}\n")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.temporary.cleanup()

    def new_folder(self) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def start(self, world_size: int, settings: list[str], machines: list[pathlib.Path] | None = None,
              faults: dict[int, dict[str, str]] | None = None) -> list[subprocess.Popen[str]]:
        """`machines`: of each rank the folder in which it runs, and permissions hold for it.
        `faults`: of each rank that has one, what it has more in its environment."""
        port = free_port()
        command = train_command(PROGRAM, self.folder / "gpt.yaml", settings)
        if machines and os.geteuid() == 0:
            command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
        return [subprocess.Popen(command, env=rank_variables(rank, world_size, port) | (faults or {}).get(rank, {}),
                                 text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 cwd=machines[rank] if machines else None)
                for rank in range(world_size)]

    def fault(self, kind: str, at: int, file: pathlib.Path | None = None) -> dict[str, str]:
        """The environment of a rank that it hits at its `at`-th fsync; it writes `file` then."""
        return fault_variables(FAULT_LIBRARY, kind, "save", at, file or self.folder / "moment")

    def outcomes(self, world_size: int, settings: list[str],
                 machines: list[pathlib.Path] | None = None) -> list[tuple[int, str, str]]:
        processes = self.start(world_size, settings, machines)
        texts = communicate_all(processes, timeout=120)
        return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]

    def train(self, world_size: int, output: pathlib.Path, settings: list[str]) -> str:
        """The log of a run that has to end well."""
        outcomes = self.outcomes(world_size, [f"output_dir={output}", *settings])
        for code, out, err in outcomes:
            self.assertEqual(code, 0, out + err)
        return outcomes[0][1]

    @staticmethod
    def losses(output: pathlib.Path) -> list[dict[str, float]]:
        """What has to be the same to the bit, step by step."""
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if k not in ("ms", "tokens_per_second")} for line in lines]

    def manifest(self, checkpoint: pathlib.Path) -> dict:
        return json.loads((checkpoint / "manifest.json").read_text())

    def test_a_resumed_run_equals_one_that_never_stopped(self) -> None:
        for world_size, async_save, settings in (
                (1, "false", ["eval_interval=4", "split=9,1", *MIXTURE]),
                (2, "true", ["pipeline_model_parallel_size=2", "params_dtype=bfloat16"]),
                (4, "false", ["tensor_model_parallel_size=2", "sequence_parallel=true", "pipeline_model_parallel_size=1",
                     "expert_model_parallel_size=2", "use_distributed_optimizer=true", *MIXTURE])):
            whole, parts, save = self.new_folder(), self.new_folder(), self.new_folder()
            self.train(world_size, whole, settings)
            settings = [*settings, f"save={save}", f"load={save}", f"async_save={async_save}"]
            first = self.train(world_size, parts, [*settings, "save_interval=2", "train_iters=5"])
            self.assertIn(f"no checkpoint in {save}: training begins anew", first)
            self.assertEqual(sorted(os.listdir(save)), ["iter_0000004", "iter_0000005"])
            second = self.train(world_size, parts, settings)
            self.assertIn(f"loaded {save}/iter_0000005: iteration 5, 40 consumed samples", second)
            self.assertEqual(self.losses(parts), self.losses(whole))
            self.assertEqual(len(self.losses(parts)), 12)
            self.assertIn("nothing to do: iteration 12 of 12 is done", self.train(world_size, parts, settings))
            self.assertEqual(len(self.losses(parts)), 12)

    def test_every_schedule_resumes_to_the_bit(self) -> None:
        listed = subprocess.run([PROGRAM, "schedules"], text=True, capture_output=True, check=True).stdout
        names = [line.split()[0] for line in listed.splitlines()]
        self.assertIn("builtin_1f1b", names)
        for schedule in [name for name in names if name in ("builtin_1f1b", "zb1p", "dualpipe", "dualpipev")]:
            with self.subTest(schedule):
                whole, parts, save = self.new_folder(), self.new_folder(), self.new_folder()
                settings = [f"pipeline_schedule={schedule}", "train_iters=6", "use_distributed_optimizer=true", *MIXTURE]
                self.train(2, whole, settings)
                settings += [f"save={save}", f"load={save}"]
                self.train(2, parts, [*settings, "train_iters=3"])
                self.train(2, parts, settings)
                self.assertEqual(self.losses(parts), self.losses(whole))
                self.assertEqual(len(self.losses(parts)), 6)

    def test_another_layout_goes_on_where_the_first_one_stopped(self) -> None:
        whole, save = self.new_folder(), self.new_folder()
        settings = ["params_dtype=float64", *MIXTURE]
        self.train(1, whole, settings)
        self.train(4, self.new_folder(), [*settings, f"save={save}", "train_iters=6", "pipeline_model_parallel_size=2",
                                          "use_distributed_optimizer=true"])
        wanted = self.losses(whole)[6:]
        for world_size, more in ((1, []), (2, ["tensor_model_parallel_size=2"]), (4, ["expert_model_parallel_size=2"])):
            output = self.new_folder()
            self.train(world_size, output, [*settings, *more, f"load={save}"])
            for got, step in zip(self.losses(output), wanted, strict=True):
                self.assertEqual(got["iteration"], step["iteration"])
                self.assertLess(abs(got["lm_loss"] / step["lm_loss"] - 1), 1e-9)

    @unittest.skipUnless(FAULT_LIBRARY, "a sanitizer does not go with a library that is preloaded")
    def test_a_save_that_is_killed_leaves_the_older_checkpoint(self) -> None:
        whole = self.new_folder()
        self.train(2, whole, [])
        wanted = self.losses(whole)
        for victim, at in KILLS:
            for async_save in ("false", "true"):
                with self.subTest(victim=victim, at=at, async_save=async_save):
                    save, output = self.new_folder(), self.new_folder()
                    settings = [f"save={save}", f"load={save}", "save_interval=1", f"async_save={async_save}"]
                    processes = self.start(2, [f"output_dir={self.new_folder()}", *settings],
                                           faults={victim: self.fault("kill", at)})
                    texts = communicate_all(processes, timeout=60)
                    self.assertEqual([process.returncode for process in processes],
                                     [-signal.SIGKILL if rank == victim else PEER_LOST_CODE for rank in range(2)], texts)
                    self.assertEqual(sorted(os.listdir(save)), ["iter_0000001", "iter_0000002", "iter_0000003.tmp"])
                    log = self.train(2, output, settings)
                    self.assertIn(f"loaded {save}/iter_0000002: ", log)
                    self.assertEqual([path.name for path in save.glob("*.*")], [])
                    self.assertEqual(self.losses(output), wanted[2:])

    def test_the_published_package_opens_the_files_and_the_hashes_are_right(self) -> None:
        save = self.new_folder()
        self.train(4, self.new_folder(), [f"save={save}", "pipeline_model_parallel_size=2",
                                          "tensor_model_parallel_size=2", *MIXTURE])
        checkpoint = save / "iter_0000012"
        manifest = self.manifest(checkpoint)
        digest, name = (checkpoint / "manifest.json.sha256").read_text().split()
        self.assertEqual(name, "manifest.json")
        self.assertEqual(digest, hashlib.sha256((checkpoint / name).read_bytes()).hexdigest())
        files = []
        for file in manifest["files"]:
            self.assertEqual(file["sha256"], hashlib.sha256((checkpoint / file["name"]).read_bytes()).hexdigest())
            files.append(safe_open(checkpoint / file["name"], framework="np"))
        self.assertEqual(sorted([f["name"] for f in manifest["files"]] + ["manifest.json", "manifest.json.sha256"]),
                         sorted(os.listdir(checkpoint)))
        found = 0
        for tensor_name, tensor in manifest["tensors"].items():
            for piece in tensor["pieces"]:
                ranges = [f"{start}:{start + size}" for start, size in zip(piece["start"], piece["size"], strict=True)]
                whole = piece["size"] == tensor["shape"]
                values = files[piece["file"]].get_tensor(tensor_name if whole else f"{tensor_name}[{','.join(ranges)}]")
                self.assertEqual(list(values.shape), piece["size"])
                found += 1
        self.assertEqual(found, sum(len(file.keys()) for file in files))
        names = [name for name in manifest["tensors"] if not name.startswith("optimizer.state.")]
        self.assertIn("layers.2.mlp.router.expert_bias", names)
        self.assertEqual(len([name for name in names if name.endswith("qkv.weight")]), 4)
        self.assertEqual(len(names) * 4 - 3 * 2, len(manifest["tensors"]))  # Two buffers have no state.

    @unittest.skipUnless(FAULT_LIBRARY, "a sanitizer does not go with a library that is preloaded")
    def test_training_goes_on_during_an_asynchronous_save(self) -> None:
        save, output = self.new_folder(), self.new_folder()
        metrics, held = output / "metrics.jsonl", self.folder / "held"
        metrics.touch()
        processes = self.start(2, [f"output_dir={output}", f"save={save}", "save_interval=3", "async_save=true",
                                   "train_iters=9"], faults={0: self.fault("wait", 1, held)})
        end = time.monotonic() + 60
        while (metrics.read_text().count("\n") < 5 or not held.exists()) and time.monotonic() < end:
            time.sleep(0.01)
        try:
            self.assertGreaterEqual(metrics.read_text().count("\n"), 5)
            self.assertTrue(held.exists())
            self.assertEqual(os.listdir(save), ["iter_0000003.tmp"])
        finally:
            held.unlink(missing_ok=True)
            texts = communicate_all(processes, timeout=60)
        self.assertEqual([process.returncode for process in processes], [0, 0], texts)
        self.assertEqual(len(self.losses(output)), 9)
        self.assertEqual(sorted(os.listdir(save)), ["iter_0000006", "iter_0000009"])

    def test_mistakes_are_refused_before_anything_is_changed(self) -> None:
        save, output = self.new_folder(), self.new_folder()
        self.train(2, output, [f"save={save}", "train_iters=3"])
        before = (output / "metrics.jsonl").read_text()
        for expected, settings, message in (
                (CHECKPOINT_CODE, [f"load={save}", "vocab_size=512"],
                 f"[{save}/iter_0000003/manifest.json] vocab_size must be what this run has = 512, got 256; for example "
                 "vocab_size: 256"),
                (CHECKPOINT_CODE, [f"save={save}"],
                 "[save] must be a folder without checkpoints behind iteration 0, where this run begins, got "
                 f"{save}/iter_0000003; for example load: {save}, or another folder"),
                (CHECKPOINT_CODE, ["load=none", "exit_on_missing_checkpoint=true"],
                 "[load] must be a folder with a checkpoint, got none in none"),
                (CONFIGURATION_CODE, ["save_interval=5"], "save_interval must be 0 without a save folder")):
            for code, out, err in self.outcomes(2, [f"output_dir={output}", *settings]):
                self.assertEqual(code, expected, out + err)
                self.assertIn(message, err)
        self.assertEqual((output / "metrics.jsonl").read_text(), before)
        outcomes = self.outcomes(2, [f"output_dir={output}", f"save={self.folder}/text.py/x", "train_iters=2"])
        for code, out, err in outcomes:
            self.assertEqual(code, CHECKPOINT_CODE, out + err)
            self.assertIn("text.py/x] must be a readable folder, got: Not a directory", err)

    def test_what_only_some_ranks_see_or_can_read_stays_as_it_is(self) -> None:
        saved, output = self.new_folder(), self.new_folder()
        self.train(2, output, [f"save={saved}", "save_interval=2", "train_iters=4"])
        newest, older = (hashlib.sha256((saved / name / "manifest.json").read_bytes()).hexdigest()
                         for name in ("iter_0000004", "iter_0000002"))
        differs = ("[config] the checkpoint in load must be the same on every rank, got iter_0000004 with manifest "
                   f"{newest} on rank 0 and {{}} on rank 1; load must be a folder that all ranks share and nobody else saves into")
        file = "saved/iter_0000004/rank_00001.safetensors"
        unread = f"[{file}] must be a readable file, got: Permission denied on rank 1"
        for code, message, change in (
                (CONFIGURATION_CODE, differs.format(f"iter_0000002 with manifest {older}"),
                 lambda machine: shutil.rmtree(machine / "saved/iter_0000004")),
                (CONFIGURATION_CODE, differs.format("none"), lambda machine: shutil.rmtree(machine / "saved")),
                (CONFIGURATION_CODE, differs.format("iter_0000004 without a manifest"),
                 lambda machine: (machine / "saved/iter_0000004/manifest.json").unlink()),
                (CHECKPOINT_CODE, f"[{file}] must be a readable file, got: No such file or directory on rank 1; load "
                 "must be a folder that all ranks share", lambda machine: (machine / file).unlink()),
                (CHECKPOINT_CODE, unread, lambda machine: (machine / file).chmod(0)),
                (CHECKPOINT_CODE, "[saved] must be a readable folder, got: Permission denied",
                 lambda machine: (machine / "saved").chmod(0))):
            machines = [self.new_folder(), self.new_folder()]
            for machine in machines:
                shutil.copytree(saved, machine / "saved")
            change(machines[1])
            with self.subTest(message):
                before = [self.tree(machine) for machine in machines]
                settings = [f"output_dir={output}", "load=saved", "save=saved", "train_iters=6"]
                for got, out, err in self.outcomes(2, settings, machines):
                    self.assertEqual(got, code, out + err)
                    self.assertIn(message, err)
                self.assertEqual([self.tree(machine) for machine in machines], before)

    @staticmethod
    def tree(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
        """Every file and folder, with its bytes and when it was changed."""
        return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


if __name__ == "__main__":
    unittest.main()
