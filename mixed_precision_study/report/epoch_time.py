"""The time of an epoch, or of a sample where epochs are unequal work."""

from ..record import samples_in_epoch
from .comparisons import runs_of
from .report import Report


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
