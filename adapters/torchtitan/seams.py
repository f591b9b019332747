"""What this package uses of torchtitan beyond a model's specification, checked once at import.

An unknown version of torchtitan warns; a seam that is gone stops the import with its name.
"""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError, version

from dualpipe._seams import missing

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


def check_torchtitan() -> None:
    """Raises ``ImportError`` for missing seams, warns of a version that was not tested."""
    found, lacking = installed_version(), missing(SEAMS)
    if lacking:
        raise ImportError(f"dualpipe.torchtitan needs {', '.join(lacking)}, which torchtitan {found} does not have; "
                          f"torchtitan {TESTED[-1]} does")
    if found.partition("+")[0] not in TESTED:
        warnings.warn(f"dualpipe.torchtitan was tested with torchtitan {', '.join(TESTED)}, got {found}; its tests "
                      "(tests/python/torchtitan) tell whether it holds", stacklevel=3)
