"""Waits for the ranks of a measurement. Finds tests/support by the path that bench_overlap.py has set."""

from outputs import communicate_all


class Failed(Exception):
    """Nothing could be measured; says why."""


TIMEOUT_S = 600


def outputs_of(ranks, what):
    """What each rank, a Popen whose streams are text in pipes, printed; Failed with its own words where one fails."""
    outputs = communicate_all(ranks, TIMEOUT_S)
    for rank, (process, (_, error)) in enumerate(zip(ranks, outputs)):
        if process.returncode != 0:
            raise Failed(f"rank {rank} of `{what}` ended with {process.returncode}: {error.strip()[-2000:]}")
    return [output for output, _ in outputs]
