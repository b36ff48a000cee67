"""What does mixed precision buy on a GPU: time, memory and accuracy of training, measured and
explained.

The package holds the code, the notebooks the story. Importing it loads nothing, prints nothing and
chooses no device.
"""

import os
import time
from contextlib import suppress
from typing import Any

from .store.variables import OF_A_RUN

__version__ = "0.4.0"
# when this process first asked for the package: where start-up times begin
STARTED = time.perf_counter()

if os.environ.keys() & OF_A_RUN:
    # without psutil this process is none that run_all.py has started
    with suppress(ModuleNotFoundError):
        from .runner.watch import follow_runner

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
