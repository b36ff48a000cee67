"""Whether a run learned as its baseline did: the speed-up of one that did not is none, and
quality lost is told.
"""

from collections.abc import Sequence
from statistics import fmean, median

from ..store.record import last_metric
from .conditions import name_beside
from .divergence import LEARNED, gain_over_chance, settled, skipped_fraction
from .equivalence import WORSE, direction_of, quality_difference

FEW_SKIPPED = 10  # fewer skipped steps are the usual search for a loss scale
SKIPPED = 0.01  # from this share of skipped steps on, a run made fewer updates than its baseline
NO_FP32_WEIGHTS = ("o3_fp16", "bf16_true")  # precisions whose weights lose small updates
HALF = 0.5  # of the baseline's gain over chance


def why_not_trained(pairs: Sequence[tuple[dict, dict]]) -> str | None:
    """Return why one side of some pairs (run, base run) did not train: skipped steps, no metric
    or too little gain.
    """
    for side in (0, 1):
        reason = why_skipped([pair[side] for pair in pairs]) or why_no_metric(pairs, side)
        if reason:
            return reason
    return why_too_little(pairs)


def why_skipped(records: Sequence[dict]) -> str | None:
    """Return that too many steps of a run were skipped, or None.

    The run with the largest share counts.
    """
    worst = max(records, key=skipped_fraction)
    if (worst["skipped_steps"] or 0) < FEW_SKIPPED or skipped_fraction(worst) < SKIPPED:
        return None
    return (
        f"{worst['precision']} did not train: {skipped_fraction(worst):.0%} of its steps "
        "were skipped"
    )


def why_no_metric(pairs: Sequence[tuple[dict, dict]], side: int) -> str | None:
    """Return that a run on one side has no finite last metric although it was evaluated, or
    None.
    """
    for pair in pairs:
        record, other = pair[side], pair[1 - side]
        evaluated = record["metric"] or last_metric(other) is not None
        if evaluated and last_metric(record) is None:
            return (
                f"{record['precision']} did not train: its last {metric_name(record)} is "
                "missing or not finite"
            )
    return None


def why_too_little(pairs: Sequence[tuple[dict, dict]]) -> str | None:
    """Return that runs gained less than half of what their baseline, if it has learned, gained
    over chance.
    """
    gains = []
    for side in (0, 1):
        known = [gain_over_chance(settled(pair[side])) for pair in pairs]
        gains.append([gain for gain in known if gain is not None])
    if not all(gains) or median(gains[1]) < LEARNED or median(gains[0]) >= HALF * median(gains[1]):
        return None
    own, base = pairs[0]
    last = [[last_metric(pair[side]) for pair in pairs] for side in (0, 1)]
    ends = " against ".join(
        f"{median(one for one in found if one is not None):.3g}" for found in last
    )
    names = name_beside(own, base), name_beside(base, own)
    return f"{names[0]} did not train as {names[1]} did: its {metric_name(own)} ends at {ends}"


def metric_name(record: dict) -> str:
    """Return the name of a run's metric as words."""
    return (record["metric_name"] or "metric").replace("_", " ")


def has_learned(records: Sequence[dict]) -> bool:
    """Return whether runs are known to have left chance behind: their median gain over it."""
    known = [gain for record in records if (gain := gain_over_chance(record)) is not None]
    return bool(known) and median(known) >= LEARNED


def by_seed(records: Sequence[dict]) -> dict[int, float]:
    """Return {seed: last metric}. Repetitions of a seed count as their mean."""
    found: dict[int, list[float]] = {}
    for record in records:
        if (value := last_metric(record)) is not None:
            found.setdefault(record["settings"]["seed"], []).append(value)
    return {seed: fmean(values) for seed, values in found.items()}


def quality_lost(runs: Sequence[dict], base_runs: Sequence[dict]) -> str | None:
    """Return that runs end worse than a baseline that has learned, by more than the margin: "its
    accuracy ends at ...".

    It must also be beyond the scatter of three seeds, but for precisions without fp32 weights. Else
    return None.
    """
    own, base = by_seed(runs), by_seed(base_runs)
    if not has_learned(base_runs):
        return None
    one = base_runs[0]
    found = quality_difference(own, base, one)
    if not found or not found["margin"] or abs(found["difference"]) <= found["margin"]:
        return None
    if direction_of(found, one["metric_better"]) != WORSE:
        return None
    if runs[0]["precision"] not in NO_FP32_WEIGHTS and found["outcome"] != WORSE:
        return None
    ends = [fmean(metrics[seed] for seed in own.keys() & base.keys()) for metrics in (own, base)]
    nearest = (
        runs[0]["precision"] == "bf16_true"
        and runs[0]["settings"].get("rounding", "nearest") == "nearest"
    )
    remedy = ' (try rounding="stochastic")' if nearest else ""
    return f"its {metric_name(one)} ends at {ends[0]:.3g}, not {ends[1]:.3g}{remedy}"
