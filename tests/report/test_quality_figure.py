"""The chart of quality beside fp32: rows, directions, outcomes, and where there is none."""

import made_up_records as made_up
import pytest
from drawn_reports import explore, texts, write_all

from mixed_precision_study.report import quality_figure
from mixed_precision_study.report.load import load

SMALL = [0.0, 0.0005, -0.0005, 0.0002, -0.0002]


def rows_in(folder, *runs):
    """Return the rows of the only comparison of some records."""
    write_all(folder, *runs)
    (group,) = load(str(folder)).comparisons
    return quality_figure.rows_of(group)


def test_a_row_for_each_precision_with_its_difference_seeds_and_outcome(tmp_path):
    write_all(
        tmp_path, *made_up.over_seeds(SMALL), *made_up.over_seeds([-0.01, -0.011, -0.009, -0.01, -0.01], "amp_fp16")
    )
    _, charts = explore(tmp_path, "quality_figure")
    said = texts(charts["quality"])
    assert "Quality beside fp32: 1 equivalent, 1 worse" in said
    assert any(text.endswith("accuracy, margin 0.2 points") for text in said)
    assert [said.count(text) for text in ("equivalent", "worse", "5")] == [1, 1, 2] and {"tf32", "amp_fp16"} <= set(
        said
    )
    assert "-1.00 points (-1.07 to -0.93)" in said
    (part,) = quality_figure.section(load(str(tmp_path))).parts
    assert "tf32 +0.00 points (-0.04 to +0.04), equivalent, 5 seeds; amp_fp16 -1.00 points" in part.alt


@pytest.mark.parametrize(("notebook", "sign"), [("cifar_resnet", 1), ("efficientnet_regression", -1)])
def test_a_gain_is_drawn_to_the_right_whatever_the_metric(tmp_path, notebook, sign):
    (row,) = rows_in(tmp_path, *made_up.over_seeds([0.001, 0.0012, 0.0011, 0.001, 0.0009], notebook=notebook))
    assert row.low < row.mean < row.high and row.mean * sign > 0
    assert row.mean * sign == pytest.approx(0.00104 / (0.002 if sign > 0 else 0.02))


def test_what_lies_beyond_the_axis_is_an_arrow_at_its_edge(tmp_path):
    write_all(tmp_path, *made_up.over_seeds([-0.1, -0.11, -0.09, -0.1, -0.1], "amp_fp16"), *made_up.over_seeds(SMALL))
    _, charts = explore(tmp_path, "quality_figure")
    plot = next(axes for axes in charts["quality"].axes if axes.get_xlabel() == "margins")
    arrows = [line.get_xdata()[0] for line in plot.lines if line.get_marker() == "<"]
    assert arrows == [-quality_figure.WIDEST] and plot.get_xlim() == (-quality_figure.WIDEST, quality_figure.WIDEST)


def test_slowed_runs_are_not_marked_as_quality_has_them_all(tmp_path):
    write_all(tmp_path, *made_up.over_seeds(SMALL, throttled=True, throttle_fractions=[["thermal, software", 0.5]]))
    _, charts = explore(tmp_path, "quality_figure", "training_curves")
    assert not any("throttled" in text for text in texts(charts["quality"]))
    assert any("throttled" in text for text in texts(charts["last_metrics"]))


def test_seeds_of_which_one_diverged_tell_nothing(tmp_path):
    (row,) = rows_in(tmp_path, *made_up.over_seeds([*SMALL, -0.6]))
    assert (row.seeds, row.outcome) == (5, "cannot be told")


@pytest.mark.parametrize(
    "runs",
    [
        made_up.over_seeds([0.001, 0.0012]),
        made_up.over_seeds(SMALL)[1::2],
        made_up.over_seeds(SMALL)[::2],
        made_up.over_seeds(SMALL, device=made_up.CPU),
    ],
    ids=["two seeds", "no fp32", "fp32 alone", "CPU"],
)
def test_there_is_no_chart_without_three_seeds_beside_fp32_on_a_gpu(tmp_path, runs):
    write_all(tmp_path, *runs)
    assert quality_figure.section(load(str(tmp_path))).parts == []


def test_a_metric_without_a_margin_has_no_row(tmp_path):
    assert rows_in(tmp_path, *made_up.over_seeds(SMALL, metric_name="f1")) == []
    assert len(rows_in(tmp_path / "other", *made_up.over_seeds(SMALL))) == 1
