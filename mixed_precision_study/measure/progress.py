"""What a run is doing, as a line that moves every second, and in a file for run_all.py."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tqdm import tqdm

from ..store.files import written_whole
from ..store.variables import PROGRESS_ENV


@contextmanager
def progress(total: int | None, label: str, seconds: float = 1.0) -> Iterator[tqdm]:
    """Yield a bar over `total` steps (None: not known), which is shown at once and every `seconds`
    by a thread.

    So a step costs an addition to its `n`, and its `desc` says what is going on. If
    MIXED_PRECISION_PROGRESS names a file, both are written there. run_all.py sets tqdm's own
    TQDM_DISABLE, so that nothing is drawn.
    """
    bar = tqdm(
        total=total,
        desc=label,
        file=sys.stdout,
        leave=False,
        bar_format=None if total else "{desc} {elapsed}",
    )
    bar.desc = label  # a bar that is not drawn has none
    path = os.environ.get(PROGRESS_ENV)
    ended = threading.Event()

    def write():
        if path:
            # a full disk does not end a run
            with suppress(OSError), written_whole(path) as temporary:
                temporary.write_text(
                    f"{bar.desc}, step {bar.n}/{bar.total}" if bar.total else bar.desc
                )

    def keep_showing():
        while not ended.wait(seconds):
            bar.refresh()
            write()

    write()
    thread = threading.Thread(target=keep_showing, daemon=True)
    thread.start()
    try:
        yield bar
    finally:
        ended.set()
        thread.join()
        write()
        bar.close()
