"""What a chunk's data iterator gives in one step: the micro-batches that enter at its end of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class StepIterator:
    """The micro-batches `first` to `last - 1` of a step of `total`, taken from an iterator that gives all of them.

    The host's iterator is read on the first `next()` only, so that stages which read no data leave it alone. `finish()`
    reads what the step left, so that every chunk's iterator stands at the same sample afterwards.
    """

    def __init__(self, source: Iterator[Any], first: int, last: int, total: int) -> None:
        self._source = source
        self._first = first
        self._last = last
        self._total = total
        self._read = 0

    def __iter__(self) -> StepIterator:
        return self

    def __next__(self) -> Any:
        while self._read < self._first:
            self._skip()
        if self._read >= self._last:
            raise StopIteration
        self._read += 1
        return next(self._source)

    def finish(self) -> None:
        """Reads the rest of the step, if anything of it was read."""
        while 0 < self._read < self._total:
            self._skip()

    def _skip(self) -> None:
        next(self._source)
        self._read += 1
