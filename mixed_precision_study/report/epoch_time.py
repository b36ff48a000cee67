"""The time of an epoch, or of a sample where epochs are unequal work."""

from functools import partial
from statistics import fmean

from ..analysis.speedup import geometric
from ..record import samples_in_epoch
from .bars import pool
from .comparisons import runs_of, timed_runs
from .report import Bar, Key, Report


def uneven_experiments(report: Report) -> set[str]:
    """Return the experiments whose epochs are unequal work; an incomplete last batch makes less than 1%."""
    samples: dict[str, list[float]] = {}
    for record in runs_of(group for _, group in report.charted_groups):
        if record["status"] == "ok":
            samples.setdefault(record["notebook"], []).append(samples_in_epoch(record))
    return {notebook for notebook, found in samples.items() if 0 < 1.01 * min(found) < max(found)}


def times_of(record: dict, per_sample: bool) -> list[float]:
    """Return the seconds of the timed epochs, or the microseconds of a sample in each of them."""
    samples = samples_in_epoch(record)
    if not per_sample:
        return list(record["epoch_seconds"])
    return [1e6 * seconds / samples for seconds in record["epoch_seconds"] if samples]


def pool_times(report: Report, per_sample: bool = False) -> dict[Key, Bar]:
    """Return what pool() returns for `times_of`. A bar's height is the geometric mean over runs of each run's mean.

    So two bars divide to the ratio of their processes.
    """
    read = partial(times_of, per_sample=per_sample)
    bars = pool(report, read)
    for number, precision in bars:
        runs = timed_runs(report.comparisons[number], precision)
        height = geometric(fmean(read(run)) for run in runs if read(run))
        bars[number, precision] = (height, *bars[number, precision][1:])
    return bars
