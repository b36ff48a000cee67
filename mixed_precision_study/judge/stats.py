"""Intervals and p values by Student's distribution of t, and Holm's correction."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median, stdev

from scipy.special import stdtr, stdtrit

LARGEST_LOGARITHM = 690.0  # of about 1e300
LEVEL = 0.05  # the chance that any of all the tests singles out a difference that is none
MANY_RATIOS = 10  # with more ratios in a report, those that are singled out are corrected


def exponential(logarithm: float) -> float:
    """Return the exponential, of huge logarithms the largest that a record may hold: a broken
    record ends nothing.
    """
    return math.exp(max(-LARGEST_LOGARITHM, min(LARGEST_LOGARITHM, logarithm)))


def half_width(values: list[float], level: float) -> float:
    """Return half the width of Student's interval of the mean of two values or more."""
    return float(stdtrit(len(values) - 1, (1 + level) / 2)) * stdev(values) / math.sqrt(len(values))


def ends_of(values: list[float]) -> list[float]:
    """Return the ends of Student's 95% interval, and those of the 90% one, of the mean of two
    values or more.
    """
    middle = fmean(values)
    halves = [half_width(values, level) for level in (0.95, 0.9)]
    return [middle + side * half for half in halves for side in (-1, 1)]


def median_of_known(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None, or None without one."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def p_value(values: list[float]) -> float:
    """Return the two-sided p value of the mean of two values or more being 0."""
    middle = fmean(values)
    spread = stdev(values)
    if spread == 0:
        return float(middle == 0)
    return float(2 * stdtr(len(values) - 1, -abs(middle) / spread * math.sqrt(len(values))))


def stand_together(p_values: Sequence[float]) -> list[bool]:
    """Return for every p value whether it stays significant when all are corrected (Holm 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    stands = [False] * len(p_values)
    for place, number in enumerate(order):
        if p_values[number] > LEVEL / (len(p_values) - place):
            break
        stands[number] = True
    return stands
