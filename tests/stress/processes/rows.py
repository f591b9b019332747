"""A line of the table of `make stress`, as tests/stress/row.h has it."""

import json
import sys


def print_row(what: str, wanted: str, measured: str, reached: bool, seed: int | None = None) -> bool:
    print(json.dumps({"what": what, "wanted": wanted, "measured": measured,
                      "seed": "" if seed is None else str(seed), "reached": reached}), flush=True)
    return reached


def print_skipped(what: str, wanted: str, reason: str) -> bool:
    """What this machine does not allow to try: not reached, but no miss of the reduced form. False."""
    print(json.dumps({"what": what, "wanted": wanted, "measured": f"not tried: {reason}", "seed": "",
                      "reached": False, "skipped": reason}), flush=True)
    return False


def tell(text: str) -> None:
    """How far a program is, and what it has found; on standard error."""
    print(text, file=sys.stderr, flush=True)
