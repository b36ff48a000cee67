"""What is prepared before the clock runs and beside it, shared by the experiment notebooks: data, batches, the start.

Decoded data are kept on disk for the next kernel, batches are made one step ahead of the training, and what the start
of a notebook took is told part by part. sync.py copies the sections, each from its '# %%' line to the next; the two
about images into those notebooks alone.
"""

import os
import time
from pathlib import Path

import torch
from card import STARTED, Stop
from instruments import progress

# isort: split

# %% Start of a run -- the same in every notebook; edit notebooks/preparation.py, then run sync.py
# @title How long it takes until the first timed step, and what cuDNN's search is of that
from tqdm import tqdm

SEARCH_LIMIT = 10  # algorithms that cuDNN may time for each convolution, best guess first: PyTorch's default; 0: all
SEARCH_SECONDS = 60  # that it may take, about, where the time of a step is known before: with batch_size="max"


class StartUp:
    """Tells where the time went between the notebook's first cell and its first timed step, part by part."""

    def __init__(self, began):
        self.last, self.seconds, self.over = began, {}, False

    def lap(self, part):
        """Count the time since the last lap to `part`."""
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self.last
        self.last = now

    def end(self, record):
        """Fill in the record of the first run that comes to a timed step, and say it in one line; others get a reason.

        What stands still between the cells of a notebook that is run by hand is counted to the part that follows.
        """
        if self.over:
            if record.startup_seconds is None:
                record.startup_reason = "not the first run of its kernel"
            return
        self.over = True
        self.lap("warmup")
        record.startup_seconds = sum(self.seconds.values())
        for part, seconds in self.seconds.items():
            setattr(record, f"startup_{part}_seconds", seconds)
        parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in self.seconds.items())
        took = {"torch.compile": record.compile_seconds, "cuDNN's search, at most,": record.search_seconds}
        within = " and ".join(f"{name} {seconds:.1f}" for name, seconds in took.items() if seconds)
        parts += f"; in it {within}" if within else ""
        tqdm.write(f"Start: {record.startup_seconds:.1f} s to the first timed step ({parts})")


def allow_search(step_seconds=0.0):
    """Let cuDNN time its algorithms, SEARCH_LIMIT at most, at each new shape; it remembers those of this process.

    Fewer where a step takes `step_seconds` and that is long: each algorithm costs about six steps, and the search is to
    stay near SEARCH_SECONDS.
    """
    room = max(1, int(SEARCH_SECONDS / 6 / step_seconds)) if step_seconds else 0
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = min(SEARCH_LIMIT or room, room or SEARCH_LIMIT)


def read_search(record, trainer, first, steady):
    """Fill in what cuDNN's search took: the `first` step, s, without compiling, less a `steady` one.

    An upper bound: kernels are loaded in that step, too.
    """
    convolves = any(isinstance(module, torch.nn.modules.conv._ConvNd) for module in trainer.network.modules())
    if trainer.device.type != "cuda":
        record.search_reason = "no GPU"
    elif not (convolves and torch.backends.cudnn.benchmark):
        record.search_reason = "cuDNN's search is off" if convolves else "the model has no convolution"
    elif record.search_seconds is None:  # else it was in the last probe of the largest batch, or in another repeat
        record.search_seconds = max(0.0, first - steady)
        record.search_limit_algorithms = torch.backends.cudnn.benchmark_limit


startup = StartUp(STARTED)

# %% Kept data -- the same in every notebook; edit notebooks/preparation.py, then run sync.py
# @title Data that were decoded once lie on the disk for the next kernel
import glob
import hashlib
import shutil
from contextlib import suppress

import numpy as np

KEPT_FILES = 3  # of one data set, as images of another size or files that have changed make another one


def ask_file(path, ask):
    """Return `ask(path)`, such as its bytes; stop and name the file where it cannot be read."""
    try:
        return ask(Path(path))
    except OSError as error:
        raise Stop(f"{path} cannot be read ({error.strerror}).") from None


def stamps_of(paths):
    """Return [(name, bytes, time of the last change)] of files: a change of them is seen without reading them."""
    stats = [(str(path), ask_file(path, Path.stat)) for path in paths]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def kept_arrays(folder, name, key, make):
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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if sum(array.nbytes for array in arrays.values()) < shutil.disk_usage(path.parent).free / 2:
            with temporary.open("wb") as opened:
                np.savez(opened, parts=list(arrays), **arrays)
            os.replace(temporary, path)
        files = path.parent.glob(f"{glob.escape(name)}-{'[0-9a-f]' * 16}.npz")
        for old in sorted(files, key=lambda file: file.stat().st_mtime_ns)[:-KEPT_FILES]:
            old.unlink(missing_ok=True)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return arrays


