"""Free memory, ahead of ranks at real-time priority."""

import ctypes
import mmap
import pathlib
import re

KEPT = 1 << 30
MOST = 12 << 30


def make_room():
    """Has the kernel give up cached files, by taking memory for a moment.

    A rank that needs a page when none is free waits for a thread of the kernel, which processors full of real-time
    ranks keep from running: nothing goes on then.
    """
    size = min(MOST, _available() - KEPT)
    if size <= 0:
        return
    with mmap.mmap(-1, size) as taken:
        start = (ctypes.c_char * size).from_buffer(taken)
        ctypes.memset(start, 1, size)
        del start  # The map cannot be closed before.


def _available():
    found = re.search(r"MemAvailable: +(\d+) kB", pathlib.Path("/proc/meminfo").read_text())
    return int(found[1]) << 10 if found else 0
