"""Training curves."""

import made_up_records as made_up
import matplotlib.pyplot as plt
import pytest
from drawn_reports import explore, flat, said_in, write_all

from mixed_precision_study.report.comparisons import group_runs
from mixed_precision_study.report.load import load
from mixed_precision_study.report.training_curves import draw_curves


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
