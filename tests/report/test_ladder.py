"""Ladders: how they are found, measured, drawn and read."""

import itertools
import json
import re

import made_up_records as made_up
import matplotlib
import pytest
from conftest import NOTEBOOKS
from drawn_reports import drawn, explore, overlapping, said_in, texts, write_all

from mixed_precision_study.analysis.verdict import CANNOT_BE_TOLD, FASTER, NOT_TRAINED, SAME
from mixed_precision_study.report.comparisons import rows_of_failed
from mixed_precision_study.report.ladder import measured_ladders, quality_of, rows_of_ladders, title_of_ladder
from mixed_precision_study.report.ladder_steps import find_ladders
from mixed_precision_study.report.report import Report
from mixed_precision_study.report.style import CPU_WARNING, PRECISIONS
from mixed_precision_study.report.verdicts import judgement
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.runner.studies import load_studies


def ladder_rows(report):
    return rows_of_ladders(report, measured_ladders(report))


@pytest.fixture(scope="module")
def ladder():
    """(report, charts) of the ladders and what comes before, on the made-up ladders."""
    return drawn(made_up.write_ladder, "speedup_figure", "batch_sizes", "ladder")


def steps_of(report, notebook):
    return next(steps for steps in measured_ladders(report) if title_of_ladder(report, steps).startswith(notebook))


def test_a_ladder_has_its_steps_in_order_and_their_known_speed_ups(ladder):
    report, charts = ladder
    assert len(measured_ladders(report)) == 3
    steps = steps_of(report, "cifar_resnet")
    labels = ["fp32", "tf32", "amp_bf16", "+ channels_last", "+ compile", "+ CUDA graph", "+ batch 512"]
    assert [step.label for step in steps] == labels
    assert [step.over_first["ratio"] for step in steps[1:]] == pytest.approx([2, 2.4, 2.4, 3, 4.8, 12])
    assert [step.over_last["ratio"] for step in steps[1:]] == pytest.approx([2, 1.2, 1, 1.25, 1.6, 2.5])
    assert [step.over_first["processes"] for step in steps[1:]] == [3] * 6
    assert all(step.over_first["low"] is not None for step in steps[1:])
    verdicts = [row["verdict"] for row in ladder_rows(report)[:7]]
    assert verdicts == ["-", FASTER, FASTER, SAME, FASTER, FASTER, FASTER]
    row = ladder_rows(report)[6]
    assert (row["over the first step"], row["peak, GiB"]) == ("12.00x (12.00 to 12.00)", "1.90")
    assert row["seconds per 1,000 samples"] == "0.0100"
    assert row["what limits it"].startswith("kernels other than arithmetic: ")
    speeds, memory = charts["ladder"].axes[:2]
    assert [bar.get_width() for bar in speeds.patches] == pytest.approx([1, 2, 2.4, 2.4, 3, 4.8, 12])
    assert [bar.get_width() for bar in memory.patches][-1] == pytest.approx(1950 / 1024)
    colours = {tuple(bar.get_facecolor()) for bar in speeds.patches[2:]}
    assert colours == {matplotlib.colors.to_rgba(PRECISIONS["amp_bf16"].colour)}


def test_a_step_that_did_not_end_well_or_was_not_run_is_a_labelled_gap(ladder):
    report, charts = ladder
    steps = steps_of(report, "efficientnet")
    assert {step.label: step.gap for step in steps if not step.ok} == {
        "+ compile": "failed",
        "+ batch 128": "oom",
    }
    graph = next(step for step in steps if step.label == "+ CUDA graph")
    assert graph.over_last["ratio"] == pytest.approx(1.25)  # over channels_last, the last that ended well
    steps = steps_of(report, "lstm")
    assert [(step.label, step.gap) for step in steps if not step.ok] == [("+ compile", "not run")]
    said = texts(charts["ladder"])
    assert [said.count(text) for text in ("failed", "oom", "not run")] == [2, 2, 2]  # beside speed and beside memory
    rows = {row["step"]: row for row in ladder_rows(report)[7:14]}
    assert (rows["+ batch 128"]["verdict"], rows["+ batch 128"]["what limits it"]) == ("oom", "CUDA out of memory")


