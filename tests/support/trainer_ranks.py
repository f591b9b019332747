"""What it takes to start ranks of `pretrain_gpt` as processes of this machine: data, environment, command line."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

_LAUNCHER = re.compile("^(RANK|WORLD_SIZE|LOCAL_|MASTER_|SLURM_|PMI_|OMPI_|TORCHELASTIC_|GROUP_|DUALPIPE_)")


def prepare_data(program: str | Path, folder: Path, functions: int = 2000) -> Path:
    """The prefix of a data set of byte tokens in `folder`, made from text.py, which is written there."""
    source, prefix = folder / "text.py", folder / "text"
    source.write_text("".join(f"def function_{i}(x):\n    return x * {i} + {i % 7}\n\n" for i in range(functions)))
    subprocess.run([program, "prepare-data", "--input", source, "--output", prefix], check=True,
                   stdout=subprocess.DEVNULL, timeout=60)
    return prefix


def own_variables() -> dict[str, str]:
    """The environment of this process, without what a launcher or a scheduler has put there."""
    return {key: value for key, value in os.environ.items() if not _LAUNCHER.match(key)}


def rank_variables(rank: int, world_size: int, port: int, address: str = "127.0.0.1") -> dict[str, str]:
    """The environment of a rank. `address` and `port` are where rank 0 hosts the store."""
    return own_variables() | {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size),
                              "MASTER_ADDR": address, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}


def fault_variables(library: str | Path, kind: str, part: str, at: int, file: Path) -> dict[str, str]:
    """What a rank's environment has more so that a fault hits it (trainer_fault.cc, which `library` is built from)."""
    return {"LD_PRELOAD": str(library), "TRAINER_FAULT_KIND": kind, "TRAINER_FAULT_IN": part,
            "TRAINER_FAULT_AT": str(at), "TRAINER_FAULT_FILE": str(file)}


def train_command(program: str | Path, config: Path, settings: Iterable[str]) -> list[str]:
    """`settings` are key=value."""
    return [str(program), "train", "--config", str(config),
            *(word for setting in settings for word in ("--set", setting))]
