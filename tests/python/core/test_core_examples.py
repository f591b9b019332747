"""The diffs of the adapters' examples, in the places where users apply them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from example_runs import apply_diff, changed_lines, example_file

ADAPTERS = ["torch_pipelining", "torchtitan", "megatron_core"]


@pytest.mark.parametrize("is_clone", [True, False])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_diff_applies_in_a_clone_and_outside_of_one(adapter: str, is_clone: bool, tmp_path: Path) -> None:
    folder = tmp_path / "adapters" / adapter / "example"
    folder.mkdir(parents=True)
    if is_clone:
        subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    shutil.copy(example_file(adapter, "train.py"), folder)
    before = (folder / "train.py").read_text()
    apply_diff(adapter, folder)
    old, new = before.splitlines(), (folder / "train.py").read_text().splitlines()
    assert len(set(new) - set(old)) + len(set(old) - set(new)) == changed_lines(adapter) <= 10
    apply_diff(adapter, folder, "--reverse")
    assert (folder / "train.py").read_text() == before
