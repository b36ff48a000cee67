"""What the runs take of memory, and their throughput."""

from ..analysis.speedup import geometric
from ..record import samples_in_epoch
from .bars import Read, values_of
from .comparisons import ok_runs


def gib(field: str) -> Read:
    """Return a reader of one field in GiB for pool()."""
    return values_of(field, scale=1024)


def peak_gib(record: dict) -> float | None:
    """Return the peak of PyTorch's memory in GiB, less the data set that lies on the device, or None if unknown."""
    if record["peak_allocated_mib"] is None:
        return None
    return (record["peak_allocated_mib"] - (record["data_on_device_mib"] or 0)) / 1024


def highest_peak(runs: list[dict]) -> float | None:
    """Return the highest `peak_gib` of some runs, or None where it is known of none."""
    return max((peak for run in runs if (peak := peak_gib(run)) is not None), default=None)


def memory_saved(group: dict, precision: str, baseline: str) -> float | None:
    """Return the percentage of the baseline's highest peak that is saved, or None if unknown."""
    own, base = (highest_peak(ok_runs(group, name)) for name in (precision, baseline))
    return 100 * (1 - own / base) if own and base and min(own, base) > 0 else None


def rates(record: dict) -> list[float]:
    """Return the samples per second of every timed epoch."""
    samples = samples_in_epoch(record)
    return [samples / seconds for seconds in record["epoch_seconds"] if samples]


def speed_of(runs: list[dict]) -> float | None:
    """Return samples per second over all timed epochs, or None where no run knows its samples.

    It is the geometric mean of the runs' totals. So two such rates divide to the ratio of their processes.
    """
    known = [found for run in runs if (found := rates(run))]
    return geometric(len(found) / sum(1 / rate for rate in found) for found in known) if known else None
