"""Whether a precision trains as well as fp32: two one-sided tests against a margin that was
fixed beforehand.
"""

import math
from collections.abc import Mapping
from statistics import fmean

from .stats import ends_of, exponential

FEWEST_SEEDS = 3  # for an interval
# with three or four, equal precisions may happen to differ or to agree
FEWEST_SEEDS_FOR_OUTCOME = 5
EQUIVALENT, NOT_WORSE, UNKNOWN = "equivalent", "not_worse", "inconclusive"
ENDS = ("low", "high", "low90", "high90")
WORSE, BETTER = "worse", "better"
AS_GOOD = (EQUIVALENT, NOT_WORSE, BETTER)


def quality_difference(
    own: Mapping[int, float], base: Mapping[int, float], one: Mapping
) -> dict | None:
    """Return how the last metric of a precision differs from that of fp32, or None without a common
    seed.

    `own` and `base` are {seed: last metric}. `one` is a record of theirs, which says what the
    metric is and up to which difference from fp32 it counts as equivalent: a margin that its
    experiment fixes before any run. The differences of equal seeds are taken, as shares where the
    margin is one. The keys:

    metric: name of the metric
    difference, low, high: mean and 95% interval (None below FEWEST_SEEDS)
    low90, high90: the 90% interval
    margin: up to which it counts as equivalent; None where it has none
    is_ratio: whether all of these are shares of the base's value
    seeds: how many
    better: whether a higher or a lower metric is the better one
    outcome: EQUIVALENT where the 90% interval lies inside the margin. Else WORSE or BETTER where
        the 95% interval excludes 0. Else NOT_WORSE where the worse end of the 90% interval lies
        inside the margin. Else UNKNOWN. Below FEWEST_SEEDS_FOR_OUTCOME seeds only WORSE and BETTER
        are said, and where the 95% interval lies wholly beyond the margin.
    """
    seeds = sorted(own.keys() & base.keys())
    is_ratio = one["metric_margin_is_share"] and all(
        min(own[seed], base[seed]) > 0 for seed in seeds
    )
    if not seeds:
        return None
    level = math.log if is_ratio else float
    changes = [level(own[seed]) - level(base[seed]) for seed in seeds]
    found = {"difference": fmean(changes)} | dict.fromkeys(ENDS)
    if len(seeds) >= FEWEST_SEEDS:
        found |= zip(ENDS, ends_of(changes), strict=True)
    if is_ratio:
        found = {
            name: None if value is None else exponential(value) - 1 for name, value in found.items()
        }
    found |= {
        "metric": one["metric_name"],
        "margin": one["metric_margin"],
        "is_ratio": is_ratio,
        "seeds": len(seeds),
        "better": one["metric_better"],
    }
    return found | {"outcome": outcome_of(found)}


def outcome_of(found: dict) -> str:
    """Return what a difference with its intervals, margin and number of seeds allows to say."""
    if found["low"] is None:
        return UNKNOWN
    margin = found["margin"]
    enough = found["seeds"] >= FEWEST_SEEDS_FOR_OUTCOME
    inside = {
        "higher": margin and -margin < found["low90"],
        "lower": margin and found["high90"] < margin,
    }
    if enough and all(inside.values()):
        return EQUIVALENT
    excludes_0 = not found["low"] <= 0 <= found["high"]
    if excludes_0 and (enough or (margin and min(abs(found["low"]), abs(found["high"])) > margin)):
        return direction_of(found)
    return NOT_WORSE if enough and inside[found["better"]] else UNKNOWN


def direction_of(found: dict) -> str:
    """Return BETTER or WORSE by the sign of a difference alone."""
    return BETTER if (found["difference"] > 0) == (found["better"] == "higher") else WORSE
