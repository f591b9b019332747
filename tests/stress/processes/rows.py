"""A line of the table of `make stress`, as tests/stress/row.h has it."""

import json


def print_row(what: str, wanted: str, measured: str, reached: bool, seed: int | None = None) -> bool:
    print(json.dumps({"what": what, "wanted": wanted, "measured": measured,
                      "seed": "" if seed is None else str(seed), "reached": reached}), flush=True)
    return reached
