"""Write a file whole or not at all, follow no link when writing, and open no file that may wait
for ever.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

MAX_FILE_BYTES = 2**22  # read of a record, whose JSON is broken there; the largest have 0.1 MiB


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. It is renamed to `path` at the end, and removed after
    an error.

    A link at either path is replaced and never followed, because a stranger's folder may hold links
    to one's own files.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.half-written")
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def opened_to_append(path: Path) -> TextIO:
    """Open a log to add to it. A link or a pipe in its place is replaced, as by written_whole()."""
    if path.is_symlink() or path.is_fifo():
        path.unlink()
    return path.open("a", encoding="utf-8", errors="backslashreplace")


def check_is_file(path: Path) -> None:
    """Raise OSError if a path is no regular file, because a pipe could wait for ever."""
    if not stat.S_ISREG(path.stat(follow_symlinks=False).st_mode):
        raise OSError("it is a link, a folder, a pipe or a device, not a file")


def read_file(path: Path) -> bytes:
    """Return the contents of a regular file up to MAX_FILE_BYTES; raise OSError if it is another
    thing.

    Links are refused, because a stranger's folder may hold links to files that only its reader can
    read.
    """
    check_is_file(path)
    with path.open("rb") as opened:
        return opened.read(MAX_FILE_BYTES)
