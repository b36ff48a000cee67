"""What does mixed precision buy on a GPU: time, memory and accuracy of training, measured and explained.

The package holds the code, the notebooks the story. Importing it loads nothing, prints nothing and chooses no device.
"""

import os
import time
from typing import Any

__version__ = "0.4.0"
STARTED = time.perf_counter()  # when this process first asked for the package: where start-up times begin

RUNNER_ENV = "MIXED_PRECISION_RUNNER"  # environment variable from run_all.py: its process id

if RUNNER_ENV in os.environ:
    from .runner.watch import end_without_runner
    from .store.commit import hash_at_import

    hash_at_import()
    end_without_runner()


def __getattr__(name: str) -> Any:
    """Load compare() and diagnose() when they are first asked for: they bring PyTorch."""
    if name == "compare":
        from .own_model import compare

        return compare
    if name == "diagnose":
        from .diagnosis.diagnose import diagnose

        return diagnose
    raise AttributeError(f"module {__name__} has no attribute {name}")
