"""Images near the GPU, and batches made one step ahead of it."""

import functools
import os

import torch

from ..errors import UserError


def place_images(images, device, share=0.25):
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


def prefetch_to_device(batches, side, main=None, on=torch.cuda.stream):
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


class TrainingData:
    """What an experiment trains and evaluates on. Subclasses give the batches.

    used, source: name of the data, and where they came from, as the record has them.
    train_samples, eval_samples: how many there are. sample_unit: what a sample is called, in the plural.
    samples_per_item: samples in one item of a batch, such as the words of a column of text.
    largest_batch: items that a batch can have at most. prefetch: whether making a batch is work for the GPU, which is
    then done while the step before it runs.
    """

    used = "own"
    source = "own"
    sample_unit = "samples"
    train_samples = None
    eval_samples = None
    samples_per_item = 1
    largest_batch = 2**20
    prefetch = False

    def settle(self, size):
        """Prepare for batches of this size, which is then that of the whole training."""

    def steps_per_epoch(self, size):
        """Return how many batches of `size` items an epoch has."""
        raise NotImplementedError

    def train_batches(self, epoch, dtype, size):
        """Yield the batches of an epoch, all of one shape, on the device; floating-point inputs have this dtype."""
        raise NotImplementedError

    def eval_batches(self, dtype, size):
        """Yield the held-out batches."""
        raise NotImplementedError

    def test_batches(self, dtype, size):
        """Yield batches of a test set on which no choice rests; None where there is none."""
        return None


def whole_batches(samples, size, max_steps):
    """Return how many whole batches of `size` samples there are, `max_steps` at most; 0 there for all."""
    steps = samples // size
    if steps == 0:
        raise UserError(f"batch_size {size} is larger than the training set of {samples} images.")
    return min(steps, max_steps or steps)


def ordinary_loader(dataset, size, device, workers, **options):
    """Yield batches of an ordinary DataLoader on the device; its workers are forked where the system can."""
    workers = workers if hasattr(os, "fork") else 0
    options |= {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    for batch in torch.utils.data.DataLoader(dataset, size, pin_memory=device.type == "cuda", **options):
        yield tuple(part.to(device, non_blocking=True) for part in batch)
