"""Decoded data are kept on disk for the next kernel. Images are decoded by all cores."""

import glob
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..errors import UserError
from ..files import check_is_file, written_whole
from ..progress import progress

KEPT_FILES = 3  # of one data set; another image size or a changed file makes a new one
CHUNK = 16  # images that one worker decodes at a time
MAX_PIXELS = 2**26  # of one image: decoded, it takes 256 MiB, and every core decodes one
IMAGES_PER_PROCESS = 250  # at least, or starting the process takes longer than it saves


def read_or_stop(path: str | Path, read: Callable[[Any], Any]) -> Any:
    """Return `read(path)`; raise UserError if the file cannot be read."""
    try:
        return read(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None


def file_stats(paths: Iterable[str | Path]) -> list[tuple[str, int, int]]:
    """Return (name, bytes, time of the last change in ns) of files. They change when a file does."""
    stats = [(str(path), read_or_stop(path, os.stat)) for path in paths]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def decoded(path: Path, mode: str, advice: str) -> Image.Image:
    """Return an image file as a picture in PIL's `mode`; raise UserError, with advice, if it cannot be read."""
    try:
        check_is_file(path)
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise OSError(f"{image.width} x {image.height} pixels are too many; {MAX_PIXELS:,} are possible")
            return image.convert(mode)
    except Exception as error:  # a broken image raises whatever its format's decoder stumbles over
        raise UserError(f"the image {path} cannot be read ({error}); {advice}.") from None


def cached_arrays(
    folder: str | Path, name: str, key: Any, make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the arrays of `make()`, from a file in `folder`/cache if an earlier kernel has kept them there.

    `key` is everything that the arrays depend on; its hash is part of the file's name. A damaged file is replaced.
    Nothing is kept if the folder cannot be written, or if the arrays would take half of the free disk space.
    Of each `name`, the KEPT_FILES used last are kept.
    """
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    path = Path(folder) / "cache" / f"{name}-{digest}.npz"
    with suppress(Exception), np.load(path, allow_pickle=False) as kept:  # missing, or damaged in whatever way
        arrays = {part: kept[part] for part in kept["parts"].tolist()}
        with suppress(OSError):
            os.utime(path)
        return arrays
    arrays = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if sum(array.nbytes for array in arrays.values()) < shutil.disk_usage(path.parent).free / 2:
            with written_whole(path) as temporary, temporary.open("wb") as opened:
                contents: dict[str, Any] = {"parts": list(arrays), **arrays}
                np.savez(opened, **contents)
        files = path.parent.glob(f"{glob.escape(name)}-{'[0-9a-f]' * 16}.npz")
        for old in sorted(files, key=lambda file: file.stat().st_mtime_ns)[:-KEPT_FILES]:
            old.unlink(missing_ok=True)
    return arrays


class ImageChunks(torch.utils.data.Dataset):
    """Item n is (up to CHUNK images, None), or (None, the message of a UserError)."""

    def __init__(self, read: Callable[[int], Any], count: int):
        self.read = read
        self.ranges = [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]

    def __len__(self) -> int:
        return len(self.ranges)

    def __getitem__(self, number: int) -> tuple[np.ndarray | None, str | None]:
        try:
            return np.stack([np.asarray(self.read(index)) for index in self.ranges[number]]), None
        except UserError as error:
            return None, str(error)


def decode_all(read: Callable[[int], Any], count: int, label: str, processes: int | None = None) -> np.ndarray:
    """Return the images read(0) to read(count - 1) as one array (count, ...), read in parallel under a progress bar.

    Forked processes read many images, because threads wait for each other on small ones. Threads read a few images,
    and all of them on a system without fork. Raises the UserError of the first image that cannot be read.
    """
    if processes is None:
        processes = min(os.cpu_count() or 1, count // IMAGES_PER_PROCESS) if hasattr(os, "fork") else 0
    dataset = ImageChunks(read, count)
    images: Any = None
    with progress(count, label) as bar, ThreadPoolExecutor(os.cpu_count()) as threads:
        chunks: Iterable
        if processes:
            generator = torch.Generator()  # or the loader draws from the global one
            workers: dict[str, Any] = {"num_workers": processes, "multiprocessing_context": "fork"}
            chunks = torch.utils.data.DataLoader(dataset, None, collate_fn=tuple, generator=generator, **workers)
        else:
            chunks = threads.map(dataset.__getitem__, range(len(dataset)))
        for places, (chunk, problem) in zip(dataset.ranges, chunks, strict=True):
            if problem:
                threads.shutdown(wait=False, cancel_futures=True)
                raise UserError(problem)
            if images is None:
                images = np.empty((count, *chunk.shape[1:]), chunk.dtype)
            images[places.start : places.stop] = chunk
            for _ in places:
                bar.advance()
    return images
