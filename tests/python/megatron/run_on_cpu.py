"""Runs a Megatron training script, unmodified, on the CPU: `run_on_cpu.py train.py [its arguments]`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import cpu_shim  # noqa: E402

cpu_shim.install()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
