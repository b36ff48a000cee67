"""Which runs of a comparison did not train: most steps skipped, no finite metric, or no better
than chance.
"""

import math
from collections.abc import Callable, Iterable
from operator import itemgetter
from statistics import median

from ..store.record import is_explanation, last_metric
from .finding import Finding

LEARNED = 0.2  # from this share of the way from chance to perfect on, a run has learned
# the same where the baseline has not learned, so that no lucky seed is the measure
CLEARLY_LEARNED = 0.5
CHANCE = 0.1  # below this share of what another run gained over chance, a run has not learned
MOST = 0.5  # of the steps
BASES = ("fp32", "tf32")  # of which one is expected to learn


def skipped_fraction(record: dict) -> float:
    """Return the share of the timed steps that were skipped because a gradient overflowed; 0 if
    it is not known.
    """
    steps = (record["steps_per_epoch"] or 0) * len(record["epoch_seconds"])
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
        room = 1 - chance if chance < 1 else chance
        return (last - chance) / room
    if chance <= 0:
        return None
    if record["metric_name"] == "perplexity" and chance > 1:
        return 2 * (1 - math.log(max(last, 1)) / math.log(chance))
    return 1 - last / chance


def gain_to_expect(
    gains: dict[str, list[float]], bases: Iterable[str] = BASES
) -> tuple[float, str] | None:
    """Return (gain over chance, arm) that runs are judged by; None where none has learned.

    It is the median of the first base, if that has learned. Else it is the best, which must
    have learned clearly then. `gains` are {arm: its gains}.
    """
    middle = {arm: median(found) for arm, found in gains.items() if found}
    baseline = next((arm for arm in bases if arm in middle), None)
    if baseline is not None and middle[baseline] >= LEARNED:
        return middle[baseline], baseline
    best = max(middle, key=middle.__getitem__, default=None)
    needed = LEARNED if baseline is None else CLEARLY_LEARNED
    return (middle[best], best) if best is not None and middle[best] >= needed else None


def settled(record: dict) -> dict:
    """Return a record in which a metric that only jumped in the last epoch is that of the epoch
    before.

    The training loss tells a jump: it has not gone half of the way back to its first. Quality keeps
        the metric.
    """
    metric, loss = record["metric"], record["train_loss"]
    before, last = (
        gain_over_chance({**record, "metric": metric[:end]})
        for end in (len(metric) - 1, len(metric))
    )
    if before is None or last is None or before <= last:
        return record
    if len(loss) < 3 or not all(one is not None and math.isfinite(one) for one in loss):
        return record
    trains_on = loss[-1] - loss[-2] < (loss[0] - loss[-2]) / 2
    return {**record, "metric": [*metric[:-1], metric[-2]]} if trains_on else record


def find_diverged(
    records: Iterable[dict],
    arm_of: Callable[[dict], str] = itemgetter("precision"),
    bases: Iterable[str] = BASES,
) -> dict[int, Finding]:
    """Return {place in records: reason} of the ok runs that did not train.

    The reason is "overflow", most of their steps were skipped; "not_finite", the last metric is not
    where another run's is; or "chance", a gain below CHANCE of the gain to expect. One jump of the
    metric does not count.
    """
    ok_runs = {
        place: settled(record)
        for place, record in enumerate(records)
        if record["status"] == "ok" and not is_explanation(record)
    }
    gains: dict[str, list[float]] = {}
    for record in ok_runs.values():
        if (gain := gain_over_chance(record)) is not None:
            gains.setdefault(arm_of(record), []).append(gain)
    expected = gain_to_expect(gains, bases)
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
    if expected and gain is not None and gain < CHANCE * expected[0]:
        return Finding("chance", expected[1], {"gain": gain, "expected": expected[0]})
    return None