def test_steps_of_a_ladder_on_different_gpus_are_not_paired(ladder):
    report, charts = ladder
    steps = steps_of(report, "lstm")
    assert steps[-1].over_first["low"] is None
    assert steps[-1].over_first["ratio"] == pytest.approx(4 * 2_086_000 / 2_087_400)  # of the throughputs
    assert ladder_rows(report)[-1]["verdict"].startswith("not paired")
    assert [text.endswith("/s, another card") for text in texts(charts["ladder"]) if "/s" in text].count(True) == 1


def test_the_ladder_is_read_in_sentences(ladder):
    said = said_in("ladder", ladder[0])
    assert "+ batch 512 reaches **12.00x (12.00 to 12.00)**" in said
    assert "no speed-up by + channels_last." in said
    assert said.count("MIND") == 1 and r"**MIND:** lstm\_language\_model" in said  # several GPUs


def test_the_chart_of_the_ladder_is_readable(ladder):
    figure = ladder[1]["ladder"]
    assert overlapping(figure) == []
    for axes in figure.axes:
        right = axes.get_window_extent().x1 + 8
        assert all(text.get_window_extent().x1 <= right for text in axes.texts)  # within its own panel
    labels = ["last accuracy,\nall runs", "last mean\nabsolute error,\nall runs", "last perplexity,\nall runs"]
    assert [axes.get_title(loc="left") for axes in figure.axes[2::3]] == labels
    last = [text.get_text() for text in figure.axes[2].texts]
    assert len(last) == sum("/s" in text.get_text() for text in figure.axes[0].texts) and all(map(float, last))
    assert "batch_size" not in ladder[1]  # one precision at two sizes is a step here, no comparison of precisions


def test_the_mark_of_a_disturbed_step_is_explained_in_the_chart():
    def write(folder):
        made_up.write_ladder(folder)
        for path in folder.rglob("*.json"):
            record = json.loads(path.read_text())
            if record.get("batch_size") == 512:  # of the last step, which no other chart shows
                path.write_text(json.dumps(record | {"gpu_shared": True}))

    report, charts = drawn(write, "ladder")
    assert {number for number, _ in report.disturbed}.isdisjoint(report.charted)
    figure = charts["ladder"]
    above = [text.get_text() for part in figure.subfigs for text in part.texts]
    assert any("throttled or GPU shared" in text for text in above)
    assert sum("\N{DAGGER}" in text.get_text() for axes in figure.axes for text in axes.texts) == 1


def test_what_was_made_for_the_ladder_alone_is_in_no_other_chart(ladder):
    report, charts = ladder
    shown_titles = [report.comparisons[number]["title"] for number in report.charted]
    eager = [title for title in shown_titles if title.endswith("eager") and "b128" in title]
    assert len(shown_titles) == 3 and len(eager) == 1 and len(report.comparisons) == 13
    assert {key[0] for key in report.epoch_times} == {key[0] for key in report.sentences} == set(report.charted)
    for name in ("speedup", "time_and_memory"):
        assert not {"-", "not run", "failed", "oom"} & set(texts(charts[name])), name
    assert {"not run", "failed", "oom"} <= set(texts(charts["ladder"]))
    assert len(report.timed) == 3 * 17  # every run that ended well is in the tables of runs
    assert sorted({row["status"] for row in rows_of_failed(report)}) == ["failed", "oom"]


