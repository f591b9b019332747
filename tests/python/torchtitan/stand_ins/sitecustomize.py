"""Python imports this by its name from PYTHONPATH, so that example scripts run unmodified on the CPU."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import stand_in  # noqa: E402,F401
