"""The simulation, small: the rules are right often enough, and the table says where they are not."""

import pytest

from mixed_precision_study.analysis.simulate import SCATTERS, problems_of, rows, simulate

DRAWS = 200  # at 95% the share of covering intervals then scatters by 1.5%


@pytest.mark.parametrize("scatter", SCATTERS, ids=lambda scatter: scatter.name)
def test_intervals_cover_and_equal_precisions_are_seldom_called_different(scatter):
    cell = simulate(scatter, 3, 2, DRAWS)
    assert cell.coverage > 0.9
    assert cell.false < 0.1
    assert cell.wrongly_same < 0.1
    assert (cell.half_width < 0.03) == (scatter.processes < 0.01)


def test_five_processes_halve_the_interval():
    three, five = (simulate(SCATTERS[2], processes, 2, 100).half_width for processes in (3, 5))
    assert five < 0.7 * three


def test_what_is_not_good_enough_is_named():
    cell = simulate(SCATTERS[0], 3, 2, 50)
    assert problems_of(cell._replace(coverage=0.95, false=0.05)) == []
    assert len(problems_of(cell._replace(coverage=0.9, false=0.07, wrongly_same=0.07, half_width=0.04))) == 4


def test_the_table_has_a_row_for_every_cell():
    table = list(rows(2))
    assert len(table) > len(SCATTERS) * 3
    assert len({line.count("|") for line in table}) == 1