def test_one_precision_alone_that_is_no_step_of_a_ladder_keeps_its_place_and_its_gaps(tmp_path):
    made_up.write_ladder(tmp_path)
    values = {"epochs": 6, "channels_last": False, "execution": "cuda_graph", "lr": 0.2}
    write_all(tmp_path, made_up.make_failed("cifar_resnet", "amp_fp16", "oom", "no memory", parameters=values))
    report, charts = explore(tmp_path, "speedup_figure")
    assert len(report.charted) == 4
    said = texts(charts["time_and_memory"])
    assert (said.count("oom"), said.count("-")) == (2, 0)  # for time and for memory


def test_a_ladder_of_single_precisions_is_still_charted(tmp_path):
    ways = [("fp32", False, "eager", 64), ("tf32", True, "eager", 64), ("tf32", True, "compile", 64)]
    for precision, layout, execution, size in ways:
        values = {"channels_last": layout, "execution": execution, "batch_size": size}
        write_all(tmp_path, made_up.make("cifar_resnet", precision, parameters=values))
    report, charts = explore(tmp_path, "speedup_figure", "ladder")
    assert len(measured_ladders(report)) == 1 and len(report.charted) == 3
    assert "ladder" in charts and "speedup" in charts


STEPS = (  # of a ladder: precision, channels_last, execution, batch size, seconds of an epoch
    ("fp32", False, "eager", 128, [6.0, 6.0]),
    ("tf32", False, "eager", 128, [4.0, 2.0]),  # fast at the median, with an interval that spans 1
    ("amp_bf16", True, "eager", 128, [2.0, 2.0]),
    ("amp_bf16", True, "compile_cuda_graph", 128, [1.0, 1.0]),
    ("amp_bf16", True, "compile_cuda_graph", 512, [0.5, 0.5]),
)


def explore_steps(folder, changed):
    """Draw the report of the ladder of STEPS, three repetitions each; `changed` is {(step, repetition): fields}."""
    for step, repeat in itertools.product(range(len(STEPS)), range(3)):
        precision, layout, execution, size, seconds = STEPS[step]
        parameters = {"channels_last": layout, "execution": execution, "batch_size": size, "repeat": repeat}
        values = {"parameters": parameters | {"epochs": 2, "repeats": 1}, **changed.get((step, repeat), {})}
        blocks = made_up.blocks_of(seconds)
        make = made_up.make_failed if "status" in values else made_up.make
        times = {} if "status" in values else {"seconds": seconds, "block_seconds": blocks}
        write_all(folder, make("cifar_resnet", precision, **times | values))
    report, charts = explore(folder, "ladder")
    (steps,) = measured_ladders(report)
    return report, charts, {step.label: step for step in steps}


@pytest.mark.parametrize(("step", "gap"), [(3, "diverged"), (4, "")])
def test_a_step_of_a_ladder_that_learned_nothing_is_no_speed_up(tmp_path, step, gap):
    changed = {(step, repeat): {"metric": [0.1, 0.1]} for repeat in range(3)}  # a larger batch may need more epochs
    report, charts, steps = explore_steps(tmp_path, changed)
    label = ("+ CUDA graph", "+ batch 512")[step - 3]
    assert bool(steps[label].over_first) is not bool(gap) and steps[label].gap.startswith(gap)
    assert texts(charts["ladder"]).count("diverged") == 2 * bool(gap)
    reasons = [row["reason"] for row in rows_of_failed(report)]
    assert len(reasons) == 3 * bool(gap)
    assert all("ended no better than chance" in text and "another step of the ladder" in text for text in reasons)
    row = next(row for row in ladder_rows(report) if row["step"] == label)
    assert (row["verdict"], row["quality at the end"]) == (
        ("diverged", "-") if gap else (NOT_TRAINED, "accuracy 0.100")
    )


def test_the_quality_of_a_step_is_readable_for_small_and_large_metrics():
    run = {"metric_name": "perplexity", "metric": [240.04]}
    assert quality_of([run, {**run, "metric": [236.0]}]) == "perplexity 236.0 to 240.0"
    assert quality_of([{**run, "metric": [99.51]}]) == "perplexity 99.5"
    assert quality_of([{**run, "metric": [None]}]) == "not measured"


