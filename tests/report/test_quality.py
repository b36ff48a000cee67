"""The quality section: differences from fp32 in margins, and where there is none."""

import made_up_records as made_up
import pytest
from drawn_reports import parts_of

from mixed_precision_study.report import quality, results, tables
from mixed_precision_study.report.section import Chart, Table

SMALL = [0.0, 0.0005, -0.0005, 0.0002, -0.0002]
LARGE = [-0.01, -0.011, -0.009, -0.01, -0.01]


def section_of(*records, target_metric=0.0):
    """Return the section of one comparison, its chart, table and sentences."""
    found = results.tables_of(list(records))
    found.quality, found.target_metric = tables.quality_of(found), target_metric
    section = quality.quality_section(found)
    said = [part.text for part in section.parts if not isinstance(part, Chart | Table)]
    return section, parts_of(section, Chart), parts_of(section, Table), said


def drawn(chart):
    """Return {precision: (low, mean, high)} of the lines of the chart."""
    (axes,) = chart.figures[0].axes
    return {
        line.get_gid().split()[-1]: tuple(line.get_xdata()) for line in axes.lines if line.get_gid()
    }


def test_each_precision_has_its_difference_seeds_and_outcome():
    runs = [*made_up.over_seeds(LARGE, "amp_fp16"), *made_up.over_seeds(SMALL)[1::2]]
    section, (chart,), (table,), _ = section_of(*runs)
    assert "beyond the margin in 1" in section.finding and "worse in 1" in section.finding
    cells = [(row["arm"], row["margin"], row["seeds"], row["outcome"]) for row in table.rows]
    assert cells == [
        ("TF32", "0.2 points", "5", "equivalent"),
        ("fp16", "0.2 points", "5", "worse"),
    ]
    assert table.rows[1]["difference (90% interval)"] == "-1.00 points (-1.07 to -0.93)"
    assert drawn(chart)["amp_fp16"] == (-quality.WIDEST,) * 3


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
    section, charts, _, _ = section_of(*runs)
    assert not charts and not section.finding


def test_the_cpu_is_not_judged_and_divergence_is_inconclusive():
    assert section_of(*made_up.over_seeds(SMALL, device=made_up.CPU))[0].parts == []
    _, _, (table,), _ = section_of(*made_up.over_seeds([*SMALL, -0.6]))
    assert (table.rows[0]["seeds"], table.rows[0]["outcome"]) == (
        "5",
        "inconclusive: 1 run diverged",
    )
