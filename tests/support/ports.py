"""Ports of this machine."""

import socket


def free_port() -> int:
    """One that was free a moment ago, on loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
