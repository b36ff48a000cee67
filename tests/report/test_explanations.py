"""What explains the figures: energy, inference, training curves."""

import made_up_records as made_up
import matplotlib.pyplot as plt
import pytest
from drawn_reports import SECTION, explore, flat, said_in, tables_of, texts, write_all

from mixed_precision_study.report.comparisons import group_runs
from mixed_precision_study.report.energy import energy_row, energy_used
from mixed_precision_study.report.load import load
from mixed_precision_study.report.sections import sections_of
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
    title = " ".join(text.get_text() for part in charts["energy"].subfigs for text in part.texts)
    assert "Energy of training: " in title and "amp_bf16 40%" in title and "of fp32's" in title


def test_inference_has_charts_and_a_table(everything):
    report, charts = everything
    assert {"inference_latency", "inference_throughput"} <= set(charts)
    assert report.latency[0, "fp32"][1:3] == (1.75, 4.25)
    (alt,) = [
        part.finding
        for part in SECTION["inference_cost"](report).parts
        if getattr(part, "name", "") == "inference_latency"
    ]
    assert "fp32 2.00" in alt
    (rows,) = tables_of("inference_cost", report)
    assert rows[0]["p10 to p90, ms"] == "1.75 to 4.25"
    assert {row["apart from fp32"] for row in rows} == {"0%", "0.12%"}


@pytest.mark.parametrize("section", ["inference_cost", "energy"])
def test_what_was_measured_in_no_run_is_absent_and_named_in_one_line(section, tmp_path):
    write_all(tmp_path, made_up.make("cifar_resnet", "fp32", explained=False))
    report, charts = explore(tmp_path, section)
    assert said_in(section, report) == ""
    assert charts == {}
    *_, last = sections_of(report)
    assert "energy, inference" in last.parts[0].text


def test_repeats_begin_again_at_the_first_epoch():
    values = {"epochs": 2, "repeats": 2}
    record = flat(made_up.make("cifar_resnet", "fp32", seconds=[1.0] * 4, parameters=values))
    (group,) = group_runs([{**record, "metric": [0.5, 0.7, 0.6, 0.8]}])
    axes = plt.figure().subplots()
    draw_curves(axes, group, "metric")
    (line, *_) = axes.lines
    plt.close(axes.figure)
    assert list(line.get_xdata()) == [1, 2] and list(line.get_ydata()) == pytest.approx([0.55, 0.75])


def test_short_trainings_have_their_last_metrics_and_long_ones_curves(tmp_path):
    for precision, end in (("fp32", 0.7), ("amp_fp16", 0.72)):
        for epochs in (2, 5):
            values = {"epochs": epochs}
            record = made_up.make("cifar_resnet", precision, seconds=[1.0] * epochs, parameters=values)
            record.metric = [0.5] * (epochs - 1) + [end]
            write_all(tmp_path, record)
    _, charts = explore(tmp_path, "training_curves")
    assert set(charts) == {"training_curves", "last_metrics"}
    marks = [line.get_xdata()[0] for line in charts["last_metrics"].axes[0].lines if len(line.get_xdata()) == 1]
    assert sorted(marks) == [0.7, 0.72]


def test_the_metric_on_a_test_set_is_said(tmp_path):
    for precision, ends in (("fp32", (142.04, 143.0)), ("amp_fp16", (144.5,)), ("amp_bf16", (None,))):
        for seed, end in enumerate(ends):
            write_all(
                tmp_path,
                made_up.make("lstm_language_model", precision, parameters={"seed": seed}, test_metric=end),
            )
    said = said_in("training_curves", load(tmp_path))
    assert "Test perplexity of lstm · wikitext-2" in said and ": 142 to 143 in fp32, 144.5 in amp_fp16." in said
