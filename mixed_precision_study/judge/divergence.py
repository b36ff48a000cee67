"""Which runs of a comparison did not train: most steps skipped, no finite metric, or no better
than chance.
"""

import math
from collections.abc import Iterable, Mapping

from ..store.record import Runs, is_explanation, last_metric
from .axis import PRECISIONS, Axis, grouped
from .finding import Finding
from .stats import median_of_known

LEARNED = 0.2  # from this share of the way from chance to perfect on, a run has learned
# the same where the baseline has not learned, so that no lucky seed is the measure
CLEARLY_LEARNED = 0.5
CHANCE = 0.1  # below this share of what another run gained over chance, a run has not learned
MOST = 0.5  # of the steps
FEW_STEPS = 50  # after fewer steps chance decides who is ahead, so a metric says nothing


def timed_steps(record: dict) -> int:
    """Return how many steps a run has timed, those included that were skipped."""
    return (record["steps_per_epoch"] or 0) * len(record["epoch_seconds"])


def skipped_fraction(record: dict) -> float:
    """Return the share of the timed steps that were skipped because a gradient overflowed; 0 if
    it is not known.
    """
    steps = timed_steps(record)
    return min(1.0, (record["skipped_steps"] or 0) / steps) if steps else 0.0


def gain_over_chance(record: dict) -> float | None:
    """Return how far the last metric is from chance (0) to perfect (1), below 0 where it is worse;
    None if not known.

    Perfect is 1 where more is better, else 0. Of a perplexity, an exponential, the logarithm is
    taken, and half of chance's counts as perfect, because no text is known beforehand.
    """
    last = last_metric(record)
    chance = record["chance_metric"]
    if last is None or chance is None:
        return None
    if record["metric_better"] == "higher":
        # a metric that exceeds 1 by chance: in multiples of that
        return (last - chance) / (1 - chance if chance < 1 else chance)
    if chance <= 0:
        return None
    if record["metric_name"] == "perplexity" and chance > 1:
        return 2 * (1 - math.log(max(last, 1)) / math.log(chance))
    return 1 - last / chance


def gain_to_expect(
    gains: Mapping[str, float | None], bases: Iterable[str]
) -> tuple[float, str] | None:
    """Return (gain over chance, arm) that runs are judged by; None where none has learned.

    It is that of the first base, if that has learned. Else it is the best, which must have learned
    clearly then. `gains` are {arm: the median of its runs}.
    """
    known = {arm: gain for arm, gain in gains.items() if gain is not None}
    baseline = next((arm for arm in bases if arm in known), None)
    needed = LEARNED if baseline is None else CLEARLY_LEARNED
    if baseline is not None and known[baseline] >= LEARNED:
        return known[baseline], baseline
    best = max(known, key=known.__getitem__, default=None)
    return (known[best], best) if best is not None and known[best] >= needed else None


def settled(record: dict) -> dict:
    """Return a record in which a metric that only jumped in the last epoch is that of the epoch
    before.

    The training loss tells a jump: it has not gone half of the way back to its first. Quality keeps
        the metric.
    """
    metric = record["metric"]
    loss = record["train_loss"]
    before = gain_over_chance({**record, "metric": metric[:-1]})
    last = gain_over_chance(record)
    jumped = before is not None and last is not None and before > last
    known = len(loss) >= 3 and all(one is not None and math.isfinite(one) for one in loss)
    if jumped and known and loss[-1] - loss[-2] < (loss[0] - loss[-2]) / 2:
        return {**record, "metric": [*metric[:-1], metric[-2]]}
    return record


def find_diverged(records: Runs, axis: Axis = PRECISIONS) -> dict[int, Finding]:
    """Return {place in records: reason} of the ok runs that did not train.

    The reason is "overflow", most of their steps were skipped; "not_finite", the last metric is not
    where another run's is; or "chance", a gain below CHANCE of the gain to expect, but for a
    fine-tuned model. One jump of the metric does not count.
    """
    ok_runs = {
        place: settled(record)
        for place, record in enumerate(records)
        if record["status"] == "ok" and not is_explanation(record)
    }
    arms = grouped(ok_runs.values(), axis.arm_of)
    gains = {arm: median_of_known(map(gain_over_chance, runs)) for arm, runs in arms.items()}
    expected = gain_to_expect(gains, axis.bases)
    any_metric = any(last_metric(record) is not None for record in ok_runs.values())
    reasons = {
        place: why_diverged(record, expected, any_metric) for place, record in ok_runs.items()
    }
    return {place: reason for place, reason in reasons.items() if reason}


def why_diverged(
    record: dict, expected: tuple[float, str] | None, any_metric: bool
) -> Finding | None:
    """Return why an ok run counts as diverged, see find_diverged(), or None."""
    if (skipped := skipped_fraction(record)) > MOST:
        return Finding("overflow", values={"share": skipped})
    if record["metric"] and last_metric(record) is None and any_metric:
        return Finding("not_finite")
    gain = gain_over_chance(record)
    few = 0 < timed_steps(record) < FEW_STEPS
    tuned = record["settings"].get("init_from")  # it may begin worse than by chance
    if expected and gain is not None and gain < CHANCE * expected[0] and not (few or tuned):
        return Finding("chance", expected[1], {"gain": gain, "expected": expected[0]})
    return None
