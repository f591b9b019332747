"""`python -m dualpipe ...` is the command `dualpipe` that was built with the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def command() -> Path:
    """The program itself."""
    return Path(__file__).parent / "bin" / "dualpipe"


def main() -> None:
    """Becomes the command; comes back only with an error."""
    program = str(command())
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
