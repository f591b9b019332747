"""Processes that measure what they are told, as groups that take turns: a group that is not asked is stopped.

A rank reads requests and writes answers as lines of JSON (tests/bench/support/serve.h says the same for C++); an empty
request is answered by an empty one. What all start at one moment, {"at": ..}, starts then by the
machine's steady clock, in seconds.
"""

import ctypes
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from ports import free_port  # noqa: E402

PR_SET_PDEATHSIG = 1
PRIORITY = 20       # Of real-time ranks.
# Memory that is freed stays with the process, as on a device whose allocator caches: else the kernel takes large
# tensors back and clears their pages again for the next ones.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
START_S = 0.03      # From the asking until all ranks have to be ready.
TIMEOUT_S = 120


def die_with_parent():
    """A rank that is stopped would not see that nobody will ask any more."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Failed(Exception):
    """Nothing could be measured; says why."""


class RankGroup:
    """`count` processes of one command. With count 0 it is one process that is told nothing of ranks."""

    def __init__(self, name, command, count):
        self.name = name
        where = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(max(count, 1)), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(free_port())}
        callers = {key: value for key, value in os.environ.items() if key != "DUALPIPE_GLOO_THREADS"}
        shared = {**callers, **KEEP_MEMORY, **where, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.ranks = [subprocess.Popen([str(part) for part in command], env={**shared, "RANK": str(rank)}, text=True,
                                       bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       preexec_fn=die_with_parent)
                      for rank in range(max(count, 1))]
        self.stopped = False
        self.policies = {}  # Of threads that are ahead, what they had before.

    def wait_until_up(self):
        """Starting takes processors from those that measure."""
        self._ask({})

    def real_time(self, on):
        """Ahead of everything else, or as they were before. False where the user may not."""
        threads = [int(task.name) for rank in self.ranks for task in pathlib.Path(f"/proc/{rank.pid}/task").iterdir()]
        try:
            for thread in threads:
                policy = os.sched_getscheduler(thread)
                if on and policy != os.SCHED_FIFO:
                    self.policies[thread] = policy
                    os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(PRIORITY))
                elif not on and policy == os.SCHED_FIFO:  # Of its own, or of the thread that began it meanwhile.
                    os.sched_setscheduler(thread, self.policies.pop(thread, os.SCHED_OTHER), os.sched_param(0))
        except PermissionError:
            return False
        return True

    def prepare(self, request):
        """A rehearsal: nothing sleeps, nothing is measured."""
        return self._ask(request)

    def measure(self, request):
        """One answer per rank. Behind a rehearsal, since memory and caches were others' while the group was stopped."""
        self._ask(request, stop=False)
        return self._ask({**request, "at": time.monotonic() + START_S})

    def _ask(self, request, stop=True):
        self._signal(signal.SIGCONT)
        for rank in self.ranks:
            rank.stdin.write(json.dumps(request) + "\n")
            rank.stdin.flush()
        answers = self._answers()
        if stop:
            self._signal(signal.SIGSTOP)
        return answers

    def _answers(self):
        """By rank. Who fails first is told of, whatever the others wait for."""
        answers, until = {}, time.monotonic() + TIMEOUT_S
        while len(answers) < len(self.ranks):
            silent = {rank.stdout: number for number, rank in enumerate(self.ranks) if number not in answers}
            ready = select.select(list(silent), [], [], max(0.0, until - time.monotonic()))[0]
            if not ready:
                numbers = ", ".join(str(number) for number in silent.values())
                raise Failed(f"rank {numbers} of {self.name} did not answer within {TIMEOUT_S} s")
            answers |= {silent[stream]: self._answer(silent[stream]) for stream in ready}
        return [answers[number] for number in range(len(self.ranks))]

    def _answer(self, number):
        line = self.ranks[number].stdout.readline()
        answer = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise Failed(f"rank {number} of {self.name}: {answer['error']}")
        return answer

    def _signal(self, number):
        if self.stopped != (number == signal.SIGSTOP):
            for rank in self.ranks:
                rank.send_signal(number)
            self.stopped = number == signal.SIGSTOP

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        self._signal(signal.SIGCONT)
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            if failure:
                rank.kill()
            try:
                rank.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
            rank.stdout.close()


def makespan_ms(answers):
    """From the moment that all began at until the last one was through."""
    return 1e3 * (max(a["ended"] for a in answers) - min(a["began"] for a in answers))


def cpu_us(answers, per):
    """Of all processes together, per "actions" or "operations"."""
    return 1e6 * sum(a["cpu_s"] for a in answers) / sum(a[per] for a in answers)
