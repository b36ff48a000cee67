"""The loss scale over the steps, and sweeps of fixed scales."""

import made_up_records as made_up
import pytest
from drawn_reports import drawn, said_in, write_all

from mixed_precision_study.report.comparisons import rows_of_failed
from mixed_precision_study.report.load import load
from mixed_precision_study.report.loss_scale import skipped_percent


def test_a_sweep_of_loss_scales_has_its_chart():
    report, charts = drawn(made_up.write_sweep, "loss_scale")
    assert "loss_scale_sweep" in charts
    said = said_in("loss_scale", report)
    assert "amp_fp16, resnet18: 3 of 4 fixed scales from 1 to 1,048,576 ended well" in said
    assert "from 40% down to 2.5%; at 65,536 **9.97%** of the steps" in said
    (((_, precision), runs),) = report.sweeps.items()
    assert (precision, set(runs)) == ("amp_fp16", {1.0, 256.0, 65536.0, 2.0**20, "dynamic"})
    assert skipped_percent(runs[65536.0][0]) == pytest.approx(10, abs=0.1)


def test_fixed_loss_scales_are_told_apart_and_one_that_skipped_most_steps_is_not_well(tmp_path):
    for scale, skipped in ((1.0, 0), (256.0, 3), (65536.0, 0), (2.0**20, 900), ("dynamic", 2)):
        known = {"skipped_steps": skipped, "loss_scale_trace": [[0, 65536.0 if scale == "dynamic" else scale]]}
        write_all(tmp_path, made_up.make("cifar_resnet", "amp_fp16", parameters={"loss_scale": scale}, **known))
    report = load(tmp_path)
    dynamic, fixed, swept = said_in("loss_scale", report).splitlines()
    steps = report.timed[0][1]["steps_per_epoch"] * 3
    assert dynamic.startswith(f"amp_fp16: 2 of {steps:,} ") and "65,536 throughout" in dynamic
    assert fixed.startswith(f"amp_fp16 at fixed loss scales: 3 of {3 * steps:,} ")
    assert "3 of 4 fixed scales from 1 to 1,048,576 ended well" in swept
    (failed,) = rows_of_failed(report)
    assert failed["status"] == "diverged" and "77% of the steps were skipped" in failed["reason"]


def test_skipped_steps_and_lost_gradients_are_said(everything):
    said = said_in("loss_scale", everything[0])
    assert "amp_fp16: 16 of 12,227 timed steps were skipped" in said and "(step 4, 8)" in said
    assert "resnet18 16,384 to 65,536" in said
    assert "**3% to 5%** of the non-zero gradient elements without" in said
    assert "**0.02%** of the non-zero gradient elements at the scale of the last step." in said
    assert " 3 times (amp_fp16, resnet18" in said
