"""What a notebook does for the run_all.py that started it: it ends by itself once that is gone."""

import os
import threading
import time
from contextlib import suppress

import psutil

RUNNER_ENV = "MIXED_PRECISION_RUNNER"  # environment variable: process id and start time of run_all.py
SECONDS = 2.0  # between two looks


def identity(process: psutil.Process) -> str:
    """Return a process id and its start time as text: a number alone may be given to a new process."""
    return f"{process.pid} {process.create_time():.2f}"


def is_alive(text: str) -> bool:
    """Return whether the process with this identity still runs."""
    with suppress(psutil.Error, ValueError):
        process = psutil.Process(int(text.split()[0]))
        return identity(process) == text and process.status() != psutil.STATUS_ZOMBIE
    return False


def end_without_runner() -> None:
    """Start a thread that ends this process and its children when the runner is gone; nothing without a runner."""
    runner = os.environ.get(RUNNER_ENV)
    if not runner:
        return

    def watch() -> None:
        while is_alive(runner):
            time.sleep(SECONDS)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
