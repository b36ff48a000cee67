"""Whether a run learned as its baseline did: the speed-up of one that did not is none, and
quality lost is told.
"""

from collections.abc import Sequence
from statistics import fmean, median

from ..store.record import last_metric
from .conditions import name_beside
from .divergence import LEARNED, gain_over_chance, settled, skipped_fraction
from .equivalence import WORSE, direction_of, quality_difference
from .finding import Finding

FEW_SKIPPED = 10  # fewer skipped steps are the usual search for a loss scale
SKIPPED = 0.01  # from this share of skipped steps on, a run made fewer updates than its baseline
NO_FP32_WEIGHTS = ("o3_fp16", "bf16_true")  # precisions whose weights lose small updates
HALF = 0.5  # of the baseline's gain over chance


def why_not_trained(pairs: Sequence[tuple[dict, dict]]) -> Finding | None:
    """Return why one side of some pairs (run, base run) did not train, or None.

    It is "skipped", "no_metric" or "too_little".
    """
    for side in (0, 1):
        reason = why_skipped([pair[side] for pair in pairs]) or why_no_metric(pairs, side)
        if reason:
            return reason
    return why_too_little(pairs)


def why_skipped(records: Sequence[dict]) -> Finding | None:
    """Return "skipped" with the share of the steps of a run that were, or None for few.

    The run with the largest share counts.
    """
    worst = max(records, key=skipped_fraction)
    share = skipped_fraction(worst)
    if (worst["skipped_steps"] or 0) < FEW_SKIPPED or share < SKIPPED:
        return None
    return Finding("skipped", worst["precision"], {"share": share})


def why_no_metric(pairs: Sequence[tuple[dict, dict]], side: int) -> Finding | None:
    """Return "no_metric" where a run on one side was evaluated and has no finite last metric, or
    None.
    """
    for pair in pairs:
        record, other = pair[side], pair[1 - side]
        evaluated = record["metric"] or last_metric(other) is not None
        if evaluated and last_metric(record) is None:
            return Finding("no_metric", record["precision"], {"metric": record["metric_name"]})
    return None


def why_too_little(pairs: Sequence[tuple[dict, dict]]) -> Finding | None:
    """Return "too_little" with the medians of the last metrics, or None.

    It holds for runs that gained less than half of what their baseline, if it has learned, gained
    over chance.
    """
    gain, base_gain = (median_gain([settled(pair[side]) for pair in pairs]) for side in (0, 1))
    if gain is None or base_gain is None or base_gain < LEARNED or gain >= HALF * base_gain:
        return None
    own, base = pairs[0]
    last = ([last_metric(pair[side]) for pair in pairs] for side in (0, 1))
    ends = [median(one for one in found if one is not None) for found in last]
    values = {"metric": own["metric_name"], "own": ends[0], "base": ends[1]}
    return Finding("too_little", name_beside(own, base), values | {"other": name_beside(base, own)})


def median_gain(records: Sequence[dict]) -> float | None:
    """Return the median gain over chance of some runs, or None where none is known."""
    known = [gain for record in records if (gain := gain_over_chance(record)) is not None]
    return median(known) if known else None


def has_learned(records: Sequence[dict]) -> bool:
    """Return whether runs are known to have left chance behind: their median gain over it."""
    gain = median_gain(records)
    return gain is not None and gain >= LEARNED


def by_seed(records: Sequence[dict]) -> dict[int, float]:
    """Return {seed: last metric}. Repetitions of a seed count as their mean."""
    found: dict[int, list[float]] = {}
    for record in records:
        if (value := last_metric(record)) is not None:
            found.setdefault(record["settings"]["seed"], []).append(value)
    return {seed: fmean(values) for seed, values in found.items()}


def quality_lost(runs: Sequence[dict], base_runs: Sequence[dict]) -> Finding | None:
    """Return that runs end worse than a baseline that has learned, by more than the margin.

    It must also be beyond the scatter of three seeds, but for precisions without fp32 weights. The
    code is "lost", or "lost_by_rounding" where stochastic rounding is a remedy, and the values are
    the mean last metrics of equal seeds. Else return None.
    """
    own, base = by_seed(runs), by_seed(base_runs)
    if not has_learned(base_runs):
        return None
    first, one = runs[0], base_runs[0]
    found = quality_difference(own, base, one)
    if not found or not found["margin"] or abs(found["difference"]) <= found["margin"]:
        return None
    beyond = first["precision"] in NO_FP32_WEIGHTS or found["outcome"] == WORSE
    if not beyond or direction_of(found, one["metric_better"]) != WORSE:
        return None
    ends = [fmean(metrics[seed] for seed in own.keys() & base.keys()) for metrics in (own, base)]
    rounding = first["settings"].get("rounding", "nearest")
    by_rounding = first["precision"] == "bf16_true" and rounding == "nearest"
    values = {"metric": one["metric_name"], "own": ends[0], "base": ends[1]}
    return Finding("lost_by_rounding" if by_rounding else "lost", values=values)
