"""The largest batch that a device can train, found by doubling and bisection."""

import statistics
import time
from collections.abc import Callable

import torch

from ..measure.memory import clear_tracebacks, is_out_of_memory, release_memory, reset_peaks
from ..measure.nvml import MIB
from ..measure.progress import progress
from ..measure.timing import read_compiler, synchronize
from ..parameters import Unsupported, UserError
from ..store.record import RunRecord
from .cuda_graph import EAGER_STEPS
from .precision import cudnn_flags
from .step import Trainer, allow_search, cycle_batches, read_search


def limit_memory(gib: float, device: torch.device) -> None:
    """Let PyTorch's allocator take at most `gib` GiB of the GPU; 0: no limit.

    The CUDA context and libraries, a few hundred MiB, are not counted. Raises UserError if the GPU
    has less memory.
    """
    if gib and device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory / 2**30
        if gib > total:
            raise UserError(
                f"memory_limit_gib is {gib:g}, but this GPU has {total:.1f} GiB; give less, "
                "or 0 for all."
            )
        # of the current device, the only one in use
        torch.cuda.set_per_process_memory_fraction(gib / total)


def count(name: str, device: torch.device) -> int:
    """Return a counter of the allocator: "num_ooms", or "num_alloc_retries" (it freed its cache
    and tried again).
    """
    return torch.cuda.memory_stats(device)[name] if device.type == "cuda" else 0


def probe(
    record: RunRecord,
    make_trainer: Callable,
    batches: Callable,
    size: int,
    device: torch.device,
    rows: int = 1,
    search: float | None = None,
) -> bool:
    """Build the model, train a few steps at batch size `size` and free everything; return whether
    it fitted in memory.

    search: seconds of a step, if cuDNN's search shall run as in training. The arguments are those
    of largest_batch(). `record.batch_probes` gets [batch size, "ok" or "oom", peak MiB, samples per
    second].
    """
    release_memory()
    reset_peaks(device)
    status = "ok"
    speed = trainer = None
    ran_out = count("num_ooms", device)
    # PyTorch caches its choice per shape, searched or not. `deterministic` is part of the cache
    # key, so that training still searches.
    with (
        cudnn_flags(benchmark=False, deterministic=search is None),
        progress(None, f"{record.precision}, trying batch size {size}"),
    ):
        if search is not None:
            allow_search(search, bool(record.settings.get("cudnn_benchmark", True)))
        try:
            trainer = make_trainer()
            first, steady, fits = timed_steps(trainer, batches, size)
            speed = size * rows / steady
            if not fits:
                status = "oom"
            elif search is not None:
                read_search(record, trainer, first, steady)
        except Exception as error:
            # cuDNN's callers hide some
            if not is_out_of_memory(error) and count("num_ooms", device) == ran_out:
                raise
            status = "oom"
            clear_tracebacks(error)
    peak = torch.cuda.max_memory_allocated(device) / MIB if device.type == "cuda" else None
    record.batch_probes.append([size, status, peak, speed])
    del trainer
    release_memory()
    return status == "ok"


def timed_steps(trainer: Trainer, batches: Callable, size: int) -> tuple[float, float, bool]:
    """Take steps until their time is known. Return (seconds of the first one without compilation,
    median seconds, whether memory sufficed without freeing the cache in each step).
    """
    device = trainer.device
    compiled = read_compiler(trainer.is_compiled)["seconds"]
    settled = EAGER_STEPS + 1 if trainer.captured else 2  # memory is taken and a graph captured
    times = []
    first, retried, hidden = 0.0, 0, None
    for batch in cycle_batches(lambda: batches(size)):
        began = time.perf_counter()
        _, hidden = trainer.step(batch, hidden)
        synchronize(device)
        times.append(time.perf_counter() - began)
        if len(times) == 1:
            first = times[0] - (read_compiler(trainer.is_compiled)["seconds"] - compiled)
        if len(times) == settled:
            retried = count("num_alloc_retries", device)
        if sum(times[settled:]) > 0.2:
            break
    fits = count("num_alloc_retries", device) == retried
    return first, statistics.median(times[settled:]), fits


def rounded(size: int) -> int:
    """Round a batch size above 8 down to a multiple of 8, which Tensor Cores need."""
    return size // 8 * 8 if size > 8 else size


def next_size(good: int, bad: int | None, limit: int) -> int:
    """Return the size to try after one that fits and one that does not: `good` is precise enough
    where it is that again.
    """
    if bad is None:
        return rounded(min(2 * good, limit))
    if bad - good <= max(8 if good >= 8 else 1, good // 16):
        return good
    return rounded((good + bad) // 2)


def largest_batch(
    record: RunRecord,
    make_trainer: Callable,
    batches: Callable,
    device: torch.device,
    limit: int,
    rows: int = 1,
) -> int:
    """Return the largest batch size up to `limit` that trains, to within a sixteenth; from 8 on a
    multiple of 8.

    The size is doubled until it does not fit, then bisected. At the end it must also fit with
    cuDNN's search.

    make_trainer(): builds model and optimizer anew. batches(size): yields batches of `size` items.
    rows: samples in one item.

    Raises Unsupported on the CPU, torch.OutOfMemoryError if not even one item fits.
    """
    if device.type != "cuda":
        raise Unsupported(
            'batch_size "max" needs a GPU: on the CPU no memory limit is searched for'
        )
    good = 0
    bad = None
    size = rounded(min(16, limit))
    while size > good:
        if probe(record, make_trainer, batches, size, device, rows):
            good = size
        else:
            bad = size
        size = next_size(good, bad, limit)
    fastest = max((speed for *_, speed in record.batch_probes if speed), default=1e9)
    while good:
        seconds = good * rows / fastest  # of a step
        if probe(record, make_trainer, batches, good, device, rows, seconds):
            break
        good = rounded(good * 15 // 16) if good > 8 else good - 1
    if not good:
        raise torch.OutOfMemoryError("out of memory: not even a batch of one sample can be trained")
    return good
