"""The progress bar, whose count is also written to a file for run_all.py."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
from tqdm import tqdm

from .files import written_whole


def progress_wanted() -> bool:
    """Return False under TQDM_DISABLE=1, or if papermill runs this notebook with --no-progress-bar."""
    try:
        quiet = "--no-progress-bar" in psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        quiet = False
    return not quiet and os.environ.get("TQDM_DISABLE", "") in ("", "0")


class Progress:
    """A text bar that is redrawn every `every` steps only, so that it costs the timed loop next to nothing."""

    def __init__(self, total: int | None, label: str, every: int = 25):
        disabled = not progress_wanted()
        self.bar = tqdm(total=total, desc=label, file=sys.stdout, mininterval=1, leave=False, disable=disabled)
        self.label = label
        self.total = total
        self.every = every
        self.steps = 0

    def advance(self) -> None:
        """Count one step."""
        self.steps += 1
        if self.steps % self.every == 0:
            self.bar.update(self.every)

    def write(self, path: str) -> None:
        """Write the label and the count to `path`. A full disk does not end a run."""
        with suppress(OSError), written_whole(path) as temporary:
            temporary.write_text(f"{self.label}, step {self.steps}/{self.total}")

    def keep_writing(self, path: str, ended: threading.Event, seconds: float) -> None:
        """Write every `seconds` until `ended` is set. It runs in a thread because the timed loop must not write."""
        while not ended.wait(seconds):
            self.write(path)


@contextmanager
def progress(total: int | None, label: str, seconds: float = 5) -> Iterator[Progress]:
    """Yield a Progress over `total` steps and close it.

    If MIXED_PRECISION_PROGRESS names a file, the count is written there at once, every `seconds` and at the end.
    """
    shown = Progress(total, label)
    path = os.environ.get("MIXED_PRECISION_PROGRESS")
    ended = threading.Event()
    if path:
        writer = threading.Thread(target=shown.keep_writing, args=(path, ended, seconds), daemon=True)
        shown.write(path)
        writer.start()
    try:
        yield shown
    finally:
        ended.set()
        if path:
            writer.join()
            shown.write(path)
        shown.bar.update(shown.steps % shown.every)
        shown.bar.close()
