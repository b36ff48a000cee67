"""Student's distribution against published tables, and Holm's correction against a worked example."""

from statistics import stdev

import pytest

from mixed_precision_study.judge.stats import half_width, p_value, stand_together


@pytest.mark.parametrize(
    ("count", "at_95", "at_90"), [(2, 12.706, 6.314), (3, 4.303, 2.920), (10, 2.262, 1.833), (31, 2.042, 1.697)]
)
def test_half_widths_are_those_of_the_tables(count, at_95, at_90):
    values = [0.0, *[1.0] * (count - 1)]
    scatter = stdev(values) / count**0.5
    assert half_width(values, 0.95) == pytest.approx(at_95 * scatter, abs=6e-4)
    assert half_width(values, 0.9) == pytest.approx(at_90 * scatter, abs=6e-4)


def test_the_p_value_is_5_percent_where_the_interval_just_touches_0():
    values = [0.1, 0.4, 0.25, -0.05]
    shifted = [value - sum(values) / 4 + half_width(values, 0.95) for value in values]
    assert p_value(shifted) == pytest.approx(0.05)
    assert p_value([0.2, 0.2, 0.2]) == 0 and p_value([0.0, 0.0]) == 1


def test_holm_compares_the_smallest_with_the_strictest_limit():
    assert stand_together([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert stand_together([0.04, 0.001]) == [True, True]  # the second limit is that of one test
    assert stand_together([0.03, 0.03]) == [False, False]
    assert stand_together([]) == []
