"""Command-line arguments, in Megatron's spelling.

`--pipeline-schedule` names the schedule; DUALPIPE_SCHEDULE, which `dualpipe ab` sets, goes before it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from .placement import SCHEDULES, check_schedule

_VIRTUAL = "virtual_pipeline_model_parallel_size"


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds what this package reads; leaves out what the host's own parser has."""
    known = {action.dest for action in parser._actions}
    group = parser.add_argument_group("pipeline schedule")
    if "pipeline_schedule" not in known:
        group.add_argument(
            "--pipeline-schedule",
            default=None,
            help=f"{', '.join(SCHEDULES)}; default: the built-in one that fits --{_VIRTUAL.replace('_', '-')}",
        )
    if _VIRTUAL not in known:
        group.add_argument(f"--{_VIRTUAL.replace('_', '-')}", type=int, default=None)
    return parser


def resolve_arguments(args: argparse.Namespace) -> argparse.Namespace:
    """Settles `args.pipeline_schedule` and what depends on it, in place.

    `virtual_pipeline_model_parallel_size` stays under interleaved_1f1b alone, 2 where it was not given. A schedule that
    the command line names beside a virtual size that it cannot take raises `ValueError`.
    """
    virtual = getattr(args, _VIRTUAL)
    forced = os.environ.get("DUALPIPE_SCHEDULE")
    if args.pipeline_schedule and not forced and virtual is not None and args.pipeline_schedule != "interleaved_1f1b":
        raise ValueError(
            f"[{args.pipeline_schedule}] {_VIRTUAL} is of interleaved_1f1b alone, got {virtual}; leave it out"
        )
    schedule = forced or args.pipeline_schedule or ("interleaved_1f1b" if virtual else "builtin_1f1b")
    check_schedule(schedule)
    args.pipeline_schedule = schedule
    setattr(args, _VIRTUAL, (virtual or 2) if schedule == "interleaved_1f1b" else None)
    return args


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """`add_arguments`, `parse_args` and `resolve_arguments` in one."""
    return resolve_arguments(add_arguments(parser).parse_args(argv))
