"""What users see when a rank of `pretrain_gpt` fails: every process gone within the bound, with its code and the culprit.

failures_test.py PROGRAM [FAULT_LIBRARY]

FAULT_LIBRARY (tests/support/trainer_fault.cc) is preloaded into a rank that is to hang or throw.
Bounds are those of the README: 2 s for a death or an exception, step_timeout + 2 s for a hang, 5 s for a start, with
slack for a busy machine.
"""

import fcntl
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ports import free_port  # noqa: E402
from trainer_ranks import fault_variables, prepare_data, rank_variables, train_command  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
FAULT_LIBRARY = os.path.abspath(sys.argv.pop(1)) if sys.argv[1:2] and sys.argv[1].endswith(".so") else None
CONFIGURATION, START, PEER_LOST, EXCEPTION, TIMEOUT, NOT_FINITE, CHECKPOINT, PREEMPTED = range(10, 18)
DEATH, STEP_TIMEOUT, BOUND_OF_START = 2, 4, 5
CHECKPOINT_NAME = "iter_???????"
LISTENS = "0A"  # In /proc/net/tcp.
SLACK = 3  # Of the scheduler of a busy machine.

# Where a rank hangs, which rank, at what call (trainer_fault.cc), and the settings.
HANGS = [("forward", 2, 22, "pipeline_schedule=builtin_1f1b"),
         ("optimizer", 1, 50, "pipeline_schedule=builtin_1f1b"),
         ("backward", 0, 24, "pipeline_schedule=1f1b"),
         ("optimizer", 1, 50, "pipeline_schedule=1f1b"),
         ("backward", 3, 21, "pipeline_schedule=dualpipe", "micro_batch_size=1"),
         ("forward", 1, 22, "pipeline_schedule=builtin_1f1b", "tensor_model_parallel_size=2"),
         ("forward", 2, 22, "pipeline_schedule=builtin_1f1b", "tensor_model_parallel_size=2"),
         ("backward", 3, 22, "pipeline_schedule=1f1b", "tensor_model_parallel_size=2"),
         ("backward", 0, 22, "pipeline_schedule=1f1b", "tensor_model_parallel_size=2")]

CONFIG = f"""
num_layers: 4
hidden_size: 32
num_attention_heads: 2
seq_length: 32
micro_batch_size: 2
global_batch_size: 8
train_iters: 1000000
lr: 0.003
log_interval: 1
timeout_s: 20
step_timeout: {STEP_TIMEOUT}
"""


