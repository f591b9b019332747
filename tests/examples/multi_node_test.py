"""examples/multi_node on two hosts of two processes each, which are network namespaces of this machine.

    multi_node_test.py BIN_FOLDER REPOSITORY

Exits with 77, and says why in one sentence, where the machine allows no namespaces or there is no torchrun.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BIN_FOLDER, REPOSITORY = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(REPOSITORY / "tests/support"))
import hosts  # noqa: E402
from outputs import communicate_all  # noqa: E402

TORCHRUN = pathlib.Path(sys.executable).parent / "torchrun"
SKIPPED = 77
BOUND_S = 100
SETTINGS = {"train_iters": 4, "log_interval": 1, "lr_warmup_iters": 1, "eval_interval": 0, "timeout_s": 60}


def prepare_data(folder):
    (folder / "text.py").write_text("".join(f"def f{i}(x):\n    return x * {i}\n\n" for i in range(4000)))
    subprocess.run([BIN_FOLDER / "pretrain_gpt", "prepare-data", "--input", folder / "text.py", "--output",
                    folder / "text"], check=True, stdout=subprocess.DEVNULL)


def arguments(folder, output):
    settings = {**SETTINGS, "data_path": folder / "text", "output_dir": folder / output}
    return ["configs/gpt_tiny.yaml", *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]


def environment(lan):
    return {"MASTER_ADDR": lan.addresses[0], "NNODES": "2", "NPROC": "2", "BUILD_DIR": str(BIN_FOLDER.parent),
            "GLOO_SOCKET_IFNAME": hosts.INTERFACE, "TORCHRUN": str(TORCHRUN)}


def metrics(folder, output):
    lines = [json.loads(line) for line in (folder / output / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == SETTINGS["train_iters"], lines
    return [(line["iteration"], line["lm_loss"], line["grad_norm"]) for line in lines]


def finish(processes):
    outputs = [output for output, _ in communicate_all(processes, BOUND_S)]
    for host, (process, output) in enumerate(zip(processes, outputs)):
        assert process.returncode == 0, f"host {host} ended with {process.returncode}: {output}"


def sent_bytes(host):
    text = subprocess.run(["ip", "-n", f"host{host}", "-s", "link", "show", hosts.INTERFACE], capture_output=True,
                          text=True, check=True).stdout
    return int(re.search(r"TX:.*\n\s*(\d+)", text)[1])


def train_on_one_host(lan, folder):
    finish([lan.start(0, [REPOSITORY / "examples/multi_node/train.sh", *arguments(folder, "one")],
                      env={**environment(lan), "NNODES": "1", "NPROC": "4", "NODE_RANK": "0"},
                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)])


def train_on_two_hosts(lan, folder):
    """The torchrun command, typed on both."""
    finish([lan.start(host, [REPOSITORY / "examples/multi_node/train.sh", *arguments(folder, "two")],
                      env={**environment(lan), "NODE_RANK": str(host)}, stdout=subprocess.PIPE,
                      stderr=subprocess.STDOUT, text=True) for host in range(2)])


FAKE_SLURM = {
    "scontrol": 'printf "%s\\n" {addresses}',
    # Drops its options, then runs the command on every host as srun would, one task each.
    "srun": 'while [ "${{1#--}}" != "$1" ]; do shift; done\n'
            'SLURM_NODEID=0 ip netns exec host0 "$@" & first=$!\n'
            'SLURM_NODEID=1 ip netns exec host1 "$@" & second=$!\n'
            'wait $first && wait $second',
}


def train_under_slurm(lan, folder):
    """The batch script, with stand-ins for the two Slurm commands that it calls."""
    programs = folder / "slurm"
    programs.mkdir()
    for name, body in FAKE_SLURM.items():
        (programs / name).write_text("#!/bin/sh\n" + body.format(addresses=" ".join(lan.addresses)) + "\n")
        (programs / name).chmod(0o755)
    variables = {**os.environ, **environment(lan), "PATH": f"{programs}:{os.environ['PATH']}",
                 "SLURM_JOB_NODELIST": "two-hosts", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7",
                 "SLURM_SUBMIT_DIR": str(REPOSITORY)}
    del variables["MASTER_ADDR"], variables["NNODES"]
    finish([subprocess.Popen(["bash", REPOSITORY / "examples/multi_node/train.sbatch", *arguments(folder, "slurm")],
                             env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)])


def check(folder):
    prepare_data(folder)
    with hosts.Lan(2) as lan:
        train_on_one_host(lan, folder)
        before = sent_bytes(0)
        assert before < 1e5, f"processes of one host sent {before} bytes to the other"
        for run, output in ((train_on_two_hosts, "two"), (train_under_slurm, "slurm")):
            run(lan, folder)
            assert metrics(folder, output) == metrics(folder, "one"), "two hosts compute what one does, to the bit"
        sent = sent_bytes(0) - before
        assert sent > 1e6, f"host 0 sent {sent} bytes on {hosts.INTERFACE}: messages took another way"
        print(f"multi-node: two hosts equal one; {sent} bytes went over {hosts.INTERFACE}")


def main():
    no_launcher = None if TORCHRUN.exists() else f"there is no torchrun beside {sys.executable} (TORCH_DIR is in use)"
    if reason := no_launcher or hosts.why_not():
        print(f"not run: {reason}")
        return SKIPPED
    hosts.enter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder  # Of torchrun's own files.
        check(pathlib.Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
