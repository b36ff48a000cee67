"""Student's distribution against published tables, and Holm's correction against a worked example."""

import pytest

from mixed_precision_study.analysis.student import half_width, p_value, probability_within, quantile, stand_together


@pytest.mark.parametrize(
    ("degrees", "at_95", "at_90"),
    [
        (1, 12.706, 6.314),
        (2, 4.303, 2.920),
        (3, 3.182, 2.353),
        (4, 2.776, 2.132),
        (9, 2.262, 1.833),
        (30, 2.042, 1.697),
    ],
)
def test_quantiles_are_those_of_the_tables(degrees, at_95, at_90):
    assert quantile(0.95, degrees) == pytest.approx(at_95, abs=6e-4)
    assert quantile(0.9, degrees) == pytest.approx(at_90, abs=6e-4)
    assert probability_within(quantile(0.99, degrees), degrees) == pytest.approx(0.99)


def test_probability_grows_from_nothing_to_nearly_all():
    for degrees in (1, 2, 7, 8):
        values = [probability_within(t, degrees) for t in (0, 0.5, 1, 3, 1e6)]
        assert values == sorted(values)
        assert values[0] == 0 and values[-1] == pytest.approx(1, abs=1e-5)


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
