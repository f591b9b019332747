"""Worlds of Gloo processes for these tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PATHS = [str(HERE), str(HERE.parent / "support")]
sys.path[:0] = [path for path in PATHS if path not in sys.path]

from world import Run, Worlds  # noqa: E402


@pytest.fixture(scope="session")
def titan_worlds() -> Iterator[Worlds]:
    worlds = Worlds([*PATHS, *sys.path])
    yield worlds
    worlds.close()


@pytest.fixture
def world(titan_worlds: Worlds) -> Run:
    """``world(size, function, ...)``: results of every rank."""
    return titan_worlds.run


@pytest.fixture
def fresh_world(titan_worlds: Worlds) -> Run:
    """The same in processes of its own, for what leaves them unusable."""
    return titan_worlds.run_fresh
