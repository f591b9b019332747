"""What this package uses of torchtitan beyond a model's specification, checked once at import.

An unknown version of torchtitan warns; a seam that is gone stops the import with its name.
"""

from __future__ import annotations

import importlib
import warnings
from importlib.metadata import PackageNotFoundError, version

TESTED = ("0.3.0",)

# (module, attribute path). The README says what each is for.
SEAMS: tuple[tuple[str, str], ...] = (
    ("torchtitan.distributed", "ParallelDims.get_mesh"),
    ("torchtitan.distributed.pipeline_parallel", "_generate_llm_fqn_per_model_part"),
    ("torchtitan.distributed.pipeline_parallel", "_split_module"),
    ("torchtitan.distributed.pipeline_parallel", "pipeline_llm"),
    ("torchtitan.distributed.pipeline_parallel", "pipeline_vlm"),
    ("torchtitan.protocols.model_spec", "ModelSpec"),
)


def installed_version() -> str:
    """Of the distribution; "unknown" for a checkout on the path."""
    try:
        return version("torchtitan")
    except PackageNotFoundError:
        return "unknown"


def missing_seams() -> list[str]:
    """``"torchtitan.distributed.pipeline_parallel._split_module"`` and the like, of what is not there."""
    return [f"{module}.{path}" for module, path in SEAMS if not _is_there(module, path)]


def _is_there(module: str, path: str) -> bool:
    try:
        value: object = importlib.import_module(module)
        for name in path.split("."):
            value = getattr(value, name)
    except (ImportError, AttributeError):
        return False
    return True


def check_torchtitan() -> None:
    """Raises ``ImportError`` for missing seams, warns of a version that was not tested."""
    found, missing = installed_version(), missing_seams()
    if missing:
        raise ImportError(f"dualpipe.torchtitan needs {', '.join(missing)}, which torchtitan {found} does not have; "
                          f"torchtitan {TESTED[-1]} does")
    if found.partition("+")[0] not in TESTED:
        warnings.warn(f"dualpipe.torchtitan was tested with torchtitan {', '.join(TESTED)}, got {found}; its tests "
                      "(tests/python/torchtitan) tell whether it holds", stacklevel=3)
