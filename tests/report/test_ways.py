"""What another way of running brings in the same precision."""

import itertools

import made_up_records as made_up
import pytest
from drawn_reports import explore, said_in, tables_of

from mixed_precision_study.report.answer import kind_of
from mixed_precision_study.report.load import load
from mixed_precision_study.report.ways import find_changes, in_words, without_baseline

SECONDS = {"eager": 8.0, "compile": 6.0, "cuda_graph": 4.0, "compile_cuda_graph": 2.0}


def write_ways(folder, precisions=("amp_fp16",), processes=3, **ways):
    """Write so many processes of every way: {name of a way: (its parameters, seconds of an epoch)}."""
    for precision, (parameters, seconds) in itertools.product(precisions, ways.values()):
        times = (seconds, seconds)
        record = made_up.make("cifar_resnet", precision, seconds=times, parameters={"lr": 0.1, **parameters})
        made_up.write_processes(record, folder, processes)


def test_each_execution_is_compared_with_those_to_which_it_adds_something(tmp_path):
    write_ways(tmp_path, **{name: ({"execution": name}, seconds) for name, seconds in SECONDS.items()})
    report = load(str(tmp_path))
    found = {
        (
            report.comparisons[change.before]["settings"]["execution"],
            report.comparisons[change.after]["settings"]["execution"],
        )
        for change in find_changes(report)
    }
    quoted = {name: f'"{name}"' for name in SECONDS}
    adding = [("eager", "compile"), ("eager", "cuda_graph"), ("eager", "compile_cuda_graph")]
    adding += [("compile", "compile_cuda_graph"), ("cuda_graph", "compile_cuda_graph")]
    assert found == {(quoted[before], quoted[after]) for before, after in adding}


def test_a_ratio_has_one_changed_setting_and_the_same_precision_on_both_sides(tmp_path):
    eager = {"execution": "eager", "scaler": "pytorch", "loader": "workers"}
    ways = {
        "usual": ({**eager, "loader": "gpu"}, 8.0),
        "scaler": ({**eager, "loader": "gpu", "scaler": "device"}, 4.0),
        "two things": ({**eager, "scaler": "device"}, 16.0),
    }
    write_ways(tmp_path, ("fp32", "amp_fp16"), **ways)
    report = load(str(tmp_path))
    found = {(change.setting, change.precision): change.speedup["ratio"] for change in find_changes(report)}
    modes = ("fp32", "amp_fp16")
    ratios = {"scaler": pytest.approx(2), "loader": pytest.approx(0.25)}
    assert found == {(setting, mode): ratio for setting, ratio in ratios.items() for mode in modes}
    assert not without_baseline(report)
    assert kind_of(report) == "reference"
    (rows,) = tables_of("ways", report)
    assert {(row["with"], row["verdict"]) for row in rows} == {
        ("scaler=device", "faster"),
        ("loader=workers", "slower"),
    }
    assert {(row["processes"], row["memory"]) for row in rows} == {(3, "+0%")}
    assert "Of 4 changes of one setting, 4 are shown to change the time" in said_in("ways", report)


def test_stochastic_rounding_is_compared_with_nearest_and_with_the_fp32_that_has_no_rounding(tmp_path):
    write_ways(tmp_path, ("fp32", "tf32", "amp_bf16", "bf16_true"), nearest=({"rounding": "nearest"}, 4.0))
    write_ways(tmp_path, ("bf16_true",), stochastic=({"rounding": "stochastic"}, 5.0), other=({"lr": 1.0}, 8.0))
    report = load(str(tmp_path))
    (number,) = (
        number
        for number, group in enumerate(report.comparisons)
        if group["settings"]["rounding"] == '"stochastic"' and group["settings"]["lr"] == "0.1"
    )
    of_stochastic = {key[1:]: speedup["ratio"] for key, speedup in report.speedups.items() if key[0] == number}
    ratio = pytest.approx(4 / 5)
    wanted = {("bf16_true", "fp32"): ratio, ("bf16_true", "tf32"): ratio, ("tf32", "fp32"): pytest.approx(1)}
    assert of_stochastic == wanted
    (change,) = find_changes(report)
    assert (change.setting, change.precision, change.speedup["ratio"]) == ("rounding", "bf16_true", ratio)
    assert len(report.used) == len(report.timed) == 3 * 6


def test_a_comparison_of_other_settings_is_lent_no_fp32(tmp_path):
    write_ways(tmp_path, ("fp32", "bf16_true"), nearest=({"rounding": "nearest"}, 4.0))
    write_ways(tmp_path, ("bf16_true",), stochastic=({"rounding": "stochastic", "lr": 1.0}, 5.0))
    report = load(str(tmp_path))
    (own,) = (group for group in report.comparisons if group["settings"]["rounding"] == '"stochastic"')
    assert {name for name, runs in own["runs"].items() if runs} == {"bf16_true"}


def test_without_fp32_the_ways_are_the_answer_and_no_empty_chart_is_drawn(tmp_path):
    write_ways(tmp_path, usual=({"scaler": "pytorch"}, 8.0), other=({"scaler": "device"}, 4.0))
    report, charts = explore(tmp_path, "speedup_figure")
    assert kind_of(report) == "ways"
    assert "speedup" not in charts
    assert "no run in fp32 or tf32" in said_in("speedup_figure", report)
    said = said_in("answer", report)
    assert "resnet18 amp\\_fp16 with scaler=device 2.00x" in said
    assert "cannot be recommended" not in said
    assert tables_of("answer", report) == []


def test_two_processes_decide_nothing(tmp_path):
    write_ways(tmp_path, processes=2, usual=({"scaler": "pytorch"}, 8.0), other=({"scaler": "device"}, 4.0))
    report = load(str(tmp_path))
    assert in_words(report, find_changes(report)) == "Of 1 change of one setting, 0 are shown to change the time."
    ((row,),) = tables_of("ways", report)
    assert row["verdict"] == "two processes"


def test_steps_of_a_ladder_are_left_to_its_chapter(tmp_path):
    made_up.write_ladder(tmp_path)
    report = load(str(tmp_path))
    climbed = {(number, precision) for steps in report.ladders for _, number, precision, _ in steps}
    assert report.ladders
    assert not [
        one for one in find_changes(report) if {(one.before, one.precision), (one.after, one.precision)} <= climbed
    ]


def test_where_nothing_but_precisions_differ_the_section_is_absent(tmp_path):
    write_ways(tmp_path, ("fp32", "amp_fp16"), usual=({"scaler": "pytorch"}, 8.0))
    assert tables_of("ways", load(str(tmp_path))) == []
