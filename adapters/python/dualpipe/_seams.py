"""Names of a framework that an adapter uses beyond the public ones: whether this installation has them.

A seam is (module, attribute path), ("torch.nn.parallel", "DistributedDataParallel.no_sync") say.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any


def resolve(module: str, path: str) -> Any:
    """The object behind a seam; raises ``ImportError`` or ``AttributeError`` where it is missing."""
    value: Any = importlib.import_module(module)
    for name in path.split("."):
        value = getattr(value, name)
    return value


def missing(seams: Iterable[tuple[str, str]]) -> list[str]:
    """Those that are not there, as ``"torch.nn.parallel.DistributedDataParallel.no_sync"``."""
    return [f"{module}.{path}" for module, path in seams if not _is_there(module, path)]


def _is_there(module: str, path: str) -> bool:
    try:
        resolve(module, path)
    except (ImportError, AttributeError):
        return False
    return True
