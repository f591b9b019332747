"""What users see when a rank of `pretrain_gpt` fails: every process gone within the bound, with its code and the culprit.

failures_test.py PROGRAM

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
from trainer_ranks import prepare_data, rank_variables, train_command  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
CONFIGURATION, START, PEER_LOST, EXCEPTION, TIMEOUT, NOT_FINITE, CHECKPOINT, PREEMPTED = range(10, 18)
DEATH, STEP_TIMEOUT, BOUND_OF_START = 2, 4, 5
LISTENS = "0A"  # In /proc/net/tcp.
SLACK = 3  # Of the scheduler of a busy machine.

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
        end = time.monotonic() + 60
        while self.steps() < count:
            if time.monotonic() > end or self.processes[0].poll() is not None:
                raise AssertionError("it does not train: " + self.all_text())
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

    def test_field_report_59_a_rank_that_ends_before_the_first_step_and_in_a_step(self):
        for lazy in ({}, {"TORCH_GLOO_LAZY_INIT": "1"}):
            variables = {rank: lazy for rank in range(4)}
            with self.start(4, "timeout_s=15", variables=variables) as run:
                time.sleep(0.5)  # Some time between its start and the first step.
                run.processes[2].kill()
                codes = run.wait(25)
                self.assertNotIn(0, codes)
            with self.start(4, "timeout_s=15", variables=variables) as run:
                run.wait_for_steps(1)
                run.processes[2].kill()
                self.assertEqual(run.wait(DEATH)[:2], [PEER_LOST] * 2, run.all_text())

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

    def test_a_second_signal_leaves_at_once(self):
        with self.start(2, "step_timeout=100") as run:
            run.wait_for_steps(1)
            run.processes[0].send_signal(signal.SIGSTOP)  # Keeps the step from its end.
            run.processes[1].send_signal(signal.SIGTERM)
            time.sleep(0.5)
            self.assertIsNone(run.processes[1].poll(), run.all_text())
            run.processes[1].send_signal(signal.SIGTERM)
            self.assertEqual(run.wait(1, [1])[1], PREEMPTED)
            self.assertIn("second signal", run.text(1))

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
