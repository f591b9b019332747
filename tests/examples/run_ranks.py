"""run_ranks.py COUNT PROGRAM: starts PROGRAM once per rank, as a launcher does, and fails where one of them fails."""

import os
import socket
import subprocess
import sys


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main(count, program):
    meeting = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [subprocess.Popen([program], env={**os.environ, **meeting, "RANK": str(rank)}) for rank in range(count)]
    codes = [rank.wait() for rank in ranks]
    print("exit codes by rank:", codes)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
