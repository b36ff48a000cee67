"""How much faster a run is than its baseline. The unit of repetition is the process."""

import math
from collections.abc import Iterable
from itertools import chain
from statistics import fmean, median

import numpy as np

from ..parameters import MAX_NUMBER
from ..store.record import Runs, is_explanation
from .axis import grouped
from .conditions import (
    Pair,
    always_in_one_order,
    differences,
    differences_in,
    fairly_timed,
    fairly_timed_pairs,
    host_of,
    no_outcome_in,
)
from .finding import Finding
from .stats import ends_of, exponential, half_width, p_value
from .trained import quality_lost, why_not_trained

FEWEST_PROCESSES = 3  # with fewer, nothing is known about how processes scatter
FEWEST_HOSTS = 3  # from so many on, the unit of eager ratios is the machine
FEWEST_HOSTS_FOR_INTERVAL = 5
# factor between the ratio of total times and that of the median blocks that is flagged
BLOCKS_APART = 1.02
SMALLEST_CLAIMED = 1.02  # a smaller ratio is not claimed, however narrow the interval
# None where there are too few processes
INTERVAL_FIELDS = ("low", "high", "low90", "high90", "p", "smallest")
FIELDS = (  # of a ratio, see paired_ratio()
    "ratio",
    *INTERVAL_FIELDS,
    "processes",
    "hosts",
    "lowest",
    "highest",
    "seeds",
    "seconds",
    "median_ratio",
    "apart",
    "differences",
    "unlike",
    "one_order",
    "untrained",
    "lost",
)


def block_times(record: dict) -> np.ndarray:
    """Return the timed epochs as an array (epochs, blocks) of seconds; records without blocks
    have one per epoch.
    """
    epochs = record["epoch_seconds"]
    blocks = record["block_seconds"]
    whole = blocks and len(blocks) % len(epochs) == 0
    return np.reshape(np.array(blocks if whole else epochs, float), (len(epochs), -1))


def is_per_sample(own: dict, base: dict) -> bool:
    """Return whether two runs are compared in seconds per sample: their batch sizes differ, or
    were searched.
    """
    sizes = [record["settings"]["batch_size"] for record in (own, base)]
    return sizes[0] == "max" or sizes[0] != sizes[1]


def ratio_of_times(own: dict, base: dict, seconds: float, base_seconds: float) -> float | None:
    """Return how many times as fast a run is, from the times of as many epochs as of its base.

    It is per sample where is_per_sample() says so, and then None if the samples are not known.
    """
    if not is_per_sample(own, base):
        return base_seconds / seconds
    samples = own["samples_per_epoch"]
    base_samples = base["samples_per_epoch"]
    if not samples or not base_samples:
        return None
    return base_seconds / seconds * (samples / base_samples)


def total_ratio(own: dict, base: dict) -> float | None:
    """Return the ratio_of_times() by the total of the epochs that both runs have."""
    times = own["epoch_seconds"], base["epoch_seconds"]
    count = min(map(len, times))
    return ratio_of_times(own, base, *(sum(one[:count]) for one in times))


def ratio_of_means(own: Runs, base: Runs) -> float | None:
    """Return the ratio_of_times() of some ok runs over others without pairs.

    The times are geometric means over runs of their mean epochs, as the seconds of bars are.
    """
    sides = map(fairly_timed, (own, base))
    means = (geometric(fmean(run["epoch_seconds"]) for run in runs) for runs in sides)
    return ratio_of_times(own[0], base[0], *means)


def block_ratios(own: dict, base: dict) -> np.ndarray:
    """Return base over own as (epochs, blocks); whole epochs, per sample perhaps, where blocks
    are unequal work.
    """
    times = block_times(own)
    base_times = block_times(base)
    per_sample = is_per_sample(own, base)
    if per_sample:
        times = times / own["samples_per_epoch"]
        base_times = base_times / base["samples_per_epoch"]
    if per_sample or times.shape[1] != base_times.shape[1]:
        times = times.sum(1, keepdims=True)
        base_times = base_times.sum(1, keepdims=True)
    count = min(len(times), len(base_times))
    return base_times[:count] / times[:count]


def logarithm_of(ratio: float) -> float:
    """Return the logarithm of a ratio, within what a record may hold."""
    return math.log(min(max(ratio, 1 / MAX_NUMBER), MAX_NUMBER))


def geometric(numbers: Iterable[float]) -> float:
    """Return the geometric mean of numbers, each taken within what a record may hold above 0."""
    return exponential(fmean(map(logarithm_of, numbers)))


def pairing_of(record: dict) -> tuple:
    """Return what is equal in a run and its counterpart: seed, repetition and GPU."""
    return record["settings"]["seed"], record["settings"].get("repeat"), record["gpu_uuid"]


def newest_first(runs: Runs) -> Runs:
    """Return the ok records whose times count, the newest first."""
    kept = [run for run in runs if run["status"] == "ok" and not is_explanation(run)]
    names = ("started_at", "run_id", "path")
    return sorted(kept, key=lambda run: tuple(run.get(name) or "" for name in names), reverse=True)


def paired_runs(runs: Runs, base_runs: Runs) -> list[Pair]:
    """Return [(run, its counterpart)] of timed ok records with equal seed, repetition and GPU.

    A counterpart is used once. Of several, that with the fewest other conditions is taken, then the
    newest.
    """
    found = {}
    free = grouped(newest_first(base_runs), pairing_of)
    for run in newest_first(runs):
        if candidates := free.get(pairing_of(run)):
            unlike = [len(differences(run, base)) for base in candidates]
            found[id(run)] = run, candidates.pop(unlike.index(min(unlike)))
    return [found[id(run)] for run in runs if id(run) in found]


