"""What articles published beside the same ratio here: what counts as the same, chart and table."""

import made_up_records as made_up
import pandas as pd
import pytest
from drawn_reports import parts_of, read_all

from mixed_precision_study.report.articles import section
from mixed_precision_study.report.section import Chart, Table
from mixed_precision_study.report.tables import read_tables


def test_a_ratio_stands_beside_that_of_the_article(tmp_path):
    made_up.write_published(tmp_path)
    tables = read_all(tmp_path, articles=True)
    wide = tables.comparisons[tables.comparisons.model == "wide_resnet28_10"]
    ratios = tables.ratios[tables.ratios.comparison.isin(wide.index) & (tables.ratios.baseline == "fp32")]
    whole = ratios.set_index("precision").ratio
    assert whole.round(2).to_dict() == {"amp_fp16": 2.0, "o2_fp16": 1.0, "o3_fp16": 3.0}
    (chart,) = parts_of(section(tables), Chart)
    panels = [figure.axes[0] for figure in chart.figures]
    drawn = [line.get_xdata()[0] for axes in panels for line in axes.lines if str(line.get_gid()).startswith("ours")]
    assert drawn[1:] == pytest.approx([whole["amp_fp16"], whole["o2_fp16"]])  # DPN-92 is the first
    said = {text.get_text() for axes in panels for text in axes.texts}
    assert said >= {"T4", "P100", "H200", "WideResNet-28-10, batch 128, O2"}
    assert section(tables).title.startswith("3 of 5 ")  # not a P100 in fp16, nor a T4 in O2
    (table,) = parts_of(section(tables), Table)
    rows = {(row["Training"], row["Card"]): (row["There"], row["Here"]) for row in reversed(table.rows)}
    here = ("1.83×, memory −42%", "2.00× (2.00 to 2.00), memory −41%")  # size and direction in one row
    assert rows["WideResNet-28-10, batch 128, fp16", "T4"] == here
    assert rows["WideResNet-28-10, batch 128, fp16", "P100"][0] == "0.99×, memory +11%"
    both = [(row["There"], row["Here"]) for row in table.rows]
    assert ("not converged", "best accuracy: 90.0% against 90.0%") in both


@pytest.mark.parametrize(
    "fields",
    [
        {"dataset_used": "synthetic"},
        {"device_type": "cpu", "gpu_name": None},
        {"parameters": {"batch_size": 64}},
        {"parameters": {"execution": "cuda_graph"}},
        {"parameters": {"memory_limit_gib": 11.0}},
        {},  # these are one
    ],
)
def test_other_runs_are_no_counterpart(tmp_path, fields):
    runs = [made_up.make("cifar_resnet", precision, **fields) for precision in ("fp32", "o2_fp16")]
    tables = read_all(tmp_path, *runs, articles=True)
    beside = [row for table in parts_of(section(tables), Table) for row in table.rows if "×" in row["There"]]
    assert bool(beside) is (not fields)


def test_o2_and_fp16_amp_stand_in_for_each_other_and_intervals_are_told(tmp_path):
    for precision, seconds in (("fp32", 30.0), ("amp_fp16", 20.0)):
        parameters = {"model": "resnet18", "batch_size": 128, "epochs": 2}
        record = made_up.make("cifar_resnet", precision, seconds=[seconds] * 2, parameters=parameters)
        made_up.write_processes(record, tmp_path, 3)
    assert not section(read_tables(tmp_path)).parts  # the study does not show articles
    tables = read_all(tmp_path, articles=True)
    (row, *_) = parts_of(section(tables), Table)[0].rows
    assert (row["n"], row["Our card"], row["Article"]) == (3, "H200", "CIFAR-10 in FP16 with Tensor Cores, 2019")
    found = tables.ratios.set_index("precision").loc["amp_fp16"]
    assert row["Here"].startswith(f"1.50× ({found.low:.2f} to {found.high:.2f})") and row["Here"].endswith(", in fp16")
    assert pd.notna(found.low)
