"""Ports of this machine."""

import random
import socket
from pathlib import Path

LOWEST = 10000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """One that was free a moment ago, on loopback.

    Below the ports that the kernel gives away by itself, where there are such: a connection or listener of another
    program does not come by it before it is used.
    """
    for port in random.sample(_not_given_away(), 20):
        if _is_free(port):
            return port
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _not_given_away() -> range:
    first = int(RANGE.read_text().split()[0]) if RANGE.exists() else 0
    return range(LOWEST, first) if first - LOWEST >= 1000 else range(LOWEST, 1 << 15)


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
