"""What grows: the lines of the charts, the losses beside the bar, the largest batches and the loss scales."""

import made_up_records as made_up
import pytest
import yaml

from mixed_precision_study.analysis.training_loss import judge_loss
from mixed_precision_study.report import growth
from mixed_precision_study.report.section import Chart, Table
from mixed_precision_study.report.tables import read_tables


def tables_of(folder, write, **show):
    """Return the tables of records that `write(folder)` writes, of a study that shows this."""
    write(folder)
    (folder / "study.yaml").write_text(yaml.safe_dump({"name": "made up", "show": show}))
    return read_tables(str(folder))


@pytest.fixture(scope="module")
def crossover(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crossover")
    return tables_of(folder, made_up.write_crossover, over="units", **{"with": ["heads", "max_steps"]})


def test_each_width_has_every_precision_beside_the_next_simpler_one(crossover):
    (family,) = growth.families_of(crossover)
    pairs = growth.pairs_of(crossover, family)
    assert list(family["size"]) == list(made_up.WIDTHS)
    assert dict(zip(pairs.precision, pairs.base, strict=True)) == {
        "tf32": "fp32",
        "amp_bf16": "tf32",
        "bf16_true": "amp_bf16",
        "fp8": "amp_bf16",
    }
    fp8 = pairs[pairs.precision == "fp8"].set_index("size")
    assert fp8.outcome[200] == "not supported"
    assert [size for size in made_up.WIDTHS[1:] if fp8.ratio[size] > 1] == [2048, 4096]
    assert list(fp8.memory[1:]) == pytest.approx([0.9] * 5)
    assert set(fp8.energy.dropna().round(9)) == {0.9}  # NaN where a training is too short for the counter
    assert list(fp8.above[1:]) == pytest.approx([0.01] * 5) and set(fp8.loss_outcome[1:]) == {"within"}


def test_the_lines_of_the_chart_are_the_ratios_over_tf32_with_their_intervals(crossover):
    chart = next(part for part in growth.section(crossover).parts if isinstance(part, Chart))
    lines = {line.get_gid(): dict(zip(*line.get_data(), strict=True)) for line in chart.figures[0].axes[0].lines}
    ratios = crossover.ratios[crossover.ratios.baseline == "tf32"]
    widths = crossover.comparisons.settings.str["units"]
    assert set(lines) - {None} == {f"line {name}" for name in ratios.precision}
    for name, rows in ratios.groupby("precision"):
        assert lines[f"line {name}"] == dict(zip(rows.comparison.map(widths), rows.ratio, strict=True))
    ends = [bars.get_segments() for bars in chart.figures[0].axes[0].collections]
    drawn = {(low[1], high[1]) for segments in ends for low, high in segments}
    assert drawn == set(zip(ratios.low, ratios.high, strict=True))
    (fp8,) = [line for line in chart.figures[1].axes[0].lines if line.get_gid()]
    assert (fp8.get_xdata() == made_up.WIDTHS[1:]).all() and (fp8.get_ydata() > 1).sum() == 2


@pytest.mark.parametrize("processes", [1, 3])
def test_a_line_without_intervals_is_dashed(tmp_path, processes):
    tables = tables_of(
        tmp_path, lambda folder: made_up.write_crossover(folder, processes), over="units", **{"with": "heads"}
    )
    chart = next(part for part in growth.section(tables).parts if isinstance(part, Chart))
    styles = {line.get_linestyle() for line in chart.figures[0].axes[0].lines if line.get_gid()}
    assert styles == {"--" if processes == 1 else "-"}


@pytest.mark.parametrize(
    ("own", "base", "outcome"),
    [
        ([1.01, 1.012, 1.011], [1.0, 1.0, 1.0], "within"),
        ([1.1, 1.11, 1.1], [1.0, 1.0, 1.0], "outside"),
        ([1.0, 1.03, 1.015], [1.0, 1.0, 1.0], "inconclusive"),
        ([1.1, 1.1], [1.0, 1.0, 1.0], "fewer than three runs"),
    ],
)
def test_a_loss_is_judged_by_the_bar_and_by_how_equal_runs_differ(own, base, outcome):
    known = {"metric": [0.9], "metric_name": "accuracy", "metric_better": "higher", "chance_metric": 0.1}
    sides = [[{"train_loss": [2.0, loss], **known} for loss in losses] for losses in (own, base)]
    assert judge_loss(*sides)["loss_outcome"] == outcome
    for run in sides[0] + sides[1]:
        run["metric"] = [0.1]
    assert judge_loss(*sides)["loss_outcome"] == "hardly trained"
    assert judge_loss(sides[0], []) is None


def test_the_largest_batch_of_each_precision_and_the_next_that_failed(tmp_path):
    rows = growth.largest_of(tables_of(tmp_path, made_up.write_batches)).set_index("precision")
    assert rows.batch.to_dict() == {"fp32": 256, "amp_fp16": 512}
    assert rows.too_large.to_dict() == {"fp32": 512, "amp_fp16": 1024}
    assert rows.ratio["amp_fp16"] == pytest.approx(1.98974, rel=1e-5)  # per sample: the epochs differ in samples


def test_the_loss_scales_are_in_order_with_what_they_skipped(tmp_path):
    section = growth.section(tables_of(tmp_path, made_up.write_sweep, over="loss_scale"))
    (table,) = [part for part in section.parts if isinstance(part, Table)]
    assert [row["loss scale"] for row in table.rows] == ["1", "256", "65,536", "1,048,576", "dynamic"]
    assert [row["skipped steps"] for row in table.rows] == ["0.00%", "0.00%", "9.97%", "0.00%", "0.00%"]
    assert [row["ended"] for row in table.rows].count("well") == 4
