"""What papermill and a notebook do for the run_all.py that started them: they end by themselves once that is gone."""

import os
import threading
import time
from contextlib import suppress

import psutil

from .. import RUNNER_ENV

SECONDS = 2.0  # between two looks


def is_alive(process: psutil.Process) -> bool:
    """Return whether this process still runs. A later one with its number counts as another, whatever the clock."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def end_without_runner() -> None:
    """Start a thread that ends this process and its children when the runner is gone."""

    def watch() -> None:
        try:
            runner = psutil.Process(int(os.environ[RUNNER_ENV]))
            while is_alive(runner):
                time.sleep(SECONDS)
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()
        finally:
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
