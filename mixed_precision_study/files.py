"""Write a file whole or not at all, and open none that may wait for ever."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. It is renamed to `path` at the end, and removed after an error."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_is_file(path: Path) -> None:
    """Raise OSError if a path is no regular file. Opening a pipe or a device may wait for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is a folder, a pipe or a device, not a file")
