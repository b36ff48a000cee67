"""The largest batch that a device can train, found by doubling and bisection."""

import statistics
import time

import torch

from .cuda_graph import EAGER_STEPS
from .errors import Unsupported, UserError
from .gpu.nvml import MIB
from .memory import clear_tracebacks, is_out_of_memory, release_memory, reset_peaks
from .timing import read_compiler, synchronize
from .training import allow_search, cycle_batches, read_search


def limit_memory(gib, device):
    """Let PyTorch take at most `gib` GiB of the device, as if the card had no more; 0 leaves it the whole card.

    Context and libraries, a few hundred MiB on a real card of that size, are not counted.
    """
    if gib and device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory / 2**30
        if gib > there:
            raise UserError(
                f"memory_limit_gib is {gib:g}, but this GPU has {there:.1f} GiB; give less, or 0 for all of it."
            )
        torch.cuda.set_per_process_memory_fraction(gib / there)  # of the current device, the only one that is used


def count(kind, device):
    """Return how often the allocator ran out ("num_ooms"), or freed everything and asked anew ("num_alloc_retries")."""
    return torch.cuda.memory_stats(device)[kind] if device.type == "cuda" else 0


def probe(record, make_trainer, batches, size, device, rows=1, search=None):
    """Train a few steps at a batch size, from nothing to nothing; return whether that fits into memory.

    `record.batch_probes` gets [batch size, "ok" or "oom", peak MiB, samples per second], the rate when memory is taken
    and a graph captured. `search`, the seconds of a step without it, has cuDNN try its algorithms, as training does.
    """
    release_memory(device)
    reset_peaks(device)
    # PyTorch keeps a plan by shape, searched or not; `deterministic` is part of the key, so training still searches.
    cudnn = torch.backends.cudnn
    before, cudnn.deterministic, cudnn.benchmark = (cudnn.benchmark, cudnn.deterministic), search is None, False
    if search is not None:
        allow_search(search)
    status, speed, trainer, hidden, times = "ok", None, None, None, []
    ran_out, retried, first = count("num_ooms", device), 0, 0.0
    try:
        trainer = make_trainer()
        compiled, settled = read_compiler(trainer)["seconds"], EAGER_STEPS + 1 if trainer.captured else 2
        for batch in cycle_batches(lambda: batches(size)):
            began = time.perf_counter()
            _, hidden = trainer.step(batch, hidden)
            synchronize(device)
            times.append(time.perf_counter() - began)
            first = first or times[0] - (read_compiler(trainer)["seconds"] - compiled)
            retried = count("num_alloc_retries", device) if len(times) == settled else retried
            if sum(times[settled:]) > 0.2:
                break
        speed = size * rows / statistics.median(times[settled:])
        if count("num_alloc_retries", device) > retried:  # goes on only by freeing and asking anew at every step
            status = "oom"
        elif search is not None:
            read_search(record, trainer, first, statistics.median(times[settled:]))
    except Exception as error:
        if not is_out_of_memory(error) and count("num_ooms", device) == ran_out:  # cuDNN's callers swallow some
            raise
        status = "oom"
        clear_tracebacks(error)
    finally:
        cudnn.benchmark, cudnn.deterministic = before
    peak = torch.cuda.max_memory_allocated(device) / MIB if device.type == "cuda" else None
    record.batch_probes.append([size, status, peak, speed])
    del trainer, hidden
    release_memory(device)
    return status == "ok"


def rounded(size):
    """Return a batch size rounded down to a multiple of 8, which Tensor Cores want; one below 8 stays."""
    return size // 8 * 8 if size > 8 else size


def largest_batch(record, make_trainer, batches, device, limit, rows=1, start=16):
    """Return the largest batch size up to `limit` that trains, to within a sixteenth; a multiple of 8 from 8 on.

    `make_trainer()` builds model and optimizer anew, `batches(size)` yields batches of `size` x `rows` samples. The
    size is doubled until it does not fit, then halved in; at last it must fit with cuDNN's search, too.
    """
    if device.type != "cuda":
        raise Unsupported('batch_size "max" needs a GPU: on the CPU no memory limit is searched for')
    good, bad, size = 0, None, rounded(min(start, limit))
    while size > good:
        if probe(record, make_trainer, batches, size, device, rows):
            good = size
        else:
            bad = size
        near = bad is not None and bad - good <= max(8 if good >= 8 else 1, good // 16)
        size = good if near else rounded(min(2 * good, limit) if bad is None else (good + bad) // 2)
    speeds = [speed for *_, speed in record.batch_probes if speed]
    while good and not probe(record, make_trainer, batches, good, device, rows, good * rows / max(speeds, default=1e9)):
        good = rounded(good * 15 // 16) if good > 8 else good - 1
    if not good:
        raise torch.OutOfMemoryError("out of memory: not even a batch of one sample can be trained")
    return good


def resolve_batch_size(record, batch_size, make_trainer, batches, device, limit, rows=1):
    """Return the batch size of a run, as it was asked for or the largest that fits, and note it."""
    wanted = (record, make_trainer, batches, device, limit, rows)
    record.batch_size_used = largest_batch(*wanted) if batch_size == "max" else batch_size
    return record.batch_size_used
