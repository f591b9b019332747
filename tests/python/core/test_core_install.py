"""What `pip install` says where it cannot build the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from example_runs import ROOT


def test_a_build_that_sees_no_torch_says_what_to_do(tmp_path: Path) -> None:
    """As in pip's isolated environment: an interpreter without the packages of the one that started pip."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    command = ["cmake", "-D", "SKBUILD=2", "-D", f"Python_EXECUTABLE={python}", "-P", "cmake/DualPipePython.cmake"]
    clean = {name: value for name, value in os.environ.items() if name != "TORCH_DIR"}
    run = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True)
    assert run.returncode == 1
    assert (
        f"dualpipe is built for the torch that is installed, and {python} sees none, as in an isolated build of pip: "
        "install torch and scikit-build-core, then run `pip install --no-build-isolation .` instead"
    ) in " ".join(run.stderr.split())
