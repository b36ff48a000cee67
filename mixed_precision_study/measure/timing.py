"""Times of an epoch, of its steps and of the start of a run.

Nothing here waits for the GPU inside a timed epoch.
"""

import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .. import STARTED
from ..store.record import RunRecord


class StepClock:
    """Times an epoch by the wall clock and each step on the device. It synchronises only at the two
    ends.

    On a GPU, CUDA events mark the steps and are read after the epoch. On the CPU the wall clock
    marks them.
    """

    def __init__(self, device: torch.device):
        self.device = device

    def start(self) -> None:
        synchronize(self.device)
        self.began = time.perf_counter()
        self.marks = [self._mark()]

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def tick(self) -> None:
        self.marks.append(self._mark())

    def stop(self) -> tuple[float, list[float]]:
        """Return the wall seconds of the epoch and the milliseconds of each step."""
        synchronize(self.device)
        seconds = time.perf_counter() - self.began
        steps = itertools.pairwise(self.marks)
        on_gpu = self.device.type == "cuda"
        return seconds, [
            start.elapsed_time(end) if on_gpu else (end - start) * 1000 for start, end in steps
        ]


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def count_syncs(
    take_step: Callable,
    batches: Callable,
    steps: int,
    device: torch.device,
) -> float | None:
    """Call take_step(batch) `steps` times and return how often each waited for the GPU on average.

    PyTorch counts the waits: torch.cuda.set_sync_debug_mode. On the CPU it is None, and no batch is
        asked for.
    """
    if device.type != "cuda":
        return None
    taken = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for _, batch in zip(range(steps), batches(), strict=False):
                # only now: the first batch may wait for the epoch's order
                torch.cuda.set_sync_debug_mode("warn")
                take_step(batch)
                taken += 1
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught) / taken


def read_compiler(compiled: bool) -> dict:
    """Return how many graphs torch.compile has made in this process, and how long it took, as
    {"graphs", "seconds"}.

    compiled: whether the model is. If it is not, both are 0, so that torch._dynamo need not be
        loaded.
    """
    if not compiled:
        return {"graphs": 0, "seconds": 0.0}
    from torch._dynamo.utils import calculate_time_spent, counters

    return {
        "graphs": counters["stats"]["unique_graphs"],
        "seconds": calculate_time_spent()["total_wall_time"],
    }


def waited_for(batches: Iterable, waits: list[float]) -> Iterator:
    """Yield `batches` and append to `waits` the seconds that the host took to get each."""
    batches = iter(batches)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        waits.append(time.perf_counter() - asked)
        if batch is None:
            return
        yield batch


def in_blocks(step_ms: list[float], blocks: int = 10) -> list[float]:
    """Split an epoch into at most `blocks` parts with nearly equal numbers of steps; return
    their seconds.
    """
    blocks = min(blocks, len(step_ms))
    edges = [len(step_ms) * number // blocks for number in range(blocks + 1)]
    return [sum(step_ms[start:end]) / 1000 for start, end in itertools.pairwise(edges)]


def summarise_times(record: RunRecord, samples_per_epoch: int) -> None:
    """Fill in the step percentiles, the throughput and the fraction of time spent waiting for
    data.
    """
    times = sorted(record.step_ms_all)
    last = len(times) - 1
    record.fill(
        step_ms_median=statistics.median(times),
        step_ms_p10=times[int(0.1 * last)],
        step_ms_p90=times[math.ceil(0.9 * last)],
        samples_per_second=samples_per_epoch / statistics.fmean(record.epoch_seconds),
        data_wait_fraction=sum(record.data_wait_seconds_all) / sum(record.epoch_seconds),
    )


class StartUp:
    """Divides the time from the notebook's first cell to its first timed step into named parts.

    Pauses between cells that are run by hand count towards the next part.
    """

    def __init__(self, began: float):
        self.last = began
        self.seconds: dict = {}
        self.over = False

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self.last
        self.last = now

    def end(self, record: RunRecord) -> None:
        """Write the times into the record of the first run. Later runs only get a reason."""
        if self.over:
            if record.startup_seconds is None:
                record.startup_reason = "not the first run of its kernel"
            return
        self.over = True
        self.lap("warmup")
        record.startup_seconds = sum(self.seconds.values())
        for part, seconds in self.seconds.items():
            setattr(record, f"startup_{part}_seconds", seconds)


startup = StartUp(STARTED)
