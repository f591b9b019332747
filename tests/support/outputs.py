"""What several processes print, read from all of them at once: one whose pipe is full waits for its reader, and the
others perhaps for it."""

from concurrent.futures import ThreadPoolExecutor


def communicate_all(processes, timeout):
    """communicate() of each Popen, in their order; raises TimeoutExpired where one takes longer than `timeout` seconds."""
    with ThreadPoolExecutor(max_workers=len(processes)) as readers:
        return list(readers.map(lambda process: process.communicate(timeout=timeout), processes))
