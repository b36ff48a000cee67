"""Whether a run learned as its baseline did: the speed-up of one that did not is none, and
quality lost is told.
"""

from collections.abc import Sequence
from itertools import permutations
from operator import itemgetter
from statistics import fmean

from ..store.record import Runs, last_metric
from .axis import grouped
from .conditions import Pair, name_beside
from .divergence import (
    FEW_STEPS,
    LEARNED,
    gain_over_chance,
    settled,
    skipped_fraction,
    timed_steps,
)
from .equivalence import WORSE, direction_of, quality_difference
from .finding import Finding
from .stats import median_of_known

FEW_SKIPPED = 10  # fewer skipped steps are the usual search for a loss scale
SKIPPED = 0.01  # from this share of skipped steps on, a run made fewer updates than its baseline
NO_FP32_WEIGHTS = ("o3_fp16", "bf16_true")  # precisions whose weights lose small updates
HALF = 0.5  # of the baseline's gain over chance


def why_not_trained(pairs: Sequence[Pair]) -> Finding | None:
    """Return why one side of some pairs (run, base run) did not train, or None.

    It is "skipped", "no_metric" or "too_little".
    """
    own, base = zip(*pairs, strict=True)
    for runs, others in permutations((own, base)):
        if reason := why_skipped(runs) or why_no_metric(runs, others):
            return reason
    return why_too_little(own, base)


def why_skipped(records: Runs) -> Finding | None:
    """Return "skipped" with the share of the steps of a run that were, or None for few.

    The run with the largest share counts.
    """
    worst = max(records, key=skipped_fraction)
    share = skipped_fraction(worst)
    if (worst["skipped_steps"] or 0) < FEW_SKIPPED or share < SKIPPED:
        return None
    return Finding("skipped", worst["precision"], {"share": share})


def why_no_metric(runs: Runs, others: Runs) -> Finding | None:
    """Return "no_metric" where a run has no finite last metric although it or its counterpart was
    evaluated, or None.
    """
    for record, other in zip(runs, others, strict=True):
        evaluated = record["metric"] or last_metric(other) is not None
        if evaluated and last_metric(record) is None:
            return Finding("no_metric", record["precision"], {"metric": record["metric_name"]})
    return None


def why_too_little(runs: Runs, base_runs: Runs) -> Finding | None:
    """Return "too_little" with the medians of the last metrics, or None.

    It holds for runs that gained less than half of what their baseline, if it has learned, gained
    over chance. After FEW_STEPS nothing is said, because chance decides who is ahead.
    """
    gain, base_gain = (
        median_of_known(map(gain_over_chance, map(settled, side))) for side in (runs, base_runs)
    )
    if gain is None or base_gain is None or base_gain < LEARNED or gain >= HALF * base_gain:
        return None
    own = runs[0]
    base = base_runs[0]
    if 0 < timed_steps(own) < FEW_STEPS:
        return None
    values = {
        "metric": own["metric_name"],
        "own": median_of_known(map(last_metric, runs)),
        "base": median_of_known(map(last_metric, base_runs)),
        "other": name_beside(base, own),
    }
    return Finding("too_little", name_beside(own, base), values)


def has_learned(records: Runs) -> bool:
    """Return whether runs are known to have left chance behind: their median gain over it."""
    return (median_of_known(map(gain_over_chance, records)) or 0) >= LEARNED


def by_seed(records: Runs) -> dict[int, float]:
    """Return {seed: last metric}. Repetitions of a seed count as their mean."""
    known = [(record["settings"]["seed"], last_metric(record)) for record in records]
    seeds = grouped([pair for pair in known if pair[1] is not None], itemgetter(0))
    return {seed: fmean(metric for _, metric in pairs) for seed, pairs in seeds.items()}


def quality_lost(runs: Runs, base_runs: Runs) -> Finding | None:
    """Return that runs end worse than a baseline that has learned, by more than the margin.

    It must also be beyond the scatter of three seeds, but for precisions without fp32 weights. The
    code is "lost", or "lost_by_rounding" where stochastic rounding is a remedy, and the values are
    the mean last metrics of equal seeds. Else return None.
    """
    if not has_learned(base_runs):
        return None
    own, base, first, one = by_seed(runs), by_seed(base_runs), runs[0], base_runs[0]
    found = quality_difference(own, base, one)
    if not found or not found["margin"] or abs(found["difference"]) <= found["margin"]:
        return None
    sure = first["precision"] in NO_FP32_WEIGHTS or found["outcome"] == WORSE
    if not sure or direction_of(found) != WORSE:
        return None
    ends = [fmean(metrics[seed] for seed in own.keys() & base.keys()) for metrics in (own, base)]
    rounding = first["settings"].get("rounding", "nearest")
    by_rounding = first["precision"] == "bf16_true" and rounding == "nearest"
    return Finding(
        "lost_by_rounding" if by_rounding else "lost",
        values={"metric": one["metric_name"], "own": ends[0], "base": ends[1]},
    )
