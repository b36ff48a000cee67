"""A progress bar, and the same for run_all.py."""

import os
import sys
import threading
from contextlib import contextmanager, suppress

import psutil
from tqdm import tqdm

from .files import written_whole


def progress_wanted():
    """Return False under TQDM_DISABLE=1 and where the notebook's papermill was started with --no-progress-bar."""
    try:
        quiet = "--no-progress-bar" in psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        quiet = False
    return not quiet and os.environ.get("TQDM_DISABLE", "") in ("", "0")


class Progress:
    """A text bar that is touched once in `every` steps, so that drawing it costs the timed loop next to nothing."""

    def __init__(self, total, label, every=25):
        self.bar = tqdm(
            total=total, desc=label, file=sys.stdout, mininterval=1, leave=False, disable=not progress_wanted()
        )
        self.every, self.steps, self.total, self.label = every, 0, total, label

    def advance(self):
        self.steps += 1
        if self.steps % self.every == 0:
            self.bar.update(self.every)

    def tell(self, path):
        """Write how far the steps are where run_all.py looks for it, whole or not at all."""
        with suppress(OSError), written_whole(path) as temporary:  # a full disk must not end a run
            temporary.write_text(f"{self.label}, step {self.steps}/{self.total}")

    def keep_telling(self, path, ended, seconds):
        """Tell every few seconds until `ended` is set: from a thread that sleeps, for the timed loop must not write."""
        while not ended.wait(seconds):
            self.tell(path)


@contextmanager
def progress(total, label, seconds=5):
    """Yield a Progress over `total` steps and close it; under run_all.py its count goes into a file meanwhile."""
    shown, path, ended = Progress(total, label), os.environ.get("MIXED_PRECISION_PROGRESS"), threading.Event()
    teller = threading.Thread(target=shown.keep_telling, args=(path, ended, seconds), daemon=True)
    if path:
        shown.tell(path)
        teller.start()
    try:
        yield shown
    finally:
        ended.set()
        if path:
            teller.join()
            shown.tell(path)
        shown.bar.update(shown.steps % shown.every)
        shown.bar.close()
