"""Worlds of Gloo processes that run cases on Megatron-Core, and the whole model that they are compared with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PATHS = [str(HERE), str(HERE.parent / "support")]
sys.path[:0] = [path for path in PATHS if path not in sys.path]

from megatron_cases import Case, Outcome, RunCase, run_cases  # noqa: E402
from world import Run, Worlds  # noqa: E402


@pytest.fixture(scope="session")
def megatron_worlds() -> Iterator[Worlds]:
    worlds = Worlds([*PATHS, *sys.path])
    yield worlds
    worlds.close()


@pytest.fixture
def world(megatron_worlds: Worlds) -> Run:
    """`world(size, function, ...)`: results of every rank."""
    return megatron_worlds.run


@pytest.fixture
def run(megatron_worlds: Worlds) -> RunCase:
    """`run(case)`: what every rank of its world found."""

    def run_one(case: Case) -> list[Outcome]:
        outcomes = [found for (found,) in megatron_worlds.run(case.world_size, run_cases, (case,))]
        assert not any(outcome.error for outcome in outcomes), "\n".join(outcome.error for outcome in outcomes)
        return outcomes

    return run_one


@pytest.fixture
def whole(megatron_worlds: Worlds) -> Callable[[Case], Outcome]:
    """`whole(case)`: the same of the whole model in one process."""

    def run_whole(case: Case) -> Outcome:
        ((outcome,),) = megatron_worlds.run(1, run_cases, (case.whole(),))
        assert not outcome.error, outcome.error
        return outcome

    return run_whole
