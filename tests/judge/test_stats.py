"""P values, and what stands when there are several."""

import pytest

from mixed_precision_study.judge.stats import half_width, p_value, stand_together


def test_the_p_value_is_5_percent_where_the_interval_touches_0():
    values = [0.1, 0.4, 0.25, -0.05]
    shifted = [value - sum(values) / 4 + half_width(values, 0.95) for value in values]
    assert p_value(shifted) == pytest.approx(0.05)
    assert p_value([0.2, 0.2, 0.2]) == 0 and p_value([0.0, 0.0]) == 1


def test_holm_compares_the_smallest_with_the_strictest_limit():
    assert stand_together([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert stand_together([0.04, 0.001]) == [True, True]  # the second limit is that of one test
    assert stand_together([0.03, 0.03]) == [False, False]
    assert stand_together([]) == []
