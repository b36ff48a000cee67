"""The last metrics of a comparison, and whether a precision loses quality beside fp32."""

import statistics
from collections.abc import Mapping

from ..analysis.equivalence import WORSE, quality_difference
from .comparisons import ok_runs
from .style import PRECISIONS

NO_FP32_WEIGHTS = ("o3_fp16", "bf16_true")


def metric_of(group: dict) -> tuple[str, str]:
    """Return (name, which way is better) of the held-out metric."""
    runs = [record for precision in PRECISIONS for record in ok_runs(group, precision) if record["metric_name"]]
    return (runs[0]["metric_name"].replace("_", " "), runs[0]["metric_better"]) if runs else ("metric", "?")


def last_metrics(group: dict, precision: str) -> dict[tuple, float]:
    """Return {(seed, repetition): the last metric} of the ok runs."""
    runs = [record for record in ok_runs(group, precision) if record["metric"] and record["metric"][-1] is not None]
    return {(record["seed"], record.get("repeat")): record["metric"][-1] for record in runs}


def by_seed(metrics: Mapping[tuple, float]) -> dict[int, float]:
    """Return {seed: last metric} from {(seed, repetition): last metric}: repetitions of a seed count as their mean."""
    found: dict[int, list[float]] = {}
    for (seed, *_), value in metrics.items():
        found.setdefault(seed, []).append(value)
    return {seed: statistics.fmean(values) for seed, values in found.items()}


def quality_against_fp32(group: dict, precision: str) -> dict | None:
    """Return how the last metric of a precision differs from fp32's over equal seeds, see quality_difference."""
    own = by_seed(last_metrics(group, precision))
    base = by_seed(last_metrics(group, "fp32"))
    name, better = metric_of(group)
    return quality_difference(own, base, name.replace(" ", "_"), better)


def loses_quality(group: dict, precision: str) -> bool:
    """Return whether a precision's last metric is too much worse than fp32's for it to be recommended."""
    found = quality_against_fp32(group, precision)
    if not found or not found["margin"] or abs(found["difference"]) <= found["margin"]:
        return False
    if (found["difference"] > 0) == (metric_of(group)[1] == "higher"):
        return False
    return precision in NO_FP32_WEIGHTS or found["outcome"] == WORSE
