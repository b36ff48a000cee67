"""Data that were decoded once lie on the disk for the next kernel; images are read by every core."""

import glob
import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from ..errors import UserError
from ..files import written_whole
from ..progress import progress

KEPT_FILES = 3  # of one data set, as images of another size or files that have changed make another one


def read_or_stop(path, ask):
    """Return `ask(path)`, such as its bytes; stop and name the file where it cannot be read."""
    try:
        return ask(Path(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None


def file_stats(paths):
    """Return [(name, bytes, time of the last change)] of files: a change of them is seen without reading them."""
    stats = [(str(path), read_or_stop(path, Path.stat)) for path in paths]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def cached_arrays(folder, name, key, make):
    """Return {name: array} as `make()` gives them; kept in `folder`/cache, so that the next kernel only reads them.

    `key` is all that they depend on, and its checksum part of the file's name. A file that is damaged, which its own
    checksums tell, is made anew. Where it cannot be written, or would take half of the free disk, nothing is kept; of
    one name the KEPT_FILES that were used last are.
    """
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    path = Path(folder) / "cache" / f"{name}-{digest}.npz"
    with suppress(Exception), np.load(path, allow_pickle=False) as kept:  # whatever is wrong with it, or not there
        arrays = {part: kept[part] for part in kept["parts"].tolist()}
        with suppress(OSError):
            os.utime(path)
        return arrays
    arrays = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if sum(array.nbytes for array in arrays.values()) < shutil.disk_usage(path.parent).free / 2:
            with written_whole(path) as temporary, temporary.open("wb") as opened:
                np.savez(opened, parts=list(arrays), **arrays)
        files = path.parent.glob(f"{glob.escape(name)}-{'[0-9a-f]' * 16}.npz")
        for old in sorted(files, key=lambda file: file.stat().st_mtime_ns)[:-KEPT_FILES]:
            old.unlink(missing_ok=True)
    return arrays


class Readings(torch.utils.data.Dataset):
    """Gives (16 images, None), or (None, the sentence of a UserError)."""

    def __init__(self, read, count):
        self.pieces, self.read = [range(start, min(start + 16, count)) for start in range(0, count, 16)], read

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, number):
        try:
            return np.stack([np.asarray(self.read(index)) for index in self.pieces[number]]), None
        except UserError as error:
            return None, str(error)


def decode_all(read, count, label, processes=None):
    """Return the images read(0) to read(count - 1), all of one shape, as one array; in parallel, under a progress bar.

    Many are read by forked processes, as small images keep threads waiting for each other; a few, and where there is
    no fork, by threads. Raises the UserError of the first image that cannot be read.
    """
    if processes is None:
        processes = min(os.cpu_count(), count // 250) if hasattr(os, "fork") else 0
    readings, images = Readings(read, count), None
    with progress(count, label) as bar, ThreadPoolExecutor(os.cpu_count()) as threads:
        if processes:
            options = {"num_workers": processes, "multiprocessing_context": "fork", "generator": torch.Generator()}
            pieces = torch.utils.data.DataLoader(readings, None, collate_fn=tuple, **options)
        else:
            pieces = threads.map(readings.__getitem__, range(len(readings)))
        for places, (piece, sentence) in zip(readings.pieces, pieces, strict=True):
            if sentence:
                threads.shutdown(wait=False, cancel_futures=True)
                raise UserError(sentence)
            images = np.empty((count, *piece.shape[1:]), piece.dtype) if images is None else images
            images[places.start : places.stop] = piece
            for _ in places:
                bar.advance()
    return images
