"""How long runs take: recorded seconds, expected seconds, and a lower bound for a whole study."""

import json
import re
import statistics
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..record import write_flat
from .plan import Run

TIMES_FILE = "logs/batch.json"  # below the output folder


def read_seconds(folder: Path) -> dict[str, float]:
    """Return {run_id: seconds} of the runs in this output folder, as they were measured before."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        seconds = json.loads((folder / TIMES_FILE).read_text(encoding="utf-8")).get("run_seconds", {})
        return {str(run_id): float(value) for run_id, value in seconds.items() if 0 < value < 1e9}
    return {}


def write_times(folder: Path, run_seconds: dict[str, float], **facts: Any) -> None:
    """Write the seconds of the runs, which order the next start, and `facts` about the whole study."""
    write_flat({**facts, "run_seconds": run_seconds}, folder / TIMES_FILE)


def estimator(runs: Iterable[Run], seconds: dict[str, float]) -> Callable[[Run], float]:
    """Return a function that gives the expected seconds of a run.

    These are the recorded ones, else the minutes of the study. Those are for one H200 and are scaled to this machine by
    the runs whose seconds are known.
    """
    known = [seconds[run.run_id] / (60 * run.minutes) for run in runs if run.run_id in seconds and run.minutes > 0]
    factor = statistics.median(known) if known else 1.0
    return lambda run: seconds.get(run.run_id, 60 * run.minutes * factor)


def ideal_seconds(jobs: Iterable[list[float]], devices: int) -> float:
    """Return a lower bound on the makespan of [[seconds of a job's runs]], each job on one of the devices."""
    sums = [sum(job) for job in jobs]
    return max([sum(sums) / max(devices, 1), *sums], default=0.0)


def share_done(progress: str) -> float | None:
    """Return the share of a training that is done, from its epoch and step, or None where they are not told."""
    if found := re.search(r"epoch (\d+)/(\d+), step (\d+)/(\d+)$", progress):
        epoch, epochs, step, steps = map(int, found.groups())
        return (epoch - 1 + step / max(steps, 1)) / max(epochs, 1)
    return None


def seconds_left(busy: list[float], waiting: Iterable[float]) -> float:
    """Return the expected seconds until all ends, from those of each device and those of the waiting jobs."""
    ends = sorted(busy) or [0.0]
    for job in waiting:  # the longest first, each to the device that is free first
        ends[0] += job
        ends.sort()
    return ends[-1]


def duration_text(seconds: float) -> str:
    """Return a duration as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
