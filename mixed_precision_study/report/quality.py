"""The last metrics of a comparison, and whether a precision loses quality beside fp32."""

from ..analysis.equivalence import AS_GOOD, UNKNOWN, quality_difference
from ..analysis.trained import NO_FP32_WEIGHTS, by_seed, has_learned, quality_lost
from ..record import last_metric
from .comparisons import ok_runs
from .style import PRECISIONS
from .words import count


def metric_of(group: dict) -> tuple[str, str]:
    """Return (name, which way is better) of the held-out metric."""
    runs = [record for precision in PRECISIONS for record in ok_runs(group, precision) if record["metric_name"]]
    return (runs[0]["metric_name"].replace("_", " "), runs[0]["metric_better"]) if runs else ("metric", "?")


def last_metrics(group: dict, precision: str) -> dict[tuple, float]:
    """Return {(seed, repetition): the last metric} of the ok runs."""
    runs = ok_runs(group, precision)
    return {(run["seed"], run.get("repeat")): last for run in runs if (last := last_metric(run)) is not None}


def quality_against_fp32(group: dict, precision: str) -> dict | None:
    """Return how the last metric of a precision differs from fp32's over equal seeds, see quality_difference."""
    own, base = by_seed(ok_runs(group, precision)), by_seed(ok_runs(group, "fp32"))
    name, better = metric_of(group)
    return quality_difference(own, base, name.replace(" ", "_"), better)


def outcome_in_words(group: dict, precision: str, found: dict) -> str:
    """Return the outcome of a difference. It cannot be told where runs diverged: those that did not are a selection."""
    diverged = sum(run["status"] == "diverged" for run in group["runs"][precision])
    return f"{UNKNOWN}, because {count(diverged, 'run')} diverged" if diverged else found["outcome"]


def difference_in_words(
    difference: float, low: float | None, high: float | None, metric: str, is_ratio: bool, form: str = "{:+.3g}"
) -> str:
    """Return a difference from fp32 with its interval in the metric's unit. `form` is for metrics without a unit."""
    unit = ""
    if metric == "accuracy":
        unit, form = " points", "{:+.2f}"
    elif is_ratio:
        unit, form = "%", "{:+.1f}"
    scale = 100 if unit else 1
    text = form.format(scale * difference) + unit
    if low is None or high is None:
        return text
    return f"{text} ({form.format(scale * low)} to {form.format(scale * high)})"


def difference_text(found: dict) -> str:
    """Return a difference with its 90% interval, which decides on equivalence; see quality_difference."""
    mean, low, high = (found[name] for name in ("difference", "low90", "high90"))
    return difference_in_words(mean, low, high, found["metric"], found["is_ratio"], "{:+.4f}")


def margin_text(found: dict) -> str:
    """Return the margin of a difference in the metric's unit."""
    if found["is_ratio"]:
        return f"{found['margin']:.0%}"
    return f"{100 * found['margin']:g} points" if found["metric"] == "accuracy" else f"{found['margin']:g}"


def loses_quality(group: dict, precision: str) -> bool:
    """Return whether the runs of a precision end too much worse than those in fp32 for it to be recommended."""
    return quality_lost(ok_runs(group, precision), ok_runs(group, "fp32")) is not None


def may_be_used(group: dict, precision: str) -> bool:
    """Return whether a precision may be recommended for its quality.

    Weights that are not fp32 lose updates, so such a precision must have learned, and be shown to be as good as fp32.
    Of the others it is enough that no loss is shown.
    """
    if precision in NO_FP32_WEIGHTS:
        found = quality_against_fp32(group, precision)
        as_good = found is not None and outcome_in_words(group, precision, found) in AS_GOOD
        return as_good and has_learned(ok_runs(group, precision))
    return not loses_quality(group, precision)
