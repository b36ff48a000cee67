"""What a batch knows about time: how long runs take, in which order they go, how near the ideal the whole came."""

import itertools
import json
import re
import statistics
from contextlib import suppress

from ..record import write_flat

FILE = "logs/batch.json"  # below the output folder


def read_seconds(folder):
    """Return {run_id: seconds} as the batches in this output folder have measured them."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        seconds = json.loads((folder / FILE).read_text(encoding="utf-8")).get("run_seconds", {})
        return {str(run_id): float(value) for run_id, value in seconds.items() if 0 < value < 1e9}
    return {}


def write_batch(folder, run_seconds, **facts):
    """Write what is known of a batch as a whole; the seconds of its runs order the next one."""
    write_flat({**facts, "run_seconds": run_seconds}, folder / FILE)


def estimator(runs, seconds):
    """Return a function that gives the expected seconds of a run: as recorded, else the study's minutes scaled to here.

    The minutes of a study are for one H200; the runs whose seconds are known say what they are worth on this machine.
    """
    known = [seconds[run.run_id] / (60 * run.minutes) for run in runs if run.run_id in seconds and run.minutes > 0]
    factor = statistics.median(known) if known else 1.0
    return lambda run: seconds.get(run.run_id, 60 * run.minutes * factor)


def longest_first(jobs, expected):
    """Return [(comparison, its unfinished runs, home)] in the order in which they start: the longest first."""
    return sorted(jobs, key=lambda job: -sum(map(expected, job[1])))


def ideal_seconds(jobs, devices):
    """Return what no order could beat: [[seconds of a job's runs]] on so many devices, each job on one of them."""
    sums = [sum(job) for job in jobs]
    return max([sum(sums) / max(devices, 1), *sums], default=0.0)


def share_done(progress):
    """Return which share of a training is done, by what its notebook tells of epoch and step, or None."""
    if found := re.search(r"epoch (\d+)/(\d+), step (\d+)/(\d+)$", progress):
        epoch, epochs, step, steps = map(int, found.groups())
        return (epoch - 1 + step / max(steps, 1)) / max(epochs, 1)
    return None


def seconds_left(busy, waiting, devices):
    """Return the expected seconds until a batch ends; `busy` holds the rest of each device, `waiting` jobs to come."""
    ends = sorted([*busy, *itertools.repeat(0.0, max(devices - len(busy), 0))]) or [0.0]
    for job in waiting:  # the longest first, each to the device that is free first
        ends[0] += job
        ends.sort()
    return ends[-1]


def in_time(seconds):
    """Return a duration as h:mm:ss or m:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
