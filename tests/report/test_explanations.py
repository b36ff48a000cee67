"""What explains the figures: energy, inference, training curves."""

import made_up_records as made_up
import matplotlib.pyplot as plt
import pytest
from drawn_reports import explore, flat, said_in, tables_of, texts, write_all

from mixed_precision_study.report.comparisons import group_runs
from mixed_precision_study.report.energy import energy_row, energy_used
from mixed_precision_study.report.load import load
from mixed_precision_study.report.training_curves import draw_curves

H200 = "resnet18 · cifar10, b128 · H200"


def test_energy_that_is_unknown_is_no_zero(everything):
    report, charts = everything
    number = [group["title"] for group in report.comparisons].index(H200)
    assert energy_used(report)[number, "fp32"][0] == pytest.approx(500 * (6.1 + 6.3 + 6.5) / 150)
    assert texts(charts["energy"]).count("unavailable") == 2
    bare = flat(made_up.make("cifar_resnet", "fp32", explained=False, energy_reason="no NVML"))
    row = energy_row(report, number, bare | {"temperature_celsius_max": 61})
    assert row["measured by"] == "no NVML" and row["mean power, W"] == row["energy, J"] == "unavailable"
    assert row["hottest, °C"] == "61"  # a count is shown as it is
    assert "amp_bf16 takes **0.40** of fp32's energy (1 comparison)" in said_in("energy", report)


def test_inference_has_charts_and_a_table(everything):
    report, charts = everything
    assert {"inference_latency", "inference_throughput"} <= set(charts)
    assert report.latency[0, "fp32"][1:3] == (1.75, 4.25)
    assert "from **2.00** (fp32, resnet18" in said_in("inference_cost", report)
    (rows,) = tables_of("inference_cost", report)
    assert rows[0]["p10 to p90, ms"] == "1.75 to 4.25"
    assert {row["apart from fp32"] for row in rows} == {"0%", "0.12%"}


@pytest.mark.parametrize(
    ("section", "missing"),
    [("inference_cost", 1), ("energy", 1)],
)
def test_what_was_measured_in_no_run_is_said_and_has_no_chart(section, missing, tmp_path):
    write_all(tmp_path, made_up.make("cifar_resnet", "fp32", explained=False))
    report, charts = explore(tmp_path, section)
    assert said_in(section, report).count("was not measured in any run") == missing
    assert charts == {}


def test_repeats_begin_again_at_the_first_epoch():
    values = {"epochs": 2, "repeats": 2}
    record = flat(made_up.make("cifar_resnet", "fp32", seconds=[1.0] * 4, parameters=values))
    (group,) = group_runs([{**record, "metric": [0.5, 0.7, 0.6, 0.8]}])
    axes = plt.figure().subplots()
    draw_curves(axes, group, "metric")
    (line, *_) = axes.lines
    plt.close(axes.figure)
    assert list(line.get_xdata()) == [1, 2] and list(line.get_ydata()) == pytest.approx([0.55, 0.75])


def test_the_last_metrics_are_compared(everything):
    said = said_in("training_curves", everything[0])
    assert "the last accuracy differs most from **0.7** (fp32) to **0.72**" in said


def test_the_metric_on_a_test_set_is_said(tmp_path):
    for precision, ends in (("fp32", (142.04, 143.0)), ("amp_fp16", (144.5,)), ("amp_bf16", (None,))):
        for seed, end in enumerate(ends):
            write_all(
                tmp_path,
                made_up.make("lstm_language_model", precision, parameters={"seed": seed}, test_metric=end),
            )
    assert ": fp32 142 to 143, amp_fp16 144.5." in said_in("training_curves", load(tmp_path))
