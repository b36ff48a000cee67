"""The quality section: differences from fp32 in margins, and where there is none."""

import made_up_records as made_up
import pytest
from drawn_reports import parts_of, rows_in

from mixed_precision_study.report import quality, results, tables
from mixed_precision_study.report.section import Chart

SMALL = [0.0, 0.0005, -0.0005, 0.0002, -0.0002]


def section_of(*records):
    """Return the section of one comparison."""
    found = results.tables_of(list(records))
    found.quality = tables.quality_of(found)
    return quality.quality_section(found)


@pytest.mark.parametrize(
    "runs",
    [
        made_up.over_seeds([0.001, 0.0012, 0.004]),
        made_up.over_seeds(SMALL)[1::2],
        made_up.over_seeds(SMALL, metric_name="f1", metric_margin=None),
    ],
    ids=["three seeds", "no fp32", "no margin"],
)
def test_where_quality_cannot_be_judged_nothing_is_claimed(runs):
    section = section_of(*runs)
    assert not parts_of(section, Chart) and not section.finding


def test_the_cpu_is_not_judged_and_divergence_is_inconclusive():
    assert section_of(*made_up.over_seeds(SMALL, device=made_up.CPU)).parts == []
    (((row,),)) = rows_in(section_of(*made_up.over_seeds([*SMALL, -0.6])))
    assert (row["seeds"], row["outcome"]) == ("5", "inconclusive: 1 run diverged")