def test_a_step_that_not_all_runs_reached_says_so_beside_its_speed_up(tmp_path):
    failed = {"status": "oom", "reason": "CUDA out of memory"}
    report, charts, steps = explore_steps(tmp_path, {(4, 2): failed})
    assert steps["+ batch 512"].over_first["processes"] == 2
    said = [text for text in texts(charts["ladder"]) if "oom" in text]
    assert said and all(re.fullmatch(r"[\d.]+x, [\d,]+/s, oom \(1 of 3\)", text) for text in said)
    row, judged = ladder_rows(report)[-1], judgement(report, steps["+ batch 512"].over_last)
    assert (row["verdict"], row["n"]) == (f"{judged}, oom (1 of 3)", "2 runs")


def test_without_a_ladder_the_section_is_absent(everything):
    assert said_in("ladder", everything[0]) == ""
    assert "ladder" not in everything[1]


def test_most_is_gained_by_a_step_that_is_faster(tmp_path):
    noisy = {}
    for repeat, seconds in enumerate(([9.0, 1.5], [1.5, 0.5], [8.0, 8.0])):  # by itself often faster than fp32
        noisy[1, repeat] = {"seconds": seconds, "block_seconds": made_up.blocks_of(seconds)}
    report, _, steps = explore_steps(tmp_path, noisy)
    said = said_in("ladder", report)
    assert judgement(report, steps["tf32"].over_last) == CANNOT_BE_TOLD
    assert "+ CUDA graph brings most, 2.00x" in said and re.search("cannot be told for tf32", said)
    assert "no speed-up by tf32" not in said


def test_a_ladder_says_what_compiling_and_the_search_took(tmp_path):
    taken = {(3, repeat): {"compile_seconds": 2.0 + repeat, "search_seconds": 1.25} for repeat in range(3)}
    report, _, _ = explore_steps(tmp_path, taken)
    rows = {row["step"]: row for row in ladder_rows(report)}
    name = "compiling + cuDNN's search, s, at most"
    assert rows["+ CUDA graph"][name] == "4.0 + 1.2" and rows["+ channels_last"]["n"] == "3 runs"


def test_a_ladder_on_the_cpu_has_the_warning_and_no_verdict(tmp_path):
    for layout, precisions in ((False, ("fp32", "tf32", "amp_bf16")), (True, ("amp_bf16",))):
        for precision in precisions:
            values = {"parameters": {"channels_last": layout, "batch_size": 4}, "device": made_up.CPU}
            if precision == "tf32":
                record = made_up.make_failed("cifar_resnet", precision, "unsupported", "needs a GPU", **values)
            else:
                record = made_up.make("cifar_resnet", precision, seconds=[5.0, 5.0], **values)
            write_all(tmp_path, record)
    for size in (4, 16):
        values = {"channels_last": True, "batch_size": size, "execution": "compile_cuda_graph"}
        values = {"parameters": values, "device": made_up.CPU}
        reason = "compile_cuda_graph needs a GPU"
        write_all(tmp_path, made_up.make_failed("cifar_resnet", "amp_bf16", "unsupported", reason, **values))
    report, charts = explore(tmp_path, "ladder")
    assert CPU_WARNING in texts(charts["ladder"])
    ((*_, compiled, graph, larger),) = measured_ladders(report)
    assert [step.gap for step in (compiled, graph, larger)] == ["not run", "unsupported", "unsupported"]
    words = " ".join(str(value) for row in ladder_rows(report) for value in row.values())
    assert "not judged: CPU" in words and not re.search("faster|slower|kernel launches", words)


