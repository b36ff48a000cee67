"""Decoded data are kept on disk for the next kernel."""

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..measure.files import written_whole
from ..parameters import UserError


def read_or_stop(path: str | Path, read: Callable[[Any], Any]) -> Any:
    try:
        return read(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None


def file_stats(paths: Iterable[str | Path]) -> list[tuple[str, int, int]]:
    """Return (name, bytes, time of the last change in ns) of files. They change when a file does."""
    stats = [(str(path), read_or_stop(path, os.stat)) for path in paths]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def cached_arrays(
    folder: str | Path, name: str, key: Any, make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the arrays of `make()`, from `folder`/cache/`name`.npz if an earlier kernel kept them under the same key.

    `key` is everything that the arrays depend on. A file of another key is replaced, and so is a damaged one. Where
    the folder cannot be written or the disk is full, only the cache is missing.
    """
    path = Path(folder) / "cache" / f"{name}.npz"
    digest = hashlib.sha256(repr(key).encode()).hexdigest()
    with suppress(Exception), np.load(path, allow_pickle=False) as kept:  # missing, or damaged in whatever way
        if kept["key"].item() == digest:
            return {part: kept[part] for part in kept["parts"].tolist()}
    arrays = make()
    contents: dict[str, Any] = {"key": digest, "parts": list(arrays), **arrays}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as temporary, temporary.open("wb") as opened:
            np.savez(opened, **contents)
    return arrays
