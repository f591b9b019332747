"""Figures beside their bounds, as every benchmark here prints them."""


def bound(value, limit, what, of="", unit=""):
    """`what` is measured, `of` says where the limit comes from."""
    return {"what": what, "value": value, "limit": limit, "of": of, "unit": unit, "reached": value <= limit}


def missed(what, why):
    """A bound that nothing could be held against."""
    return {"what": what, "value": None, "limit": None, "of": why, "unit": "", "reached": False}


def all_reached(bounds):
    return all(row["reached"] for row in bounds)


def figure(row, key):
    digits = 1 if row["unit"] in ("us", "s") else 4
    return f"{row[key]:.{digits}f}{row['unit'] and ' ' + row['unit']}"


def print_bounds(bounds):
    width = max(len(row["what"]) for row in bounds)
    for row in bounds:
        if row["value"] is None:
            print(f"  {row['what']:{width}}  {'':10}          {'':10}  MISSED  {row['of']}")
            continue
        verdict = "reached" if row["reached"] else "MISSED"
        print(f"  {row['what']:{width}}  {figure(row, 'value'):>10}  at most {figure(row, 'limit'):>10}  {verdict:8}"
              f"{row['of']}".rstrip())
