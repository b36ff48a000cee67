"""What reads time: the clock of an epoch and its steps, waits, blocks, percentiles, and the start of a run.

None of it waits for the GPU inside a timed epoch.
"""

import itertools
import math
import statistics
import time
import warnings

import torch
from tqdm import tqdm

from . import STARTED


class StepClock:
    """Times an epoch on the wall and every step on the device, with one synchronisation at each end.

    On a GPU a step lies between two CUDA events, read when the epoch is over; on the CPU between two clock readings.
    """

    def __init__(self, device):
        self.device = device

    def start(self):
        synchronize(self.device)
        self.began = time.perf_counter()
        self.marks = [self.mark()]

    def mark(self):
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def tick(self):
        """Mark the end of a step."""
        self.marks.append(self.mark())

    def stop(self):
        """Return (wall seconds of the epoch, [milliseconds of each step])."""
        synchronize(self.device)
        seconds = time.perf_counter() - self.began
        pairs = list(zip(self.marks, self.marks[1:], strict=False))
        if self.device.type != "cuda":
            return seconds, [(end - start) * 1000 for start, end in pairs]
        return seconds, [start.elapsed_time(end) for start, end in pairs]


def synchronize(device):
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def count_syncs(trainer, batches, hidden, steps):
    """Take `steps` steps; return how often one waited for the GPU (torch.cuda.set_sync_debug_mode), None on the CPU."""
    if trainer.device.type != "cuda":
        return None
    taken = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for _, batch in zip(range(steps), batches(), strict=False):
                torch.cuda.set_sync_debug_mode("warn")  # not for the first batch: an epoch's order may be waited for
                _, hidden = trainer.step(batch, hidden)
                taken += 1
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught) / taken


def read_compiler(trainer):
    """Return {"graphs": how many torch.compile has made in this process, "seconds": how long that took}."""
    if trainer.model is trainer.network:  # not compiled: its modules need not even be loaded
        return {"graphs": 0, "seconds": 0.0}
    from torch._dynamo.utils import calculate_time_spent, counters

    return {"graphs": counters["stats"]["unique_graphs"], "seconds": calculate_time_spent()["total_wall_time"]}


def waited_for(batches, waits):
    """Yield `batches` and add the host's seconds in getting each to `waits`."""
    batches = iter(batches)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        waits.append(time.perf_counter() - asked)
        if batch is None:
            return
        yield batch


def in_blocks(step_ms, blocks=10):
    """Return the seconds of up to `blocks` parts of an epoch of (nearly) equally many steps."""
    blocks = min(blocks, len(step_ms))
    edges = [len(step_ms) * number // blocks for number in range(blocks + 1)]
    return [sum(step_ms[start:end]) / 1000 for start, end in itertools.pairwise(edges)]


def summarise_times(record, samples_per_epoch):
    """Fill in step percentiles (ms) and samples per second from what was timed so far."""
    times = sorted(record.step_ms_all)
    if times:
        record.step_ms_median = statistics.median(times)
        record.step_ms_p10 = times[int(0.1 * (len(times) - 1))]
        record.step_ms_p90 = times[math.ceil(0.9 * (len(times) - 1))]
    record.samples_per_second = samples_per_epoch / statistics.median(record.epoch_seconds)
    record.data_wait_fraction = sum(record.data_wait_seconds_all) / sum(record.epoch_seconds)


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


startup = StartUp(STARTED)
