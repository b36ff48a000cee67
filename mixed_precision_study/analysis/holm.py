"""Holm's correction: which of many p values stay below 5% together."""

from collections.abc import Sequence

LEVEL = 0.05  # the chance that any of all the tests singles out a difference that is none
MANY_RATIOS = 10  # with more ratios in a report, those that are singled out are corrected


def stand_together(p_values: Sequence[float]) -> list[bool]:
    """Return for every p value whether it stays significant when all are corrected (Holm 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    stands = [False] * len(p_values)
    for place, number in enumerate(order):
        if p_values[number] > LEVEL / (len(p_values) - place):
            break
        stands[number] = True
    return stands
