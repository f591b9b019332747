"""The small examples, run as a user runs them: a process per rank. They compare themselves with one process.

    examples_test.py BIN_FOLDER REPOSITORY
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from outputs import communicate_all  # noqa: E402
from ports import free_port  # noqa: E402

BOUND_S = 100


def run_ranks(program, ranks):
    """Output of all ranks; fails where one does not end with 0."""
    common = dict(os.environ, WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    processes = [
        subprocess.Popen([program], env=dict(common, RANK=str(rank)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True)
        for rank in range(ranks)
    ]
    try:
        outputs = [output for output, _ in communicate_all(processes, BOUND_S)]
    finally:
        for process in processes:
            process.kill()
    for rank, process in enumerate(processes):
        assert process.returncode == 0, f"rank {rank} ended with {process.returncode}: {outputs[rank]}"
    return outputs


def check_example(bin_folder, name, ranks):
    for output in run_ranks(bin_folder / name, ranks):
        assert re.search(r"\d+ of \d+ pairs overlapped: passed", output), output
        assert not re.search(r"\b0 of 0 pairs", output), output


def check_custom_overlap(bin_folder, ranks):
    """Equal gradients; less waiting, by the hook and by phases, than in sequence."""
    outputs = run_ranks(bin_folder / "custom_overlap", ranks)
    for output in outputs:
        assert re.search(r"every gradient within \S+ of the sequence's: passed", output), output
    waited = dict(re.findall(r"^(in sequence|by hook|by phases) .* ms a step, +(\d+) ms of it waiting", outputs[0], re.M))
    assert len(waited) == 3, outputs[0]
    assert max(int(waited["by hook"]), int(waited["by phases"])) < int(waited["in sequence"]), outputs[0]
    assert re.search(r"^mlp\(\w\) .*dispatch\(\w\)", outputs[0], re.M), outputs[0]


def check_readme(repository):
    source = (repository / "examples/embedding/main.cc").read_text()
    assert len(source.splitlines()) < 40, "the embedding is to stay under 40 lines"
    assert f"```cpp\n{source}```" in (repository / "README.md").read_text(), "README.md shows examples/embedding/main.cc"


def check_embedding(bin_folder):
    """Its store is hosted by torchrun's agent."""
    output = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()),
         "--no-python", str(bin_folder / "embedding")],
        capture_output=True, text=True, timeout=BOUND_S, check=True).stdout
    losses = [float(loss) for loss in re.findall(r"step \d+: loss (\S+)", output)]
    assert len(losses) == 20 and losses[-1] < 0.1 * losses[0], output


def main():
    bin_folder, repository = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for ranks in (2, 4):
        check_example(bin_folder, "example_dualpipe", ranks)
        check_example(bin_folder, "example_dualpipev", ranks)
    for ranks in (1, 2):
        check_custom_overlap(bin_folder, ranks)
    check_readme(repository)
    if importlib.util.find_spec("torch") is None:
        print("the embedding was not run: this Python has no torchrun (TORCH_DIR is in use)")
    else:
        check_embedding(bin_folder)
    print("examples: all passed")


if __name__ == "__main__":
    main()
