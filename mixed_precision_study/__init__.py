"""What does mixed precision buy on a GPU: time, memory and accuracy of training, measured and explained.

The package holds the code, the notebooks the story. Importing it loads nothing, prints nothing and chooses no device.
"""

import os
import time
from typing import Any

__version__ = "0.3.0"
STARTED = time.perf_counter()  # when this process first asked for the package: where start-up times begin

RUNNER_ENV = "MIXED_PRECISION_RUNNER"  # environment variable from run_all.py: its process id
OF_A_RUN = [RUNNER_ENV]  # environment variables that run_all.py sets for what it starts
OF_A_RUN += [f"MIXED_PRECISION_{name}" for name in ("FOLDER", "LOG", "PROGRESS", "CODE_HASH")]
OF_A_RUN += [f"MIXED_PRECISION_{name}" for name in ("NOTEBOOK", "ORDER", "ABOUT")]

if any(name in os.environ for name in OF_A_RUN):
    try:
        from .runner.watch import follow_runner
    except ModuleNotFoundError:  # without psutil this process is none that run_all.py has started
        pass
    else:
        follow_runner()


def __getattr__(name: str) -> Any:
    """Load compare() and diagnose() when they are first asked for: they bring PyTorch."""
    if name == "compare":
        from .own_model import compare

        return compare
    if name == "diagnose":
        from .diagnosis.diagnose import diagnose

        return diagnose
    raise AttributeError(f"module {__name__} has no attribute {name}")
