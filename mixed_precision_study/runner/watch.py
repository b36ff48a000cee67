"""What papermill and a notebook do for the run_all.py that started them: they end once that is
gone.
"""

import os
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress

import psutil

from ..store.commit import hash_at_import
from ..store.variables import COMMIT_ENV, OF_A_RUN, RUNNER_ENV

SECONDS = 2.0  # between two looks
END_SECONDS = 10  # that what is killed may take to be gone


def is_alive(process: psutil.Process) -> bool:
    """Return whether this process still runs.

    A later one with its number counts as another, whatever the clock.
    """
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def runner_above() -> psutil.Process | None:
    """Return the run_all.py that started this process, or None where the environment names another
    process.

    A shell that a notebook opened keeps the variables of its run, also when that is over.
    """
    given = os.environ.get(RUNNER_ENV)
    return next(
        (process for process in psutil.Process().parents() if str(process.pid) == given), None
    )


def follow_runner() -> None:
    """End with the run_all.py above this process. Without one, drop the variables of a run, and say
    so.

    Warnings are shown without their place, because an executed notebook names no folder of this
    machine.
    """
    if runner := runner_above():
        hash_at_import()
        warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}\n"
        end_without(runner)
        return
    for name in os.environ.keys() & {*OF_A_RUN, COMMIT_ENV}:
        del os.environ[name]
    said = (
        "no run_all.py is above this process, so the environment variables of its runs are ignored."
    )
    print(f"mixed_precision_study: {said}", file=sys.stderr)


def end_without(runner: psutil.Process) -> None:
    """Start a thread that ends this process and its children when the runner is gone."""

    def watch() -> None:
        try:
            while is_alive(runner):
                time.sleep(SECONDS)
            end(psutil.Process().children())
        finally:
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def adopt_orphans() -> None:
    """Become the parent of what a child of this process leaves in the background, where Linux
    allows that.
    """
    with suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill processes and all that they have started or adopted, and wait until they are gone."""
    family = set(processes)
    for process in list(family):
        with suppress(psutil.Error):
            family.update(process.children(recursive=True))
    for process in family:
        with suppress(psutil.Error):
            process.kill()
    until = time.monotonic() + END_SECONDS
    while any(map(is_alive, family)) and time.monotonic() < until:
        time.sleep(0.02)
