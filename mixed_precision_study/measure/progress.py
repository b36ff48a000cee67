"""What a run is doing, as a line that moves every second, and in a file for run_all.py."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tqdm import tqdm

from .files import written_whole


class Progress:
    """A line of text and a count. A thread draws it and writes it, so that a step costs an addition."""

    def __init__(self, total: int | None, label: str):
        form = None if total else "{desc} {elapsed}"
        quiet = os.environ.get("TQDM_DISABLE", "") not in ("", "0")
        self.bar = tqdm(total=total, desc=label, file=sys.stdout, leave=False, disable=quiet, bar_format=form)
        self.path = os.environ.get("MIXED_PRECISION_PROGRESS")
        self.label = label
        self.written = ""

    def advance(self, steps: int = 1) -> None:
        self.bar.n += steps

    def say(self, label: str) -> None:
        """Say what is going on now. It is shown within a second."""
        self.label = label
        self.bar.set_description_str(label, refresh=False)

    def write(self) -> None:
        """Write the line to the file if it has changed. A full disk does not end a run."""
        text = f"{self.label}, step {self.bar.n}/{self.bar.total}" if self.bar.total else self.label
        if self.path and text != self.written:
            self.written = text
            with suppress(OSError), written_whole(self.path) as temporary:
                temporary.write_text(text)

    def keep_showing(self, ended: threading.Event, seconds: float) -> None:
        while not ended.wait(seconds):
            self.bar.refresh()
            self.write()


@contextmanager
def progress(total: int | None, label: str, seconds: float = 1.0) -> Iterator[Progress]:
    """Yield a Progress over `total` steps (None: not known) and close it. It is shown at once and every `seconds`.

    If MIXED_PRECISION_PROGRESS names a file, label and count are written there.
    """
    shown = Progress(total, label)
    shown.write()
    ended = threading.Event()
    thread = threading.Thread(target=shown.keep_showing, args=(ended, seconds), daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        ended.set()
        thread.join()
        shown.write()
        shown.bar.close()
