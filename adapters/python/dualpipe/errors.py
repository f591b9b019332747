"""What the engine raises of its own; exceptions of Python code come out as they went in, with a note."""

from __future__ import annotations


class ScheduleError(ValueError):
    """A caller's mistake: "[origin] what was wanted, what was given, a value that works".

    In a step it is raised on the rank that made it, with a note of where, and ends the pipeline; the others get
    PipelineError.
    """


class PipelineError(RuntimeError):
    """A pipeline failed; every later call on it raises this too. Destroy it and its process group.

    Raised on the ranks that stop because another one failed, and, from what was nested in it (`__cause__`), on a rank
    whose failure was no exception of Python's.

    Attributes:
        rank: the rank that failed first (of the world, where the pipeline has one, else of the pipeline).
        action: what it did, as a cell of the schedule ("3B2") or in words.
        cause: the message of the original exception.
    """

    def __init__(self, message: str, rank: int = -1, action: str = "", cause: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.action = action
        self.cause = cause
