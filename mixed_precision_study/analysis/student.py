"""Student's distribution of t, which the standard library and NumPy lack, and Holm's correction."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, stdev

LARGEST_LOGARITHM = 690.0  # of about 1e300
LEVEL = 0.05  # the chance that any of all the tests singles out a difference that is none
MANY_RATIOS = 10  # with more ratios in a report, those that are singled out are corrected


def probability_within(t: float, degrees: int) -> float:
    """Return the probability that |T| < t for a whole number of degrees of freedom.

    These are the finite sums 26.7.3 and 26.7.4 of Abramowitz and Stegun, Handbook of Mathematical Functions.
    """
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0 if degrees == 1 else term
    for number in range(3 if odd else 2, degrees, 2):
        term *= (number - 1) / number * cosine**2
        total += term
    within = math.sin(angle) * total
    return 2 / math.pi * (angle + within) if odd else within


def exponential(logarithm: float) -> float:
    """Return the exponential, of huge logarithms the largest that a record may hold: a broken record ends nothing."""
    return math.exp(max(-LARGEST_LOGARITHM, min(LARGEST_LOGARITHM, logarithm)))


@lru_cache
def quantile(level: float, degrees: int) -> float:
    """Return the t for which |T| < t has the probability `level`, below 1."""
    high = 1.0
    while probability_within(high, degrees) < level:
        high *= 2
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        if probability_within(middle, degrees) < level:
            low = middle
        else:
            high = middle
    return high


def half_width(values: list[float], level: float) -> float:
    """Return half the width of Student's interval of the mean of two values or more."""
    return quantile(level, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def p_value(values: list[float]) -> float:
    """Return the two-sided p value of the mean of two values or more being 0."""
    middle = fmean(values)
    spread = stdev(values)
    if spread == 0:
        return float(middle == 0)
    return 1 - probability_within(abs(middle) / spread * math.sqrt(len(values)), len(values) - 1)


def stand_together(p_values: Sequence[float]) -> list[bool]:
    """Return for every p value whether it stays significant when all are corrected (Holm 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    stands = [False] * len(p_values)
    for place, number in enumerate(order):
        if p_values[number] > LEVEL / (len(p_values) - place):
            break
        stands[number] = True
    return stands
