"""Gloo processes that stay, and run one function after the other: starting Python and torch costs more than most tests.

    worlds = Worlds(paths)                            # folders that functions are imported from
    results = worlds.run(4, scenarios.train, 8)       # result of every rank; the same call is run once
    results = worlds.run_fresh(2, scenarios.fail)     # in processes of its own

An exception of a rank is raised here with its rank and traceback, and ends that world: the next call starts another.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from ports import free_port  # noqa: E402

Run = Callable[..., list[Any]]
_LIMIT_S = 150.0
_CALLS = 12  # Of one world. Process groups that a host makes and keeps have threads of their own, some fifty per call.
_PRELOADED = ["torch", "torch.distributed.pipelining", "torch.distributed.fsdp"]


class RankFailed(AssertionError):
    """A rank raised, ended or did not answer in time."""


class Worlds:
    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(paths)
        self._worlds: dict[int, World] = {}
        self._known: dict[Any, list[Any]] = {}

    def run(self, size: int, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        key = (size, function.__module__, function.__qualname__, args, tuple(sorted(options.items())))
        if key not in self._known:
            try:
                self._known[key] = self._world(size).run(function, *args, **options)
            except RankFailed:
                self._worlds.pop(size).close()
                raise
        return self._known[key]

    def _world(self, size: int) -> World:
        if size in self._worlds and self._worlds[size].calls >= _CALLS:
            self._worlds.pop(size).close()
        if size not in self._worlds:
            self._worlds[size] = World(size, self._paths)
        return self._worlds[size]

    def run_fresh(self, size: int, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        world = World(size, self._paths)
        try:
            return world.run(function, *args, **options)
        finally:
            world.close()

    def close(self) -> None:
        for world in self._worlds.values():
            world.close()


class World:
    def __init__(self, size: int, paths: Sequence[str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        port = free_port()
        self.calls = 0
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, port, list(paths)), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        self.calls += 1
        call = pickle.dumps((function, args, options))
        for pipe in self._pipes:
            pipe.send_bytes(call)
        results: dict[int, Any] = {}
        while len(results) < len(self._pipes):
            open_pipes = [pipe for rank, pipe in enumerate(self._pipes) if rank not in results]
            ready = wait(open_pipes, timeout=_LIMIT_S)
            if not ready:
                missing = [rank for rank in range(len(self._pipes)) if rank not in results]
                raise RankFailed(f"ranks {missing} gave no answer within {_LIMIT_S} s to {function.__qualname__}{args}")
            for pipe in ready:
                rank = self._pipes.index(pipe)
                results[rank] = self._receive(rank)
        return [results[rank] for rank in sorted(results)]

    def _receive(self, rank: int) -> Any:
        try:
            failed, value = pickle.loads(self._pipes[rank].recv_bytes())
        except EOFError as end:
            raise RankFailed(f"rank {rank} ended") from end
        if failed:
            raise RankFailed(f"rank {rank}:\n{value}")
        return value

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()


def _serve(pipe: Connection, rank: int, size: int, port: int, paths: list[str]) -> None:
    import torch
    import torch.distributed as dist

    sys.path[:0] = [path for path in paths if path not in sys.path]
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size,
                            timeout=timedelta(seconds=100))
    while True:
        try:
            function, args, options = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        pipe.send_bytes(_answer(function, args, options))


def _answer(function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> bytes:
    try:
        return pickle.dumps((False, function(*args, **options)))
    except BaseException:
        return pickle.dumps((True, traceback.format_exc()))
