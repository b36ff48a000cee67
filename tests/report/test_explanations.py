"""What explains the figures: memory breakdown, kernels, limits, energy, inference, training curves."""

import itertools

import made_up_records as made_up
import matplotlib
import matplotlib.pyplot as plt
import pytest
from drawn_reports import bars_at, explore, flat, panel_of, said_in, tables_of, texts, write_all

from mixed_precision_study.report.bottlenecks import families_in, limit_row, profiled_runs, shares_of
from mixed_precision_study.report.comparisons import group_runs
from mixed_precision_study.report.energy import energy_row, energy_used
from mixed_precision_study.report.layout import start_chart
from mixed_precision_study.report.load import load
from mixed_precision_study.report.memory_breakdown import memory_parts_of, runs_with_breakdown, used_by_run
from mixed_precision_study.report.style import FAMILY_STYLES, IDLE_STYLE, OTHER_KERNELS, part_patches
from mixed_precision_study.report.training_curves import draw_curves

H200 = "resnet18 · cifar10, b128 · H200"


def test_memory_breakdown_stacks_to_the_sum_and_meets_nvml(everything):
    report, charts = everything
    axes = panel_of(charts["memory_ledger"], H200)
    peak = 4096 / 1024
    stack = bars_at(axes, 0)
    assert sum(height for _, height in stack) == pytest.approx(peak + (200 + 1290) / 1024)
    assert [foot for foot, _ in stack] == pytest.approx(list(itertools.accumulate([0, *[h for _, h in stack][:-1]])))
    (diamond, *_) = axes.lines
    assert diamond.get_ydata()[0] == pytest.approx(peak + 1497 / 1024)
    runs = runs_with_breakdown(report)
    key = next(key for key in runs if report.comparisons[key[0]]["title"] == H200 and key[1] == "o2_fp16")
    assert memory_parts_of(runs[key])["fp32 master copies"] == pytest.approx(43 / 1024)
    said = texts(charts["memory_ledger"])
    assert {"nvidia-ml-py is not installed", "not measured", "oom", "diverged"} <= set(said)
    assert {"parameters", "optimizer", "activations and workspace", "context and libraries"} <= set(said)
    said = said_in("memory_breakdown", report)
    assert "activations and workspace in 11, context and libraries in 4" in said and " 0.4% " in said


def test_memory_breakdown_without_context_is_a_lower_bound():
    record = flat(made_up.make("cifar_resnet", "fp32", ledger_context_mib=None, ledger_reason="no NVML"))
    assert sum(memory_parts_of(record).values()) == pytest.approx((4096 + 200) / 1024)
    bare = flat(made_up.make("cifar_resnet", "fp32", explained=False))
    assert memory_parts_of(bare) == {} and used_by_run(bare) is None


def test_kernel_shares_fill_the_step(everything):
    report, charts = everything
    axes = panel_of(charts["kernel_time"], H200)
    stack = bars_at(axes, 0)
    assert sum(height for _, height in stack) == pytest.approx(100)
    assert stack[-1][1] == pytest.approx(10) and max(height for _, height in stack) == pytest.approx(63)
    runs = profiled_runs(report)
    named = families_in(runs)
    assert len(named) == 9 and "other" not in named
    colours = {bar.get_facecolor() for bar in axes.patches if bar.get_height() > 0}
    wanted = {matplotlib.colors.to_rgba(FAMILY_STYLES[family][0]) for family in ("convolution", "optimizer")}
    assert wanted <= colours
    for parts in (shares_of(record, named) for record in runs.values()):
        assert sum(parts.values()) == pytest.approx(1)
        assert list(parts)[-2:] == ["other kernels", "idle"]
    said = said_in("bottlenecks", report)
    assert "convolution in 11, matmul in 4" in said and "from **10%** (fp32, " in said


def test_a_kernel_family_has_one_style_in_every_report(everything):
    from mixed_precision_study.profiling import KERNEL_FAMILIES

    assert set(FAMILY_STYLES) < set(KERNEL_FAMILIES) and len(set(FAMILY_STYLES.values())) == len(FAMILY_STYLES) == 12
    assert {OTHER_KERNELS[0], IDLE_STYLE[0]}.isdisjoint(colour for colour, _ in FAMILY_STYLES.values())
    record = {"gpu_busy_fraction": 0.5, "kernel_family_fractions": [["pooling", 0.75], ["matmul", 0.25]]}
    parts = shares_of(record, ["convolution", "matmul"])
    assert parts == {"convolution": 0, "matmul": 0.125, "other kernels": 0.375, "idle": 0.5}
    handles = part_patches(FAMILY_STYLES | {"other kernels": OTHER_KERNELS, "idle": IDLE_STYLE})
    figure, _ = start_chart(everything[0], "all of them", [1.0], handles)
    figure.draw_without_rendering()
    (legend,) = [legend for part in figure.subfigs for legend in part.legends]
    plt.close(figure)
    assert legend.get_window_extent().x1 <= figure.get_figwidth() * figure.dpi


def test_limits_are_charted_and_listed(everything):
    report, charts = everything
    axes = panel_of(charts["limit_reached"], H200)
    assert bars_at(axes, -0.2)[0][1] == pytest.approx(60) and bars_at(axes, 0.2)[0][1] == pytest.approx(50)
    row = limit_row(report, *report.timed[0])
    assert (row["TFLOP/s"], row["measured ceiling, TFLOP/s"], row["of the ceiling"]) == ("30.0", "50.0", "60%")
    assert (row["GPU busy"], row["waits for data"], row["of the copy bandwidth"]) == ("90%", "1%", "50%")
    assert row["limited by"] == "arithmetic without Tensor Cores"


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
    [("inference_cost", 1), ("memory_breakdown", 1), ("bottlenecks", 3), ("energy", 1)],
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
