"""What the runs take of memory, and their throughput."""

from ..record import samples_in_epoch
from .bars import Read, values_of
from .comparisons import ok_runs


def gib(field: str) -> Read:
    """Return a reader of one field in GiB for pool()."""
    return values_of(field, scale=1024)


def memory_saved(group: dict, precision: str, baseline: str) -> float | None:
    """Return the percentage of the baseline's peak that is saved, both less the data on the device; None if unknown."""
    peaks = []
    for name in (precision, baseline):
        runs = [record for record in ok_runs(group, name) if record["peak_allocated_mib"] is not None]
        peaks.append(max([run["peak_allocated_mib"] - (run["data_on_device_mib"] or 0) for run in runs], default=0))
    return 100 * (1 - peaks[0] / peaks[1]) if min(peaks) > 0 else None


def rates(record: dict) -> list[float]:
    """Return the samples per second of every timed epoch."""
    samples = samples_in_epoch(record)
    return [samples / seconds for seconds in record["epoch_seconds"] if samples]
