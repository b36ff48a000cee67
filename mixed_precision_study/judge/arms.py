"""What an arm gains: two groups of trainings that differ in named settings alone."""

import statistics

from ..store.record import Runs
from .axis import grouped
from .conditions import fairly_timed, host_of
from .equivalence import quality_difference
from .ratios import (
    FEWEST_HOSTS,
    geometric,
    is_graph,
    paired_ratio,
    paired_runs,
    ratio_of_means,
    unpaired_ratio,
)
from .trained import by_seed
from .verdict import FEW_HOSTS, ON_CPU, judge

JOULES = "joules_per_1000_samples"


def compared(own: Runs, base: Runs) -> dict | None:
    """Return what the ok runs of an arm are beside those of its base, or None without both.

    The keys are those of paired_ratio(), and:

    outcome: what the ratio allows to say, see judge()
    saved: share of the base's peak of memory that is not needed; below 0 where more is
    energy: share of the base's joules, see energy_share()

    Beside these, `quality` is the quality_difference() from the base, or None.
    """
    found = ratio_between(own, base)
    if found is None:
        return None
    if not found["processes"]:
        found = found | over_hosts(own, base)
    on_cpu = any(run["device_type"] == "cpu" for run in own)
    return found | {
        "outcome": ON_CPU if on_cpu else found.get("outcome", judge(found)),
        "saved": memory_saved(own, base),
        "energy": energy_share(own, base),
        "quality": quality_beside(own, base),
    }


def ratio_between(own: Runs, base: Runs) -> dict | None:
    """Return the ratio of two lists of ok runs, by mean epochs where there is no pair."""
    if not own or not base:
        return None
    if found := paired_ratio(paired_runs(own, base)):
        return found
    ratio = ratio_of_means(own, base)
    return unpaired_ratio(ratio) if ratio else None


def over_hosts(own: Runs, base: Runs) -> dict:
    """Return how many times as fast graphs are as eager runs on three or more machines, else {}.

    A graph repeats within 3% on any machine and eager times belong to theirs, so the ratio is the
    median of the machines.
    """
    hosts = grouped(base, host_of).values()
    eager = (base[0]["settings"].get("execution") or "eager") == "eager"
    if not is_graph(own[0]) or not eager or len(hosts) < FEWEST_HOSTS:
        return {}
    ratios = list(filter(None, (ratio_of_means(own, runs) for runs in hosts)))
    return unpaired_ratio(statistics.median(ratios)) | {
        "lowest": min(ratios),
        "highest": max(ratios),
        "hosts": len(ratios),
        "outcome": FEW_HOSTS,
    }


def peak_gib(record: dict) -> float | None:
    """Return the peak of PyTorch's memory in GiB without the data set, or None if unknown."""
    if record["peak_allocated_mib"] is None:
        return None
    return (record["peak_allocated_mib"] - (record["data_on_device_mib"] or 0)) / 1024


def memory_saved(own: Runs, base: Runs) -> float | None:
    """Return which share of the base's highest peak of memory the runs of an arm do without."""
    mine, theirs = (max(filter(None, map(peak_gib, runs)), default=0) for runs in (own, base))
    return 1 - mine / theirs if mine and theirs else None


def energy_share(own: Runs, base: Runs) -> float | None:
    """Return the share of the base's joules: the mean of pairs, as cards differ, else of
    medians.
    """
    mine, theirs = (fairly_timed([run for run in runs if run[JOULES]]) for runs in (own, base))
    if not mine or not theirs:
        return None
    if pairs := paired_runs(mine, theirs):
        return geometric(run[JOULES] / other[JOULES] for run, other in pairs)
    joules, base_joules = (
        statistics.median(run[JOULES] for run in runs) for runs in (mine, theirs)
    )
    return joules / base_joules


def quality_beside(own: Runs, base: Runs) -> dict | None:
    """Return the quality_difference() of an arm, or None without a metric or a common seed."""
    named = next((run for run in (*base, *own) if run["metric_name"]), None)
    return quality_difference(by_seed(own), by_seed(base), named) if named else None
