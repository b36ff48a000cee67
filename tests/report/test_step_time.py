"""Where the time of a step goes: its parts, its limits on one clock, and the sentences on them."""

import made_up_records as made_up
import pytest
from drawn_reports import explore, flat, panel_of, said_in, tables_of, texts, write_all

from mixed_precision_study.analysis.explained import NOT_YET
from mixed_precision_study.report.bottlenecks import (
    finding_on_steps,
    limits_in_words,
    parts_of_step,
    profiled_runs,
    section,
    step_row,
    while_busy,
    without_idle,
)
from mixed_precision_study.report.load import load
from mixed_precision_study.report.style import STEP_STYLES

H200 = "resnet18 · cifar10, b128 · H200"
HALVES = [["convolution", 0.25], ["matmul", 0.25], ["normalisation", 0.5]]


def step(busy=0.5, milliseconds=8.0, families=HALVES, **fields):
    """Return the record of a run with a profiled step."""
    known = {"gpu_busy_fraction": busy, "step_ms_median": milliseconds, "kernel_family_fractions": families}
    return made_up.make("cifar_resnet", fields.pop("precision", "fp32"), **known, **fields)


def test_the_parts_are_milliseconds_and_fill_the_step(everything):
    assert parts_of_step(flat(step())) == pytest.approx({"arithmetic": 2.0, "other kernels": 2.0, "idle": 4.0})
    report, charts = everything
    for record in profiled_runs(report).values():
        assert sum(parts_of_step(record).values()) == pytest.approx(record["step_ms_median"])
    axes = panel_of(charts["step_time"], H200)
    first = [bar for bar in axes.patches if abs(bar.get_y() + bar.get_height() / 2) < 0.01]  # of fp32
    assert [bar.get_width() for bar in first] == pytest.approx([16.11 * share for share in (0.63, 0.27, 0.1)], rel=1e-3)
    assert parts_of_step(flat(step(milliseconds=None))) == {}


def test_the_share_of_the_ceiling_counts_from_busy_time():
    assert while_busy(flat(step(compute_limit_fraction=0.2))) == pytest.approx(0.4)
    assert while_busy(flat(step(busy=0.0, compute_limit_fraction=0.2))) is None
    assert while_busy(flat(step(compute_limit_fraction=None))) is None


def test_filling_the_idle_time_has_a_bound():
    assert without_idle(flat(step(busy=0.25))) == 4
    assert without_idle(flat(step(busy=0.0))) is None


def test_what_limits_and_the_bound_are_said_once_for_each_model(tmp_path):
    write_all(tmp_path, step(), step(precision="tf32"), step(0.99, precision="amp_fp16"))
    report, charts = explore(tmp_path, "bottlenecks")
    (line,) = [line for line in said_in("bottlenecks", report).splitlines() if "limited by" in line]
    assert "kernel launches (fp32, tf32)" in line and "Tensor Cores (amp_fp16)" in line
    assert "fp32 2.00x, tf32 2.00x." in line and "1.01x" not in line
    figures, families = tables_of("bottlenecks", report)
    assert len(figures) == len(families) == 3 and "limited by" not in figures[0]
    assert figures[0]["idle, ms"] == "4.00" and "convolution 25%" in families[0]["share of kernel time"]
    assert any("8.00 ms, idle 50%" in text for text in texts(charts["step_time"]))


def test_of_many_comparisons_the_table_says_what_limits_and_eight_are_drawn(tmp_path):
    made_up.write_many(tmp_path)
    report, charts = explore(tmp_path, "bottlenecks")
    assert len(charts["step_time"].axes) == 8
    models = {axes.get_title(loc="left").partition(" ")[0] for axes in charts["step_time"].axes}
    assert models == {"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"}
    figures, _ = tables_of("bottlenecks", report)
    assert len(figures) == 200 and figures[0]["limited by"] == "arithmetic without Tensor Cores"
    assert figures[0]["without idle time, at most"] == "1.11x"
    assert said_in("bottlenecks", report).count("limited by") == 0


def steps_of(folder):
    """Return the report of a folder, its profiled runs and the parts of their steps."""
    report = load(folder)
    runs = profiled_runs(report)
    stacks = {key: parts_of_step(record) for key, record in runs.items()}
    return report, runs, stacks