def accepts_connections(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def listeners(port):
    """The addresses of this machine on which something listens at that port."""
    tables = [pathlib.Path("/proc/net", name) for name in ("tcp", "tcp6")]
    rows = [row.split() for table in tables if table.exists() for row in table.read_text().splitlines()[1:]]
    ends = [row[1].split(":") for row in rows if row[3] == LISTENS]
    return [socket.inet_ntoa(bytes.fromhex(address)[::-1]) if len(address) == 8 else address
            for address, number in ends if int(number, 16) == port]


def checkpoints(save):
    """Of each whole checkpoint, by its name: its files. None while one is being removed."""
    try:
        return {folder.name: {file.name: file.read_bytes() for file in folder.iterdir()}
                for folder in save.glob(CHECKPOINT_NAME)}
    except FileNotFoundError:
        return None


def wait_until_still(look):
    """What it sees once that was the same for two seconds; None counts as a change."""
    seen, since, end = look(), time.monotonic(), time.monotonic() + 60
    while seen is None or time.monotonic() - since < 2:
        if time.monotonic() > end:
            raise AssertionError("it changes for ever")
        time.sleep(0.1)
        if (now := look()) != seen:
            seen, since = now, time.monotonic()
    return seen


class Run:
    """Ranks of one training as processes; all of them end with the test."""

    def __init__(self, folder, world_size, settings=(), per_rank=None, variables=None, port=None, stdout=None):
        """`stdout`: of some ranks, in the place of the file that the others write to."""
        self.output = pathlib.Path(tempfile.mkdtemp(dir=folder))
        port = port or free_port()
        self.processes = []
        for rank in range(world_size):
            environment = rank_variables(rank, world_size, port) | (variables or {}).get(rank, {})
            environment.setdefault("TORCHELASTIC_ERROR_FILE", str(self.output / f"error{rank}.json"))
            own = (per_rank or {}).get(rank, [])
            arguments = train_command(PROGRAM, folder / "gpt.yaml", [f"output_dir={self.output}", *settings, *own])
            with open(self.output / f"out{rank}", "wb") as log:
                self.processes.append(subprocess.Popen(arguments, env=environment, stdout=(stdout or {}).get(rank, log),
                                                       stderr=log))
        self.began = time.monotonic()

    def text(self, rank):
        return (self.output / f"out{rank}").read_text(errors="replace")

    def steps(self):
        try:
            return (self.output / "metrics.jsonl").read_text().count("\n")
        except FileNotFoundError:
            return 0

    def wait_for_steps(self, count):
        self.wait_for(lambda: self.steps() >= count)

    def wait_for(self, is_there):
        """Until it is there; a failure where a rank has ended and it is not, or the time is over."""
        end = time.monotonic() + 60
        while not is_there():
            has_ended = any(process.poll() is not None for process in self.processes)
            if time.monotonic() > end or (has_ended and not is_there()):
                raise AssertionError("it does not come: " + self.all_text())
            time.sleep(0.01)

    def all_text(self):
        return "\n".join(f"--- {rank}: {p.poll()}\n{self.text(rank)}" for rank, p in enumerate(self.processes))

    def wait(self, bound, ranks=None):
        """The exit codes; at once a failure where a process is there behind the bound."""
        end = time.monotonic() + bound + SLACK
        for rank in range(len(self.processes)) if ranks is None else ranks:
            try:
                self.processes[rank].wait(max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank} is there after {bound} s: {self.all_text()}") from None
        return [process.poll() for process in self.processes]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


class FailuresTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        data = prepare_data(PROGRAM, cls.folder)
        (cls.folder / "gpt.yaml").write_text(CONFIG + f"data_path: {data}\n")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def start(self, world_size, *settings, **more):
        return Run(self.folder, world_size, settings, **more)

    def blamed(self, run, rank):
        return re.findall(r"error: rank (\d+) failed", run.text(rank))

    def test_a_killed_rank_is_named_by_all(self):
        for victim in (0, 2):
            with self.start(4) as run:
                run.wait_for_steps(30)
                run.processes[victim].kill()
                codes = run.wait(DEATH)
                for rank in range(4):
                    if rank != victim:
                        self.assertEqual(codes[rank], PEER_LOST, run.all_text())
                        self.assertEqual(self.blamed(run, rank), [str(victim)], run.all_text())
                        error = json.loads((run.output / f"error{rank}.json").read_text())["message"]
                        self.assertIn(f"rank {victim} failed", error["message"])
                        self.assertEqual(error["errorCode"], PEER_LOST)
                        self.assertTrue((run.output / f"ring_rank{rank}.jsonl").exists())
                place = "and with it the store that all ranks share" if victim == 0 else r"failed in (the end of )?step \d"
                self.assertRegex(run.text(1), place)

    def test_a_stopped_rank_is_named_by_all_and_ended(self):
        for victim in (0, 1):
            with self.start(4) as run:
                run.wait_for_steps(2)
                run.processes[victim].send_signal(signal.SIGSTOP)
                codes = run.wait(STEP_TIMEOUT + DEATH)
                for rank in range(4):
                    if rank != victim:
                        self.assertEqual(codes[rank], TIMEOUT, run.all_text())
                        self.assertEqual(self.blamed(run, rank), [str(victim)], run.all_text())
                        self.assertNotIn("so do ranks", run.text(rank))
                self.assertEqual(codes[victim], -signal.SIGKILL)

    def with_fault(self, kind, part, at, moment):
        return fault_variables(FAULT_LIBRARY, kind, part, at, moment)

    @unittest.skipUnless(FAULT_LIBRARY, "a sanitizer does not go with a library that is preloaded")
    def test_a_rank_that_computes_for_ever_is_named_by_all(self):
        # Its watch goes on: no silence gives it away.
        places = {"forward": r"\S*\dF\d\S* \(stage \d, micro-batch \d", "optimizer": "the optimizer step",
                  "backward": r"\S*\d[BI]\d\S* \(stage \d, micro-batch \d"}
        for part, victim, at, *settings in HANGS:
            if settings[0].removeprefix("pipeline_schedule=") not in self.schedules():
                continue  # A trainer without the plugin.
            with self.subTest(part=part, victim=victim, settings=settings):
                run = self.hang(part, victim, at, settings)
                for rank in range(4):
                    self.assertEqual(self.blamed(run, rank), [str(victim)], run.all_text())
                    self.assertRegex(run.text(rank), rf"failed in step \d+, {places[part]}.*: it got no further for ")
                    error = json.loads((run.output / f"error{rank}.json").read_text())["message"]
                    self.assertEqual(error["errorCode"], TIMEOUT)
                    self.assertTrue((run.output / f"ring_rank{rank}.jsonl").exists())

    def hang(self, part, victim, at, settings):
        moment = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "moment"
        with self.start(4, *settings, variables={victim: self.with_fault("hang", part, at, moment)}) as run:
            run.wait_for(moment.exists)
            self.assertEqual(run.wait(STEP_TIMEOUT + DEATH), [TIMEOUT] * 4, run.all_text())
        return run

    def schedules(self):
        listed = subprocess.run([PROGRAM, "schedules"], check=True, capture_output=True, text=True).stdout
        return [name for name in ("builtin_1f1b", "1f1b", "dualpipe") if re.search(rf"^{name} ", listed, re.MULTILINE)]

    def test_an_exception_is_named_by_all(self):
        (self.folder / "late.txt").write_bytes(b"plain text " * 100 + b"\xff" * 100)
        subprocess.run([PROGRAM, "prepare-data", "--input", self.folder / "late.txt", "--output",
                        self.folder / "late"], check=True, stdout=subprocess.DEVNULL)
        with self.start(2, f"data_path={self.folder}/late", "vocab_size=128") as run:
            codes = run.wait(60)
            self.assertEqual(codes, [CONFIGURATION] * 2, run.all_text())
            names = {name for rank in range(2) for name in self.blamed(run, rank)}
            self.assertEqual(len(names), 1, run.all_text())
            for rank in range(2):
                self.assertRegex(run.text(rank), r"failed in step \d+.*\[vocab_size\] must be above every token")

    def test_an_exception_of_its_own_has_a_code_of_its_own(self):
        # No machine has the addresses that the embedding wants, with or without a sanitizer.
        sanitizer = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":allocator_may_return_null=1"}
        huge = [f"vocab_size={2**31 - 1}", f"hidden_size={2**15}", "pipeline_model_parallel_size=1"]
        with self.start(2, *huge, variables={rank: sanitizer for rank in range(2)}) as run:
            codes = run.wait(60)
            # Both fail by it; one that hears of the other's record first leaves by that.
            self.assertIn(EXCEPTION, codes, run.all_text())
            self.assertLessEqual(set(codes), {EXCEPTION, PEER_LOST}, run.all_text())
            for rank, code in enumerate(codes):
                self.assertIn("alloc", run.text(rank))
                error = json.loads((run.output / f"error{rank}.json").read_text())["message"]
                self.assertEqual(error["errorCode"], code)
                if code == PEER_LOST:
                    self.assertEqual(self.blamed(run, rank), [str(1 - rank)], run.all_text())

    def test_a_rank_whose_output_nobody_reads_leaves_too(self):
        reader, writer = os.pipe()
        try:
            capacity = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
            with self.start(2, "step_timeout=60", stdout={0: writer}) as run:
                end = time.monotonic() + 60
                while int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder) < capacity - 1024:
                    self.assertLess(time.monotonic(), end, run.all_text())
                    time.sleep(0.01)
                steps = -1  # Until it is stuck in a line, with the lock of its output.
                while steps != run.steps():
                    steps = run.steps()
                    time.sleep(0.5)
                run.processes[1].kill()
                self.assertEqual(run.wait(DEATH)[0], PEER_LOST, run.all_text())
                self.assertEqual(self.blamed(run, 0), ["1"], run.all_text())
                self.assertTrue((run.output / "error0.json").exists())
                self.assertTrue((run.output / "ring_rank0.jsonl").exists())
        finally:
            os.close(reader)
            os.close(writer)

    def test_logs_of_an_earlier_attempt_are_not_taken_for_this_ones(self):
        output = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        for rank in (0, 1, 7):
            (output / f"ring_rank{rank}.jsonl").write_text("old")
        with self.start(2, f"output_dir={output}", "train_iters=1") as run:
            self.assertEqual(run.wait(60), [0, 0], run.all_text())
        self.assertEqual(list(output.glob("ring_rank*")), [])

    @unittest.skipUnless(FAULT_LIBRARY, "a sanitizer does not go with a library that is preloaded")
    def test_field_report_59_a_rank_that_ends_before_the_first_step(self):
        for lazy in ({}, {"TORCH_GLOO_LAZY_INIT": "1"}):
            for kind, code in (("exit", 7), ("kill", -signal.SIGKILL)):
                moment = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "moment"
                variables = {rank: lazy for rank in range(4)}
                variables[2] = lazy | self.with_fault(kind, "start", 1, moment)
                with self.start(4, "timeout_s=15", variables=variables) as run:
                    run.wait_for(moment.exists)
                    self.assertEqual(run.wait(DEATH), [PEER_LOST, PEER_LOST, code, PEER_LOST], run.all_text())
                    for rank in (0, 1, 3):
                        self.assertRegex(run.text(rank), "error: rank 2 failed: its process has ended without a word")
                        self.assertEqual(self.blamed(run, rank), ["2"], run.all_text())
                        self.assertNotIn("step", run.text(rank))
                    self.assertEqual(run.steps(), 0)

    def test_field_report_59_a_rank_that_ends_in_a_step(self):
        for lazy in ({}, {"TORCH_GLOO_LAZY_INIT": "1"}):
            with self.start(4, "timeout_s=15", variables={rank: lazy for rank in range(4)}) as run:
                run.wait_for_steps(1)
                time.sleep(1)  # A watch says the place five times a second.
                run.processes[2].kill()
                self.assertEqual(run.wait(DEATH), [PEER_LOST, PEER_LOST, -signal.SIGKILL, PEER_LOST], run.all_text())
                for rank in (0, 1, 3):
                    self.assertEqual(self.blamed(run, rank), ["2"], run.all_text())
                    self.assertRegex(run.text(rank), r"error: rank 2 failed in (the end of )?step \d+.*: ")

    def test_signals_at_one_rank_stop_all_behind_the_same_step(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            with self.start(2, f"save={tempfile.mkdtemp(dir=self.folder)}") as run:
                run.wait_for_steps(2)
                run.processes[1].send_signal(number)
                codes = run.wait(30)
                self.assertEqual(codes, [PREEMPTED] * 2, run.all_text())
                steps = [re.search(r"stopped behind step (\d+), as a signal asked for; saved in ", run.text(rank))
                         for rank in range(2)]
                self.assertTrue(all(steps), run.all_text())
                self.assertEqual(steps[0].group(1), steps[1].group(1))
                self.assertEqual(int(steps[0].group(1)), run.steps())

    def test_a_stop_without_a_folder_says_that_nothing_is_saved(self):
        with self.start(1) as run:
            run.wait_for_steps(1)
            run.processes[0].send_signal(signal.SIGTERM)
            self.assertEqual(run.wait(30), [PREEMPTED])
            self.assertIn("nothing is saved, since `save` is not set", run.text(0))

    def test_signals_at_different_moments_stop_all_behind_one_step_with_one_checkpoint(self):
        for pause in (0.005, 0.1):  # Within a step, and over several.
            save = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
            with self.start(4, f"save={save}") as run:
                run.wait_for_steps(2)
                for rank in (3, 0, 2, 1):
                    run.processes[rank].send_signal(signal.SIGTERM if rank > 1 else signal.SIGUSR1)
                    time.sleep(pause)
                self.assertEqual(run.wait(30), [PREEMPTED] * 4, run.all_text())
                for rank in range(4):
                    self.assertIn(f"stopped behind step {run.steps()}, as a signal asked for; saved in ",
                                  run.text(rank))
                self.assertEqual([folder.name for folder in save.iterdir()], [f"iter_{run.steps():07}"])

    @unittest.skipUnless(FAULT_LIBRARY, "a sanitizer does not go with a library that is preloaded")
    def test_a_signal_leaves_the_code_of_a_failure_as_it_is(self):
        moment = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "moment"
        save = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        with self.start(4, f"save={save}", variables={2: self.with_fault("throw", "backward", 24, moment)}) as run:
            run.wait_for(moment.exists)
            for process in run.processes:
                process.send_signal(signal.SIGTERM)
            self.assertEqual(run.wait(DEATH), [PEER_LOST, PEER_LOST, EXCEPTION, PEER_LOST], run.all_text())
            for rank in range(4):
                self.assertEqual(self.blamed(run, rank), ["2"], run.all_text())
                self.assertIn("injected: no such expert", run.text(rank))
            self.assertEqual(list(save.iterdir()), [])

    def test_a_signal_behind_a_failure_that_this_rank_has_yet_to_hear_of(self):
        with self.start(4) as run:
            run.wait_for_steps(2)
            run.processes[1].send_signal(signal.SIGSTOP)
            run.processes[2].kill()
            self.assertEqual([run.wait(DEATH, [0, 3])[rank] for rank in (0, 3)], [PEER_LOST] * 2, run.all_text())
            run.processes[1].send_signal(signal.SIGTERM)  # Delivered as soon as it goes on.
            run.processes[1].send_signal(signal.SIGCONT)
            self.assertEqual(run.wait(DEATH, [1])[1], PEER_LOST, run.all_text())
            self.assertEqual(self.blamed(run, 1), ["2"], run.all_text())

    def test_a_second_signal_leaves_at_once_and_harms_nothing(self):
        save = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        with self.start(4, "step_timeout=100", f"save={save}", "save_interval=3") as run:
            run.wait_for(lambda: len(list(save.glob(CHECKPOINT_NAME))) >= 2)
            run.processes[3].send_signal(signal.SIGSTOP)  # Keeps the step from its end.
            saved = wait_until_still(lambda: checkpoints(save))
            run.processes[1].send_signal(signal.SIGTERM)
            time.sleep(0.5)
            self.assertEqual([process.poll() for process in run.processes], [None] * 4, run.all_text())
            run.processes[1].send_signal(signal.SIGTERM)
            self.assertEqual(run.wait(1, [0, 1, 2])[:3], [PREEMPTED] * 3, run.all_text())
            run.processes[3].send_signal(signal.SIGCONT)
            self.assertEqual(run.wait(1), [PREEMPTED] * 4, run.all_text())
            for rank in range(4):
                self.assertIn("left at a second signal; nothing was saved since the last checkpoint", run.text(rank))
                self.assertEqual(self.blamed(run, rank), ["1"], run.all_text())
            self.assertGreaterEqual(len(saved), 2)
            self.assertEqual(checkpoints(save), saved)
        newest = max(int(folder.name[5:]) for folder in save.glob(CHECKPOINT_NAME))
        with self.start(4, f"load={save}", f"train_iters={newest + 1}") as run:
            self.assertEqual(run.wait(60), [0] * 4, run.all_text())
            self.assertIn(f"iteration {newest}, ", run.text(0))

    def test_a_signal_while_ranks_meet_leaves_at_once(self):
        port = free_port()
        with self.start(1, port=port, variables={0: {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}}) as run:
            end = time.monotonic() + 60  # Until it hosts the store.
            while not accepts_connections(port):
                self.assertLess(time.monotonic(), end, run.all_text())
                time.sleep(0.05)
            run.processes[0].send_signal(signal.SIGTERM)
            self.assertEqual(run.wait(1), [PREEMPTED], run.all_text())

    def test_steps_that_are_not_finite(self):
        with self.start(2, "lr=1e30", "max_skipped_steps=3", "clip_grad=0") as run:
            self.assertEqual(run.wait(60), [NOT_FINITE] * 2, run.all_text())
            self.assertRegex(run.text(0), r"step \d+ is skipped: not finite, first in rank \d, stage \d, micro-batch 0: the ")
            self.assertRegex(run.text(1), r"were not finite in 4 step\(s\) in a row, and max_skipped_steps is 3; it began "
                                          r"in rank \d, stage \d, micro-batch 0: the ")

    def test_ranks_that_are_there_twice(self):
        with self.start(3, variables={2: {"RANK": "1"}}) as run:
            codes = run.wait(BOUND_OF_START)
            self.assertEqual(codes, [START] * 3, run.all_text())
            self.assertIn("[RANK] must be a process's own, got 1 for process", run.text(0))

    def test_a_rank_beyond_the_number_of_ranks(self):
        with self.start(3, variables={0: {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
                                      1: {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}}) as run:
            codes = run.wait(BOUND_OF_START)
            self.assertNotIn(0, codes, run.all_text())
            self.assertIn("[WORLD_SIZE] must be the same on every rank, got 2 on rank 0 and 3 on rank 2",
                          run.text(2))
        with self.start(2, variables={1: {"RANK": "2"}}) as run:
            codes = run.wait(BOUND_OF_START)
            self.assertEqual(codes, [CONFIGURATION] * 2, run.all_text())
            self.assertIn("[RANK] must be below WORLD_SIZE = 2, got 2", run.text(0))
            self.assertIn("[rank 2] error: [RANK] must be below WORLD_SIZE = 2, got 2", run.text(1))
            error = json.loads((run.output / "error1.json").read_text())["message"]
            self.assertIn("[RANK] must be below WORLD_SIZE = 2, got 2", error["message"])
            self.assertEqual(error["errorCode"], CONFIGURATION)

    def test_variables_that_contradict_slurms(self):
        slurm = {"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}
        with self.start(2, variables={rank: {**slurm, "SLURM_PROCID": str(rank)} for rank in range(2)}) as run:
            self.assertEqual(run.wait(BOUND_OF_START), [CONFIGURATION] * 2, run.all_text())
            self.assertIn("[WORLD_SIZE] must not contradict SLURM_NTASKS = 4", run.text(0))

    def test_the_store_of_one_machine_listens_on_its_loopback(self):
        # Each client's name would be asked for else, and a server of names that is slow would hold up the run.
        for name in ("127.0.0.1", "localhost"):
            port = free_port()
            with self.start(2, port=port, variables={rank: {"MASTER_ADDR": name} for rank in range(2)}) as run:
                run.wait_for_steps(1)
                self.assertEqual(listeners(port), ["127.0.0.1"])

    def test_a_port_of_something_else(self):
        with socket.socket() as foreign:
            foreign.bind(("127.0.0.1", 0))
            foreign.listen(16)
            with self.start(2, port=foreign.getsockname()[1]) as run:
                self.assertEqual(run.wait(BOUND_OF_START), [START] * 2, run.all_text())
                self.assertIn("[MASTER_PORT] must be a free port", run.text(0))
                self.assertIn("[MASTER_PORT] must be the port of rank 0's store", run.text(1))

    def test_a_rank_that_is_absent(self):
        with self.start(2, "timeout_s=2", variables={rank: {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
                                                     for rank in range(2)}) as run:
            self.assertEqual(run.wait(2 + BOUND_OF_START), [START] * 2, run.all_text())
            self.assertIn("[WORLD_SIZE] all 3 ranks must be there within timeout_s, got nothing of rank 2",
                          run.text(0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
