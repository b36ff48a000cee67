"""What a ratio allows to say, on made-up comparisons whose answers are known."""

import pytest
from made_up_runs import gained

from mixed_precision_study.judge.finding import Finding
from mixed_precision_study.judge.verdict import (
    CANNOT_BE_TOLD,
    FASTER,
    LITTLE_FASTER,
    LITTLE_SLOWER,
    NOT_PAIRED,
    NOT_TRAINED,
    OTHER_CONDITIONS,
    SAME,
    SLOWER,
    TOO_SHORT,
    judge,
)

SOME = Finding("some")


@pytest.mark.parametrize(
    "speedup, word",
    [
        (None, NOT_PAIRED),
        (gained(low=None, high=None, processes=0), NOT_PAIRED),
        (gained(low=None, high=None, processes=1), "one_process"),
        (gained(low=None, high=None, processes=2), "two_processes"),
        (gained(seconds=1.999), TOO_SHORT),
        (gained(seconds=2.0), FASTER),
        (gained(0.5, 0.4, 0.6), SLOWER),
        (gained(1.1, 1.051, 1.15, one_order=SOME), FASTER),
        (gained(1.1, 1.049, 1.15, one_order=SOME), CANNOT_BE_TOLD),
        (gained(0.9, 0.85, 0.951, one_order=SOME), CANNOT_BE_TOLD),
        (gained(1.3, 1.0, 1.6), CANNOT_BE_TOLD),
        (gained(1.3, 1.001, 1.6), FASTER),
        (gained(0.8, 0.6, 1.0), CANNOT_BE_TOLD),
        (gained(1.03, 1.02, 1.04), LITTLE_FASTER),
        (gained(0.97, 0.96, 0.98), LITTLE_SLOWER),
        (gained(1.019, 1.01, 1.03), SAME),  # steady, and below what is claimed
        (gained(0.985, 0.98, 0.99), SAME),
        (gained(1.0, 0.96, 1.04), SAME),
        (gained(1.0, 0.94, 1.06), CANNOT_BE_TOLD),
        (gained(untrained=SOME), NOT_TRAINED),
        (gained(unlike=SOME), OTHER_CONDITIONS),
    ],
)
def test_judge(speedup, word):
    assert judge(speedup) == word