def test_the_finding_needs_less_arithmetic_in_16_bits(tmp_path):
    write_all(tmp_path, step(busy=1.0))
    write_all(tmp_path, step(1.0, 4.0, [["convolution", 0.1], ["copy", 0.9]], precision="amp_fp16"))
    report, runs, stacks = steps_of(tmp_path)
    finding = finding_on_steps(report, stacks, runs)
    assert " 10% " in finding and "kernels other than arithmetic (resnet18)" in finding
    stacks[0, "amp_fp16"]["arithmetic"] = 3.9
    assert finding_on_steps(report, stacks, runs) == ""


def test_the_finding_names_the_limit_that_the_list_below_names(tmp_path):
    """Also where other kernels take longer than the idle time."""
    write_all(tmp_path, step(busy=1.0))
    write_all(tmp_path, step(0.7, 4.0, [["convolution", 0.1], ["copy", 0.9]], precision="amp_fp16"))
    report, runs, stacks = steps_of(tmp_path)
    assert stacks[0, "amp_fp16"]["other kernels"] > stacks[0, "amp_fp16"]["idle"]
    assert "kernel launches (resnet18)" in finding_on_steps(report, stacks, runs)
    assert "kernel launches (amp_fp16)" in said_in("bottlenecks", report)


def test_the_finding_tells_eager_mode_and_graphs_apart():
    launches, memory = ("eager", "kernel launches"), ("as one graph", "kernels other than arithmetic")
    both = [(*launches, "resnet18"), (*memory, "resnet18"), (*launches, "lstm"), (*memory, "lstm")]
    assert limits_in_words(both) == "kernel launches (eager), kernels other than arithmetic (as one graph)"
    mixed = [*both[:3], ("as one graph", "kernel launches", "lstm")]
    assert limits_in_words(mixed) == "kernel launches (resnet18, lstm), kernels other than arithmetic (resnet18)"
    assert limits_in_words([*mixed, both[1]]).startswith(
        "kernel launches in 3, kernels other than arithmetic in 2 of 5"
    )


def test_without_a_profile_the_section_is_absent(tmp_path):
    write_all(tmp_path, made_up.make("cifar_resnet", "fp32", explained=False))
    assert list(section(load(tmp_path))) == []


def test_reasons_stand_where_a_profile_is_missing(everything):
    report, charts = everything
    assert {"the profiler saw no kernel", "not measured", "oom", "diverged"} <= set(texts(charts["step_time"]))
    assert set(STEP_STYLES) <= set(texts(charts["step_time"]))
    key, record = next(iter(profiled_runs(report).items()))
    row = step_row(report, key, record)
    assert (row["of the measured FLOP/s"], row["waits for data"]) == ("67%", "1%")


def test_a_comparison_that_was_only_timed_has_no_panel(tmp_path):
    explained = made_up.make("cifar_resnet", "fp32")
    timed = made_up.make("cifar_resnet", "fp32", parameters={"lr": 0.5}, explained=False)
    timed.profile_reason = NOT_YET
    write_all(tmp_path, explained, timed)
    report, charts = explore(tmp_path, "bottlenecks")
    assert len(report.comparisons) == 2
    assert sum(axes.axison for axes in charts["step_time"].axes) == 1
    assert "1 of 2 comparisons" in " ".join(texts(charts["step_time"]))


def test_runs_made_for_their_time_alone_are_not_called_unmeasured(tmp_path):
    explained = made_up.make("cifar_resnet", "fp32")
    alone = made_up.make("cifar_resnet", "fp32", parameters={"lr": 0.5}, explained=False)
    alone.profile_reason = NOT_YET
    broken = made_up.make("cifar_resnet", "fp32", parameters={"lr": 0.6}, explained=False)
    broken.profile_reason = "the profiler saw no kernel"
    write_all(tmp_path, explained, alone, broken)
    said = said_in("bottlenecks", explore(tmp_path, "bottlenecks")[0])
    assert "1 of the 3 runs that ended well had only their time measured." in said
    assert "was not measured in 1 of the 3 runs that ended well: the profiler saw no kernel (1)." in said
