"""What the programs that measure sleeping compute have in common: their command line, their report, their exit code."""

import argparse
import json
import sys

from bounds import all_reached, print_bounds
from rank_group import Failed


def numbers(text):
    return [int(part) for part in text.split(",")]


def parser_of(name, description, sizes, pace_ms):
    parser = argparse.ArgumentParser(prog=name, description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sizes", type=numbers, default=list(sizes), help="of a message, in bytes")
    parser.add_argument("--pace", type=numbers, default=list(pace_ms), help="F,I,W,F&B in milliseconds")
    return parser


def report_and_judge(options, measure, judge, print_report):
    report = measure(options)
    report["bounds"] = judge(report, options)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        print_report(report, options)
        print_bounds(report["bounds"])
    return 0 if all_reached(report["bounds"]) else 1


def leave_with(name, main):
    """Ends the process: 0 where every bound is reached, 1 where one is missed, 2 where nothing was measured."""
    try:
        sys.exit(main())
    except (Failed, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