def paired_ratio(pairs: list[Pair]) -> dict | None:
    """Return how many times as fast the runs are as their counterparts, or None without usable
    pairs.

    Pairs of the same two processes, as of several seeds, count as one. Pairs that flags_of() calls
    disturbed are left out where there are others. Eager times belong to a host, so from
    FEWEST_HOSTS on the host is the unit: the ratio is the median of theirs, with Student's
    interval from FEWEST_HOSTS_FOR_INTERVAL on. A CUDA graph repeats within 3% on any host, so its
    unit stays the process. The keys:

    ratio: geometric mean of the processes' ratios of total time; above 1, the run is the faster one
    low, high, low90, high90: 95% and 90% interval by Student on the logarithms; None below
        FEWEST_PROCESSES
    p, smallest: p value of the ratio being 1, and the smallest difference (share) that the interval
        could have told
    processes, hosts, seeds: how many of each
    lowest, highest: the ends of the machines' ratios
    seconds: the total time of the shortest run of either side
    median_ratio: the same mean of the median blocks
    apart: whether it parts from `ratio` by more than 2%
    differences: in which conditions the two sides differ, and how many pairs are left out
    unlike, one_order, untrained: why no outcome is allowed, or None; a graph's times do not drift
        with the order
    lost: that their quality is worse than the other side's, or None
    """
    fair = fairly_timed_pairs(pairs)
    ratios = [(pair, one) for pair in fair if (one := total_ratio(*pair)) is not None]
    if not ratios:
        return None
    usable = [pair for pair, _ in ratios]
    graph = all(map(is_graph, chain(*usable)))
    found = spread_of(ratios, graph)
    blocks = geometric(float(np.median(block_ratios(*pair))) for pair in usable)
    differing = differences_in(usable)
    if len(fair) < len(pairs):
        differing.append(
            Finding("left_out", values={"number": len(pairs) - len(fair), "total": len(pairs)})
        )
    return {
        **found,
        "seeds": len({own["settings"]["seed"] for own, _ in usable}),
        "seconds": min(sum(one["epoch_seconds"]) for one in chain(*usable)),
        "median_ratio": blocks,
        "apart": max(found["ratio"] / blocks, blocks / found["ratio"]) > BLOCKS_APART,
        "differences": differing,
        "unlike": no_outcome_in(usable),
        "one_order": None if graph else always_in_one_order(usable),
        "untrained": why_not_trained(pairs),
        "lost": quality_lost(*zip(*pairs, strict=True)),
    }


def interaction(base: Runs, first: Runs, second: Runs, both: Runs) -> dict:
    """Return how many times what the second setting gains alone it gains beside the first one, 1
    where it does not matter, with interval_of() it; {} where no repetition has all four arms.
    """
    alone, beside = (
        {
            pairing_of(own): logarithm_of(ratio)
            for own, other in paired_runs(*sides)
            if (ratio := total_ratio(own, other))
        }
        for sides in ((second, base), (both, first))
    )
    apart = [beside[key] - alone[key] for key in alone if key in beside]
    return {"ratio": exponential(fmean(apart)), **interval_of(apart)} if apart else {}


def is_graph(record: dict) -> bool:
    """Return whether a run replays a CUDA graph, which hardly waits for its CPU."""
    return "cuda_graph" in (record["settings"].get("execution") or "")


def spread_of(ratios: list[tuple[Pair, float]], graph: bool) -> dict:
    """Return the mean of ratios, its interval, the ends, and numbers of processes and machines."""
    logarithms = by_process(ratios)
    hosts = grouped(ratios, lambda one: host_of(one[0][0]) or one[0][0]["gpu_uuid"])
    ends = [exponential(fmean(by_process(alike))) for alike in hosts.values()]
    ratio = exponential(fmean(logarithms))
    interval = interval_of(logarithms)
    if len(ends) >= FEWEST_HOSTS and not graph:
        ratio = median(ends)
        interval = interval_of(list(map(logarithm_of, ends)), FEWEST_HOSTS_FOR_INTERVAL)
    return {
        "ratio": ratio,
        **interval,
        "processes": len(logarithms),
        "hosts": len(ends),
        "lowest": min(ends),
        "highest": max(ends),
    }


def by_process(ratios: list[tuple[Pair, float]]) -> list[float]:
    """Return the mean logarithm of the ratios of each two processes.

    Records without a process are one each.
    """
    found = grouped(ratios, lambda one: tuple(run["process_id"] or id(run) for run in one[0]))
    return [fmean(logarithm_of(ratio) for _, ratio in alike) for alike in found.values()]


def interval_of(logarithms: list[float], fewest: int = FEWEST_PROCESSES) -> dict:
    """Return Student's intervals of the mean of logarithms, as ratios, and what they could have
    told from 1; all None below `fewest` logarithms.
    """
    if len(logarithms) < fewest:
        return dict.fromkeys(INTERVAL_FIELDS)
    smallest = max(exponential(half_width(logarithms, 0.95)), SMALLEST_CLAIMED) - 1
    found = (*map(exponential, ends_of(logarithms)), p_value(logarithms), smallest)
    return dict(zip(INTERVAL_FIELDS, found, strict=True))


def unpaired_ratio(ratio: float) -> dict:
    """Return the form of `paired_ratio` for a ratio of runs without counterparts, of which
    nothing may be said.
    """
    counts = dict.fromkeys(("processes", "hosts", "seeds", "seconds"), 0)
    same = dict.fromkeys(("ratio", "lowest", "highest", "median_ratio"), ratio)
    return dict.fromkeys(FIELDS) | counts | same | {"apart": False, "differences": []}
