"""Figures beside their bounds, as every benchmark here prints them."""


def bound(value, limit, what, of="", unit=""):
    """`what` is measured, `of` says where the limit comes from."""
    return {"what": what, "value": value, "limit": limit, "of": of, "unit": unit, "reached": value <= limit}


def all_reached(bounds):
    return all(row["reached"] for row in bounds)


def print_bounds(bounds):
    width = max(len(row["what"]) for row in bounds)
    for row in bounds:
        digits = 1 if row["unit"] == "us" else 4
        value, limit = (f"{row[key]:.{digits}f}{row['unit'] and ' ' + row['unit']}" for key in ("value", "limit"))
        verdict = "reached" if row["reached"] else "MISSED"
        print(f"  {row['what']:{width}}  {value:>10}  at most {limit:>10}  {verdict:8}{row['of']}".rstrip())