def test_the_runs_of_the_study_are_recognised_as_three_ladders(tmp_path):
    study = load_studies(NOTEBOOKS / "studies.yaml")["ladder"]
    comparisons, _ = plan(study, NOTEBOOKS, tmp_path, {}, True)
    for run in (run for runs in comparisons for run in runs):
        parameters = {**run.parameters, "precisions": [run.precision]}
        known = {"seconds": [3.0], "parameters": parameters, "samples_per_epoch": 49_920}
        write_all(tmp_path, made_up.make(run.notebook.stem, run.precision, **known))
    report, _ = explore(tmp_path, "ladder")
    start, end = ["fp32", "tf32"], ["+ compile", "+ CUDA graph"]
    middle = ["amp_fp16", "+ device scaler", "+ channels_last"]
    found = {title_of_ladder(report, steps).partition(":")[0]: steps for steps in measured_ladders(report)}
    assert {name: [step.label for step in steps] for name, steps in found.items()} == {
        "cifar_resnet": [*start, *middle, *end, "+ batch 512"],
        "efficientnet_regression": [*start, *middle, *end, "+ batch 128"],
        "lstm_language_model": [*start, "amp_bf16", *end, "+ batch 80"],
    }
    assert all(step.ok for steps in measured_ladders(report) for step in steps)


def test_a_longer_way_up_is_taken_and_what_was_added_is_not_added_again():
    def group(precision, layout, execution, size, scaler="pytorch"):
        run = {"precision": precision, "execution": execution, "status": "ok"}
        runs = {name: [run] if name == precision else [] for name in PRECISIONS}
        settings = {"channels_last": json.dumps(layout), "execution": json.dumps(execution), "model": '"m"'}
        settings["scaler"] = json.dumps(scaler)
        return {"runs": runs, "settings": settings, "batch": f"b{size}"}

    steps = (
        ("fp32", False, "eager", 128),
        ("fp32", False, "eager", 512),  # a larger batch before the precision: not the order of a ladder
        ("amp_fp16", False, "eager", 128),
        ("amp_bf16", False, "eager", 128),
        ("amp_bf16", True, "eager", 128),
        ("amp_bf16", True, "cuda_graph", 128),
        ("amp_bf16", True, "compile", 128),
        ("amp_bf16", True, "compile_cuda_graph", 512),
    )
    groups = [group(*step) for step in steps]
    report = Report(comparisons=groups)
    (steps,) = find_ladders(report)
    labels = ["fp32", "amp_bf16", "+ channels_last", "+ compile", "+ CUDA graph", "+ batch 512"]
    assert [label for label, *_ in steps] == labels
    assert [label for label, *_, runs in steps if not runs] == ["+ CUDA graph"]
    report.comparisons = groups[:5]
    assert find_ladders(report) == []  # precision and layout alone
    report.comparisons = [
        *groups[:1],
        groups[2],
        group("amp_fp16", False, "eager", 128, "device"),
        group("amp_fp16", True, "eager", 128, "device"),
        group("amp_fp16", True, "cuda_graph", 128, "device"),
        group("amp_bf16", True, "cuda_graph", 128, "device"),
    ]
    (steps,) = find_ladders(report)
    labels = ["fp32", "amp_fp16", "+ device scaler", "+ channels_last", "+ CUDA graph"]
    assert [label for label, *_ in steps] == labels and all(runs for *_, runs in steps)


def test_ladders_that_differ_in_another_setting_have_names_of_their_own(tmp_path):
    made_up.write_ladder(tmp_path)
    for record in [json.loads(path.read_text(encoding="utf-8")) for path in sorted(tmp_path.glob("cifar*.json"))]:
        record |= {"epochs": 7, "run_id": f"{record['run_id']}-longer"}
        (tmp_path / f"{record['run_id']}.json").write_text(json.dumps(record), encoding="utf-8")
    report, _ = explore(tmp_path, "ladder")
    titles = [title_of_ladder(report, steps) for steps in measured_ladders(report)]
    assert "cifar_resnet: resnet18 · cifar10, from b128 · epochs=7" in titles
    assert [row["comparison"] for row in ladder_rows(report) if row["step"] == "fp32"] == titles
    assert len(set(titles)) == 4