# %% Decoding -- the same in every notebook; edit notebooks/preparation.py, then run sync.py
# @title Read images by every core
from concurrent.futures import ThreadPoolExecutor


class Readings(torch.utils.data.Dataset):
    """Gives (16 images, None), or (None, the sentence of a Stop): a process cannot send a notebook's own errors."""

    def __init__(self, read, count):
        self.pieces, self.read = [range(start, min(start + 16, count)) for start in range(0, count, 16)], read

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, number):
        try:
            return np.stack([np.asarray(self.read(index)) for index in self.pieces[number]]), None
        except Stop as error:
            return None, str(error)


def decode_all(read, count, label, processes=None):
    """Return the images read(0) to read(count - 1), all of one shape, as one array; in parallel, under a progress bar.

    Many are read by forked processes, as small images keep threads waiting for each other; a few, and where there is
    no fork, by threads. Raises the Stop of the first image that cannot be read.
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
                raise Stop(sentence)
            images = np.empty((count, *piece.shape[1:]), piece.dtype) if images is None else images
            images[places.start : places.stop] = piece
            for _ in places:
                bar.advance()
    return images


# %% Batches ahead -- the same in every notebook; edit notebooks/preparation.py, then run sync.py
# @title Images near the GPU, and batches made one step ahead of it
import functools


def placed(images, device, share=0.25):
    """Return uint8 images (N, C, height, width) where batches are taken from.

    On the GPU if they take at most `share` of what is free there, or of what memory_limit_gib leaves; else in pinned
    memory of the host, from which the GPU copies by itself. On the CPU they stay as they are.
    """
    if device.type != "cuda":
        return images
    total = torch.cuda.get_device_properties(device).total_memory
    limit = torch.cuda.get_per_process_memory_fraction() * total  # of the current device, the only one that is used
    free = min(torch.cuda.mem_get_info(device)[0], limit - torch.cuda.memory_allocated(device))
    if images.nbytes <= share * free:
        return images.to(device)
    print(
        f"NOTICE: {images.nbytes / 2**20:,.0f} MiB of images stay in pinned memory of the host: too much for the GPU."
    )
    return images.pin_memory()


def device_batches(images, labels, places, size):
    """Yield (images, labels) in the order of `places` (N,), all on one device."""
    for chosen in places.split(size):
        yield images[chosen], labels[chosen]


def host_batches(images, labels, places, size):
    """Yield the same from images in pinned memory: one copy for each, none waited for; only the order is, once."""
    for chosen, numbers in zip(places.split(size), torch.split(places.cpu(), size), strict=True):
        batch = torch.empty(len(chosen), *images.shape[1:], dtype=images.dtype, device=places.device)
        for row, number in zip(batch, numbers.tolist(), strict=True):
            row.copy_(images[number], non_blocking=True)
        yield batch, labels[chosen]


@functools.cache
def side_stream(device):
    """Return the stream on which the batches of this process are made, always the same; None on the CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def one_ahead(batches, side, main=None, on=torch.cuda.stream):
    """Yield `batches`, each made on the stream `side` while the step before it runs on `main`, the current stream.

    The host waits for nothing and takes the batches in the same order; an error comes when its batch would have. A
    batch is made once the step before last has ended, so one more than without is in memory, however far the host is
    ahead. That wait also makes it safe to write into memory that was freed since: whatever used it came before. So
    record_stream is not needed, which would keep memory for as long as the host is ahead. `side` None: as they come.
    """
    if side is None:
        yield from batches
        return
    batches, main = iter(batches), main or torch.cuda.current_stream(side.device)

    def prepare():
        side.wait_stream(main)
        try:
            with on(side):
                return next(batches, None), side.record_event(), None
        except Exception as error:
            return None, None, error

    try:
        batch, ready, error = prepare()
        while batch is not None:
            following = prepare()
            main.wait_event(ready)
            yield batch
            batch, ready, error = following
    finally:  # left early, a batch is still being made from tensors of `main` that are free from here on
        main.wait_stream(side)
    if error is not None:
        raise error
