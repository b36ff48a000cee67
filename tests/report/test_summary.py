"""The summary on made-up records: what it leaves out, its figures, its gaps, and its one sentence where nothing is."""

import itertools
import json
import re
from functools import partial

import made_up_records as made_up
import matplotlib
import matplotlib.pyplot as plt
import PIL.Image
import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, beside, read_notebook
from drawn_reports import bars_at, execute, explore, outputs, panel_of, rows_of, said_in, shown, texts

from mixed_precision_study.analysis.verdict import flags_of
from mixed_precision_study.errors import UserError
from mixed_precision_study.record import NOT_WRITTEN, DiagnosticFields, write_record
from mixed_precision_study.report.bars import pool
from mixed_precision_study.report.batch_sizes import (
    begin_of_search,
    failing_above,
    figures_by_batches,
    gains_by_batch,
    rows_by_batch,
)
from mixed_precision_study.report.bottlenecks import families_in, limit_row, runs_in_profile, shares_of
from mixed_precision_study.report.comparisons import (
    group_runs,
    label_groups,
    rows_of_comparisons,
    rows_of_failed,
    runs_of,
    setting_text,
    sweeps_of,
    usual_settings,
)
from mixed_precision_study.report.energy import energy_row, energy_used
from mixed_precision_study.report.epoch_time import scaled_times
from mixed_precision_study.report.ladder import measured_ladders, quality_of_step, rows_of_ladders, title_of_ladder
from mixed_precision_study.report.ladder_steps import find_ladders
from mixed_precision_study.report.layout import MANY, facet_rows, panel_title, start_chart
from mixed_precision_study.report.load import found, load
from mixed_precision_study.report.loss_scale import LINES
from mixed_precision_study.report.memory_breakdown import ledger_of, runs_in_ledger, used_by_run
from mixed_precision_study.report.memory_use import rates
from mixed_precision_study.report.published.matching import card_of
from mixed_precision_study.report.reading import sort_out
from mixed_precision_study.report.report import Report
from mixed_precision_study.report.scaling import find_growths, rows_of_sizes, sentence_on_costs
from mixed_precision_study.report.section import File, Section, Table, save
from mixed_precision_study.report.style import FAMILY_LOOKS, IDLE_LOOK, PARTS, PRECISIONS, part_handles
from mixed_precision_study.report.table import epochs_paired, quality_change, row_text, table_rows
from mixed_precision_study.report.training_curves import draw_curves, last_metrics
from mixed_precision_study.report.verdicts import disturbed_runs, judgement, mark_of, speedup_of
from mixed_precision_study.report.words import plain, short
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.runner.studies import load_studies

OLD_CHARTS = ("epoch_time", "scaled_time", "speed_up", "peak_memory", "throughput", "training_curves")
EXPLAINED = ("memory_ledger", "kernel_time", "limit_reached", "energy", "inference_latency", "inference_throughput")
CHARTS = (*OLD_CHARTS[:5], *EXPLAINED, "training_curves", "loss_scale")  # in the order of the report
BESIDE = "published_titan_rtx_resnet"  # the made-up ResNets can be set beside that study
H200 = "resnet18 · cifar10, b128 · H200"
LOUD = "CPU plumbing check: not a measurement"


@beside()
def everything(folder):
    """(folder, what must be left out, process, executed notebook) of the records with every status."""
    left_out = made_up.write_everything(folder)
    return lambda: (folder, left_out, *execute(folder)[:2])


@pytest.fixture(scope="module")
def explored(everything):
    return explore(everything[0])


def test_counts_what_is_found_used_and_left_out(everything):
    _, left_out, process, notebook = everything
    assert process.returncode == 0, process.stderr
    assert "47 records found below .: 34 used, 13 left out." in shown(notebook)
    table = next("".join(output["data"]["text/plain"]) for output in outputs(notebook) if "data" in output)
    lines = {line.split()[0]: line for line in table.splitlines()[1:]}
    assert set(lines) == set(left_out)
    assert [path for path, word in left_out.items() if word not in lines[path]] == []
    assert "foreign.json" not in table and "settings.json" not in table and "__MACOSX" not in table


def test_environment_marks_what_differs(everything):
    text = shown(everything[3])
    assert "DIFFERS: 570.9 | 580.1" in text
    assert "**RTX 2080 Ti**: mind that these differ between its runs: driver." in shown(everything[3], "text/markdown")
    assert "ieee / ieee / ieee, autocast float16" in text and "tf32 / tf32 / tf32, autocast off" in text


def test_figures_of_the_table_are_those_of_the_records(everything):
    rows = rows_of(everything[0] / "summary.csv")
    amp = rows[H200, "amp_fp16", "fp32"]
    assert [float(amp[name]) for name in ("speed_up", "speed_up_low", "speed_up_high")] == pytest.approx([2, 2, 2])
    assert (amp["paired_epochs"], amp["paired_seeds"], amp["verdict"]) == ("9", "3", "faster")
    assert (amp["pairs"], amp["repetitions"], amp["limit"]) == ("9", "3", "kernels that move memory")
    assert float(amp["memory_saved_percent"]) == pytest.approx(50)  # the 150 MiB of data are in neither peak
    names = ("quality_change", "quality_change_low", "quality_change_high")
    assert [float(amp[name]) for name in names] == pytest.approx([0.02, 0.01, 0.03])
    assert (amp["quality_seeds"], amp["quality_verdict"], amp["metric"]) == ("3", "better", "accuracy")

    level = rows[H200, "amp_bf16", "tf32"]
    assert float(level["speed_up_low"]) == pytest.approx(1 / 1.02)
    assert float(level["speed_up_high"]) == pytest.approx(1 / 0.99)
    assert level["verdict"] == "no measurable difference"
    assert level["quality_verdict"] == "equal"  # the seeds disagree on the sign
    assert rows[H200, "o2_fp16", "fp32"]["paired_seeds"] == "1"  # of the other two seeds one side ran out of memory

    slow = next(row for (title, *key), row in rows.items() if "no channels_last" in title and key[0] == "amp_fp16")
    assert (slow["verdict"], slow["quality_verdict"], slow["metric"]) == (
        "slower",
        "one seed, so no verdict",
        "mean absolute error",
    )
    single = rows["lstm · wikitext-2, b20 · H200", "tf32", "fp32"]
    assert (single["verdict"], single["paired_epochs"], single["pairs"]) == ("too short to tell", "1", "1")
    assert (single["speed_up_low"], single["speed_up_high"], single["limit"]) == ("", "", "kernel launches")


def test_what_is_missing_is_said_in_the_table(everything):
    rows = rows_of(everything[0] / "summary.csv")
    big = "resnet50 · cifar10, b512 · H200"
    assert rows[big, "amp_fp16", "fp32"]["verdict"] == "fp32: oom"
    assert float(rows[big, "amp_fp16", "tf32"]["speed_up"]) == 2
    assert rows[H200, "o3_fp16", "fp32"]["verdict"] == "o3_fp16: diverged"
    assert rows["resnet18 · cifar10, b128 · RTX 2080 Ti", "tf32", "fp32"]["verdict"] == "tf32: unsupported"
    assert rows["lstm · wikitext-2, b20 · H200", "amp_fp16", "fp32"]["verdict"] == "amp_fp16: killed"


def test_every_run_that_did_not_end_well_is_listed_with_its_whole_reason(everything):
    text = shown(everything[3])
    assert "9 of the 34 runs did not end well" in shown(everything[3], "text/markdown")
    for reason in (
        "CUDA out of memory",
        "ended no better than chance",
        "ended after 30 minutes",
        "and so on to the end",
    ):
        assert reason in text


def test_charts_are_read_in_sentences(everything):
    text = shown(everything[3], "text/markdown")
    for sentence in (
        r"efficientnet\_regression: from **4.10** (fp32, tf\_efficientnet\_b0 · elpv, b32 · no channels\_last · H200)"
        r" to **5.10** seconds per epoch (amp_fp16, ",
        "amp_bf16 takes **0.50** of fp32's time in 1 comparison: faster in 1.",
        "amp_fp16 saves **20% to 52%** of fp32's peak, the data set apart.",
        "The whole device stands 1.46 GiB above PyTorch's peak.",
        r"lstm\_language\_model: from **130,539**",
        "** tokens per second",
        r"cifar\_resnet: between precisions the last accuracy differs most from **0.7** (fp32) to **0.72**",
        "amp_fp16: 16 of 12,227 timed steps were skipped because a gradient overflowed (step 3, 7, counted from 0)",
        "the loss scale went from 16,384 to 65,536; fp16 loses **3% to 5%** of the non-zero gradient elements without",
        "fp16 loses **0.02%** of the non-zero gradient elements at the scale of the last step.",
        "The loss scale of one run changes 3 times at most (amp_fp16, resnet18",
        "Over fp32: faster 3, too short to tell 4, slower 2; from **0.80x** (amp_fp16, ",
        "The largest component of 15 bars: activations and workspace in 11, context and libraries in 4;",
        "The ledger's sum differs from NVML's figure by 0.4% at most.",
        "A memory ledger was not measured in 2 of the 25 runs that ended well: the record does not say why (1); ",
        "The longest family of 15 bars: convolution in 11, matmul in 4.",
        "The GPU is idle from **10%** (fp32, ",
        "Compute: from **20%** (amp_fp16, ",
        "amp_bf16 takes **0.40** of fp32's energy (1 comparison).",
        "Energy was not measured in 2 of the 25 runs that ended well",
        "2 of the 25 runs that ended well were throttled or shared their GPU.",
        "Of 13 ratios: faster 3, no measurable difference 2, too short to tell 6, slower 2.",
    ):
        assert sentence in text


def test_html_in_a_record_is_shown_as_text(everything):
    page = shown(everything[3], "text/html")
    assert "&lt;script&gt;" in page and "&lt;b&gt;bold" in page
    assert "<script" not in page and "<b>" not in page


def test_charts_are_saved_small_and_beside_the_records(everything):
    folder, _, _, notebook = everything
    shown_charts = (*CHARTS, BESIDE, "similar_efficientnet_3090_v100")
    for name in shown_charts:
        content = (folder / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG") and 10_000 < len(content) < 200_000
    images = [output["metadata"]["image/png"] for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert [image["alt"] for image in images] == [f"Chart: {name.replace('_', ' ')}" for name in shown_charts]
    assert (folder / "summary.ipynb").stat().st_size < 1_200_000


def test_gaps_are_labelled_and_devices_kept_apart(explored):
    report, charts = explored
    said = texts(charts["epoch_time"])
    assert {"oom", "diverged", "unsupported", "timeout", "failed", "killed", "-"} <= set(said)
    assert any("* o2_fp16: oom (2 of 3)" in text for text in said)
    assert any("(no fp32: tf32 = 1)" in text for text in texts(charts["scaled_time"]))
    assert {"cifar_resnet\nH200\nn = 3 to 9 (epochs)", "cifar_resnet\nRTX 2080 Ti\nn = 3 (epochs)"} <= set(said)
    assert any("(synthetic), b20" in text for text in said)
    assert {group["device"] for group in report.comparisons} == {"H200", "RTX 2080 Ti"}
    assert not any(LOUD in text for figure in charts.values() for text in texts(figure))


def test_bars_are_medians_and_reach_from_smallest_to_largest(explored):
    report, _ = explored
    number = [group["title"] for group in report.comparisons].index(H200)
    assert report.epoch_times[number, "fp32"] == pytest.approx((6.3, 6.0, 6.6, 9))
    assert scaled_times(report)[0][number, "amp_fp16"] == pytest.approx((0.5, 0.5, 0.5, 9))
    assert report.peaks[number, "fp32"][0] == 4.0 and report.whole[number, "fp32"][0] == (4096 + 1500) / 1024
    assert pool(report, rates)[number, "fp32"][1:3] == pytest.approx((50_000 / 6.6, 50_000 / 6.0))


def test_epochs_of_unequal_work_are_shown_as_time_per_sample(tmp_path):
    for notebook, size, steps in (("cifar_resnet", 128, 0), ("cifar_resnet", 128, 5), ("lstm_language_model", 20, 0)):
        for precision in ("fp32", "amp_fp16"):
            known = {"samples_per_epoch": steps * size} if steps else {}
            known |= {"seconds": [0.064] * 3} if steps else {}
            values = {"batch_size": size, "max_steps": steps}
            write_record(made_up.make(notebook, precision, parameters=values, **known), tmp_path)
    report, charts = explore(tmp_path, "epoch_time")
    assert report.uneven == {"cifar_resnet"}
    images, words = charts["epoch_time"].axes[:2]
    assert (images.get_ylabel(), words.get_ylabel()) == ("µs per image", "seconds per epoch")
    heights = {round(bar.get_height(), 6) for bar in images.patches}
    assert heights == {122, 100} and {bar.get_height() for bar in words.patches} == {6.1}  # 6.1 s for 50,000 images
    assert sorted({bar[0] for bar in report.epoch_times.values()}) == [0.064, 6.1]  # the articles give seconds
    assert any("(per sample, where epochs are unequal work)" in text for text in texts(charts["epoch_time"]))


def test_no_text_lies_on_another(explored):
    for name, figure in explored[1].items():
        for axes in figure.axes:
            boxes = [text.get_window_extent().padded(-1) for text in axes.texts]
            pairs = itertools.combinations(zip(boxes, axes.texts, strict=True), 2)
            hits = [(a[1].get_text(), b[1].get_text()) for a, b in pairs if a[0].overlaps(b[0])]
            assert hits == [], name


def test_cpu_records_alone_are_charted_under_a_loud_title(tmp_path):
    for precision in ("fp32", "amp_bf16"):
        write_record(made_up.make("cifar_resnet", precision, device=made_up.CPU, seconds=[5.0]), tmp_path)
    report, charts = explore(tmp_path)
    assert report.on_cpu and set(charts) == set(OLD_CHARTS)
    assert all(LOUD in texts(figure) for figure in charts.values())
    assert "not measured" in texts(charts["peak_memory"])
    (row,) = table_rows(report)
    assert (row["verdict"], row["quality_verdict"], row["limit"]) == ("not judged: CPU", "not judged: CPU", None)
    assert row["verdict_text"].startswith("amp_bf16 ran on the CPU")


@beside()
def report_of_the_cpu(folder):
    killed = {"device_type": None, "gpu_name": None, "dataset_used": None, "synthetic": None}
    write_record(made_up.make_failed("lstm_language_model", "fp32", "killed", "by signal 9", **killed), folder)
    for precision, time in (("fp32", 5.0), ("amp_bf16", 2.0)):
        write_record(made_up.make("cifar_resnet", precision, device=made_up.CPU, seconds=[time] * 6), folder)
    return partial(execute, folder)


def test_a_report_of_the_cpu_judges_nothing(report_of_the_cpu):
    process, notebook, _ = report_of_the_cpu
    assert process.returncode == 0, process.stderr
    text = shown(notebook) + shown(notebook, "text/markdown")
    assert LOUD in text and "measures nothing" in text
    judged = (
        r"\b(faster|slower)( in)? \d",
        "no measurable difference \\d",
        "takes \\*\\*",
        "2.50x as fast",
        "kernel launches",
    )
    assert [word for word in judged if re.search(word, text)] == []


def test_all_runs_failed_still_gives_a_report(tmp_path):
    for status in ("oom", "timeout"):
        record = made_up.make_failed("cifar_resnet", "fp32", status, "<i>$x$ and $y$</i>", parameters={"model": status})
        write_record(record, tmp_path)
    report, charts = explore(tmp_path)
    assert {"oom", "timeout"} <= set(texts(charts["epoch_time"])) and set(charts) == set(OLD_CHARTS) - {"speed_up"}
    assert [key[1:] for key in report.sentences] == [("fp32", "fp32")] * 2
    assert all("<i>$x$ and $y$</i>" in sentence for sentence in report.sentences.values())
    assert [row["speed_up"] for row in table_rows(report)] == []  # fp32 alone has nothing to be compared with


def test_forty_comparisons_fit_into_rows(tmp_path):
    made_up.write_many(tmp_path)
    report, charts = explore(tmp_path, "epoch_time")
    assert len(report.comparisons) == 50
    rows = facet_rows(report)
    assert sorted(itertools.chain(*itertools.chain(*rows))) == list(range(50))
    assert max(sum(map(len, row)) for row in rows) <= 6
    assert charts["epoch_time"].get_figheight() > 2 * len(rows)
    models = [group["model"] for group in report.comparisons[:5]]
    assert models == ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]


@beside()
def report_of_nothing(folder):
    (folder / "foreign.json").write_text('{"theme": "dark"}', encoding="utf-8")
    return partial(execute, folder)


def test_nothing_to_read_ends_in_one_sentence(report_of_nothing):
    process, notebook, _ = report_of_nothing
    assert process.returncode != 0
    errors = [output for output in outputs(notebook) if output["output_type"] == "error"]
    assert [output["ename"] for output in errors] == ["UserError"]
    assert [len(output["traceback"]) for output in errors] == [1]
    assert errors[0]["traceback"][0].startswith("Stopped: no usable run record lies below")
    assert "Files panel" in errors[0]["traceback"][0]


def test_missing_folder_ends_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match="there is no folder records_dir") as caught:
        load(str(tmp_path / "gone"))
    assert "\n" not in str(caught.value)
    assert len(caught.value._render_traceback_()) == 1


def test_opened_by_hand_it_finds_the_outputs(tmp_path, monkeypatch):
    write_record(made_up.make("cifar_resnet", "fp32"), tmp_path / "outputs" / "quick")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    report = load(".")
    assert report.folder == "../outputs"
    assert found(report) == "1 record found below ../outputs: 1 used, 0 left out."


def test_file_that_cannot_be_written_costs_a_sentence(tmp_path):
    write_record(made_up.make("cifar_resnet", "fp32"), tmp_path)
    (tmp_path / "summary.csv").mkdir()
    said = save(File("summary.csv", b""), tmp_path)
    assert said.text.startswith("summary.csv was not saved: ")


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """The report of a single record."""
    folder = tmp_path_factory.mktemp("single")
    write_record(made_up.make("cifar_resnet", "fp32"), folder)
    return load(folder)


def flat(record, path="made up"):
    """Return a record as it is read back from its file."""
    values = {**record.parameters, **vars(record), "path": path}
    return {name: value for name, value in values.items() if name not in NOT_WRITTEN}


def speedup_between(*records):
    """Return the gain of tf32 over fp32 in the one comparison of these records."""
    (group,) = group_runs([flat(record) for record in records])
    return speedup_of(group, "tf32", "fp32")


def test_runs_on_different_cards_are_not_paired(single):
    other = {**made_up.H200, "gpu_uuid": "GPU-9"}
    runs = [made_up.make("cifar_resnet", "fp32"), made_up.make("cifar_resnet", "tf32", device=other, seconds=[3.0] * 3)]
    speedup = speedup_between(*runs)
    assert (speedup["ratio"], speedup["low"], speedup["high"], speedup["pairs"]) == (
        pytest.approx(6.1 / 3),
        None,
        None,
        0,
    )
    assert judgement(single, speedup) == "not paired: other card, seed or repetition"


def test_interval_of_a_known_ratio(single):
    level = {"block_seconds": [1.5] * 12}
    half = {"seconds": [3.0] * 3, "block_seconds": [0.75] * 12}
    base = made_up.make("cifar_resnet", "fp32", seconds=[6.0] * 3, **level)
    speedup = speedup_between(base, made_up.make("cifar_resnet", "tf32", **half))
    assert [speedup[name] for name in ("ratio", "low", "high")] == [2, 2, 2]
    assert (speedup["pairs"], speedup["repetitions"], judgement(single, speedup)) == (12, 1, "faster")
    half["block_seconds"] = [0.75, 1.5] * 6  # every second block gains nothing
    speedup = speedup_between(base, made_up.make("cifar_resnet", "tf32", **half))
    assert (speedup["low"], speedup["high"]) == (1, 2)
    assert judgement(single, speedup) == "no measurable difference"


def test_repetitions_are_paired_with_their_own(single):
    runs = []
    for seed, repeat, slow in itertools.product((0, 1), (0, 1), (1.0, 2.0)):
        values = {"parameters": {"seed": seed, "repeat": repeat}, "shift": 0.1 * repeat + (slow == 1.0) * 0.01}
        times = [slow * (1 + seed + repeat)] * 3
        runs.append(made_up.make("cifar_resnet", "tf32" if slow == 1 else "fp32", seconds=times, **values))
    speedup = speedup_between(*runs)
    assert [speedup[name] for name in ("ratio", "low", "high")] == [2, 2, 2]  # any other pairing would spread
    assert (speedup["pairs"], speedup["repetitions"], speedup["seeds"]) == (12, 4, 2)
    (group,) = group_runs([flat(run) for run in runs])
    assert set(last_metrics(group, "tf32")) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    change = quality_change(single, group, "tf32", "fp32")
    assert change[:4] == pytest.approx((0.01, 0.01, 0.01, 2)) and change[4] == "better"
    assert epochs_paired(group, "tf32", "fp32") == 12


def test_every_comparison_has_its_verdicts_as_text(everything, explored):
    report, rows = explored[0], rows_of(everything[0] / "summary.csv")
    amp = rows[H200, "amp_fp16", "tf32"]["verdict_text"]
    assert amp.startswith("amp_fp16 is 1.00x as fast as tf32 (1.00 to 1.00): no measurable difference")
    assert rows[H200, "o3_fp16", "fp32"]["verdict_text"].startswith("o3_fp16 diverged")
    page = shown(everything[3], "text/markdown")
    for (_, _, baseline), sentence in report.sentences.items():  # what limits a run is said once
        assert f"- {plain(sentence if baseline == 'fp32' else sentence.partition(';')[0])}" in page
    assert page.count("1.00x as fast as tf32 (1.00 to 1.00): no measurable difference. ") == 1
    assert "- fp32 ran out of memory: CUDA out of memory" in page
    assert r"- amp\_fp16 has no fp32 to be compared with (oom); " in page
    assert len(report.sentences) == len(rows) + 1  # fp32 itself is in the list only where it failed
    ids = [cell["id"] for cell in everything[3]["cells"]]
    assert ids.index("comparisons") < ids.index("verdicts") < ids.index("epoch-time")


def test_disturbed_runs_are_marked_everywhere(everything, explored):
    report, charts = explored
    for name in set(CHARTS) - {"training_curves", "loss_scale"}:
        marked = [text for text in texts(charts[name]) if text.removesuffix(" (no interval)").endswith("†")]
        assert len(marked) == (4 if name == "limit_reached" else 2), name
    for name in CHARTS:
        assert "† throttled or GPU shared: see the table of runs" in texts(charts[name])
    for name in ("training_curves", "loss_scale"):
        assert sum("† amp_fp16" in text for text in texts(charts[name])) == 2
    assert [flags_of(record) for _, record in report.disturbed] == [
        ["throttled (power cap 30% of the time)"],
        ["GPU shared with another process"],
    ]
    assert "throttled (power cap 30% of the time)" in shown(everything[3])
    flags = {row["flags"] for row in rows_of(everything[0] / "summary.csv").values()}
    assert flags == {"", "amp_fp16 throttled (power cap 30% of the time)", "amp_fp16 GPU shared with another process"}


def test_a_disturbed_search_of_the_largest_batch_is_among_the_disturbed_runs(tmp_path):
    for size, flags in ((128, {}), ("max", {"throttled": True, "throttle_fractions": [["power cap", 0.3]]})):
        for precision in ("fp32", "amp_fp16"):
            write_record(made_up.make("cifar_resnet", precision, parameters={"batch_size": size}, **flags), tmp_path)
    report, section = load(tmp_path), Section()
    disturbed_runs(section, report)
    said, tables = section.sentences, section.tables
    assert said[0].endswith(": 2 of the 4 runs that ended well were throttled or shared their GPU.")
    ((first, second),) = tables
    assert first["comparison"] == "cifar_resnet: resnet18 · cifar10, bmax" and first["flags"] == second["flags"]
    assert report.disturbed == [] and "No run was seen" not in " ".join(said)  # no chart has a mark of theirs


def test_undisturbed_runs_have_no_mark(single):
    assert single.disturbed == [] and mark_of(single, 0, "fp32") == ""


def test_ledger_stacks_to_the_sum_and_meets_nvml(explored):
    report, charts = explored
    axes = panel_of(charts["memory_ledger"], H200)
    peak = 4096 / 1024
    stack = bars_at(axes, 0)
    assert sum(height for _, height in stack) == pytest.approx(peak + (200 + 1290) / 1024)
    assert [foot for foot, _ in stack] == pytest.approx(list(itertools.accumulate([0, *[h for _, h in stack][:-1]])))
    (diamond, *_) = axes.lines
    assert diamond.get_ydata()[0] == pytest.approx(peak + 1497 / 1024)
    runs = runs_in_ledger(report)
    key = next(key for key in runs if report.comparisons[key[0]]["title"] == H200 and key[1] == "o2_fp16")
    assert ledger_of(runs[key])["fp32 master copies"] == pytest.approx(43 / 1024)
    said = texts(charts["memory_ledger"])
    assert {"nvidia-ml-py is not installed", "not measured", "oom", "diverged"} <= set(said)
    assert [label.get_text() for label in axes.get_xticklabels()][:3] == ["fp32", "tf32", "amp\nfp16"]
    labels = {"parameters", "optimizer", "activations and workspace", "context and libraries", "the run's use by NVML"}
    assert labels <= set(said)


def test_ledger_without_context_is_a_lower_bound():
    record = flat(made_up.make("cifar_resnet", "fp32", ledger_context_mib=None, ledger_reason="no NVML"))
    assert sum(ledger_of(record).values()) == pytest.approx((4096 + 200) / 1024)
    bare = flat(made_up.make("cifar_resnet", "fp32", explained=False))
    assert ledger_of(bare) == {} and used_by_run(bare) is None


def test_kernel_shares_fill_the_step(explored):
    report, charts = explored
    stack = bars_at(panel_of(charts["kernel_time"], H200), 0)
    assert sum(height for _, height in stack) == pytest.approx(100)
    assert stack[-1][1] == pytest.approx(10) and max(height for _, height in stack) == pytest.approx(63)
    runs = runs_in_profile(report)
    named = families_in(runs)
    assert len(named) == 9 and "other" not in named
    colours = {bar.get_facecolor() for bar in panel_of(charts["kernel_time"], H200).patches if bar.get_height() > 0}
    wanted = {matplotlib.colors.to_rgba(FAMILY_LOOKS[family][0]) for family in ("convolution", "optimizer")}
    assert wanted <= colours
    for parts in (shares_of(record, named) for record in runs.values()):
        assert sum(parts.values()) == pytest.approx(1)
        assert list(parts)[-2:] == ["other kernels", "idle"]


def test_a_kernel_family_has_one_look_in_every_report(explored):
    from mixed_precision_study.profiling import KERNEL_FAMILIES

    styles = FAMILY_LOOKS
    assert set(styles) < set(KERNEL_FAMILIES) and len(set(styles.values())) == len(styles) == 12
    grey, idle = PARTS[-1], IDLE_LOOK
    assert {grey[0], idle[0]}.isdisjoint(colour for colour, _ in styles.values())
    record = {"gpu_busy_fraction": 0.5, "kernel_family_fractions": [["pooling", 0.75], ["matmul", 0.25]]}
    parts = shares_of(record, ["convolution", "matmul"])
    assert parts == {"convolution": 0, "matmul": 0.125, "other kernels": 0.375, "idle": 0.5}
    handles = part_handles(styles | {"other kernels": grey, "idle": idle})
    figure, _ = start_chart(explored[0], "all of them", [1.0], handles)
    figure.draw_without_rendering()
    (legend,) = [legend for part in figure.subfigs for legend in part.legends]
    plt.close(figure)
    assert legend.get_window_extent().x1 <= figure.get_figwidth() * figure.dpi


def test_limits_are_charted_and_listed(everything, explored):
    axes = panel_of(explored[1]["limit_reached"], H200)
    assert bars_at(axes, -0.2)[0][1] == pytest.approx(60) and bars_at(axes, 0.2)[0][1] == pytest.approx(50)
    text = shown(everything[3])
    assert "measured ceiling, TFLOP/s" in text and "arithmetic without Tensor Cores" in text
    row = limit_row(explored[0], *explored[0].timed[0])
    assert (row["TFLOP/s"], row["measured ceiling, TFLOP/s"], row["of the ceiling"]) == ("30.0", "50.0", "60%")
    assert (row["GPU busy"], row["waits for data"], row["of the copy bandwidth"]) == ("90%", "1%", "50%")


def test_energy_that_is_unknown_is_no_zero(explored):
    report, charts = explored
    number = [group["title"] for group in report.comparisons].index(H200)
    assert energy_used(report)[number, "fp32"][0] == pytest.approx(500 * (6.1 + 6.3 + 6.5) / 150)
    assert texts(charts["energy"]).count("unavailable") == 2
    bare = flat(made_up.make("cifar_resnet", "fp32", explained=False, energy_reason="no NVML"))
    row = energy_row(report, number, bare)
    assert row["measured by"] == "no NVML" and row["mean power, W"] == row["energy, J"] == "unavailable"


@beside()
def report_of_before(folder):
    for precision in ("fp32", "amp_fp16"):
        path = write_record(made_up.make("cifar_resnet", precision, explained=False), folder)
        record = json.loads(path.read_text(encoding="utf-8"))
        new = {*DiagnosticFields.__dataclass_fields__, "block_seconds", "data_wait_fraction"}
        path.write_text(json.dumps({name: value for name, value in record.items() if name not in new}))
    return partial(execute, folder)


def test_records_of_before_are_still_read(report_of_before):
    process, notebook, folder = report_of_before
    assert process.returncode == 0, process.stderr
    text = shown(notebook, "text/markdown")
    for what in ("A memory ledger", "Where the time goes", "The distance from the limits of compute", "Energy"):
        assert f"{what} was not measured in any run, so there is no chart: the record does not say why (2)." in text
    assert {path.stem for path in folder.glob("*.png")} == {*OLD_CHARTS, BESIDE}
    assert "what limits it is not known" in text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kernel_family_fractions", ["convolution"]),
        ("kernel_family_fractions", [["convolution", -1.0]]),
        ("throttle_fractions", [["power cap", None]]),
        ("throttle_fractions", [[0.5, "power cap"]]),
        ("loss_scale_trace", [[0]]),
        ("loss_scale_trace", [["first", 65536.0]]),
        ("overflow_steps", [[3]]),
        ("block_seconds", [1.0, None]),
        ("block_seconds", [1.0, 0.0]),
        ("block_seconds", {"first": 1.0}),
        ("metric", ["high"]),
        ("throttled", "yes"),
    ],
)
def test_fields_that_hold_nonsense_cost_the_record(field, value):
    record = flat(made_up.make("cifar_resnet", "amp_fp16", **{field: value}))
    used, ((_, reason),) = sort_out([record])
    assert used == [] and field in reason


def test_charts_keep_the_colours_of_their_parts(everything, explored):
    image = PIL.Image.open(everything[0] / "memory_ledger.png").convert("RGB")
    colours = {colour for _, colour in image.getcolors(1 << 24)}
    assert [colour for colour, _ in PARTS if tuple(bytes.fromhex(colour[1:])) not in colours] == []


def test_run_killed_early_joins_its_comparison_only_where_that_is_certain():
    unknown = {"device_type": None, "gpu_name": None, "dataset_used": None, "synthetic": None, "gpu_uuid": None}
    killed = made_up.make_failed("cifar_resnet", "tf32", "killed", "signal 9", **unknown)
    one = made_up.make("cifar_resnet", "fp32")
    two = made_up.make("cifar_resnet", "fp32", device=made_up.TURING)
    used, left_out = sort_out([flat(killed, "a"), flat(one, "b")])
    assert left_out == [] and len(group_runs(used)) == 1
    used, _ = sort_out([flat(killed, "a"), flat(one, "b"), flat(two, "c")])
    assert len(group_runs(used)) == 3
    killed.gpu_uuid = "GPU-2"  # what run_all.py knows: the card, not yet the data
    used, _ = sort_out([flat(killed, "a"), flat(one, "b"), flat(two, "c")])
    assert [group["device"] for group in group_runs(used)] == ["H200", "RTX 2080 Ti"]


def test_real_data_is_kept_though_a_synthetic_copy_is_newer():
    real = made_up.make("lstm_language_model", "fp32")
    fake = made_up.make("lstm_language_model", "fp32", dataset_used="synthetic", synthetic=True)
    fake.finished_at = "2030-01-01T00:00:00+00:00"
    used, left_out = sort_out([flat(fake, "fake"), flat(real, "real")])
    assert [record["path"] for record in used] == ["real"]
    assert left_out == [("fake", "synthetic data, beside real data in the same comparison")]


def test_labels_name_only_the_settings_that_differ():
    values = itertools.product(("eager", "compile"), (True, False))
    values = [{"execution": execution, "channels_last": layout, "lr": 0.2} for execution, layout in values]
    groups = group_runs([flat(made_up.make("cifar_resnet", "fp32", parameters=value)) for value in values])
    label_groups(groups)
    assert [group["lines"] for group in groups] == [
        ["resnet18", "cifar10, b128", layout, execution]
        for layout in ("no channels_last", "channels_last")
        for execution in ("compile", "eager")
    ]


def test_a_setting_in_which_only_other_models_differ_is_in_the_table_not_in_the_label():
    values = [{"model": "resnet18", "epochs": 30}, {"model": "dpn92", "epochs": 1}]
    groups = group_runs([flat(made_up.make("cifar_resnet", "fp32", parameters=value)) for value in values])
    label_groups(groups)
    assert [group["lines"] for group in groups] == [["dpn92", "cifar10, b128"], ["resnet18", "cifar10, b128"]]
    assert [group["differing"] for group in groups] == [["epochs=1"], ["epochs=30"]]


def test_a_count_is_shown_as_it_is_and_nothing_as_unavailable(single):
    record = flat(made_up.make("cifar_resnet", "fp32")) | {"temperature_celsius_max": 61, "energy_joules": None}
    row = energy_row(single, 0, record)
    assert (row["hottest, °C"], row["energy, J"]) == ("61", "unavailable")


def test_same_data_asked_for_in_two_ways_is_compared():
    values = [{"dataset": "auto"}, {"dataset": "cifar10"}]
    (group,) = group_runs([flat(made_up.make("cifar_resnet", "fp32", parameters=one)) for one in values])
    assert [run["dataset"] for run in group["runs"]["fp32"]] == ["auto", "cifar10"]


def test_comparisons_that_only_lack_a_parameter_are_told_apart():
    runs = [flat(made_up.make("cifar_resnet", "fp32", parameters=one)) for one in ({}, {"dropout": 0.5})]
    label_groups(groups := group_runs(runs))
    assert sorted(group["lines"][2:] for group in groups) == [[], ["dropout=0.5"]]


def test_a_scaled_time_of_two_cards_is_marked(tmp_path):
    for precision, seconds, card in (("fp32", 4.0, "GPU-1"), ("tf32", 2.0, "GPU-2"), ("amp_fp16", 1.0, "GPU-1")):
        values = {"seconds": [seconds] * 2, "block_seconds": made_up.blocks_of([seconds] * 2), "gpu_uuid": card}
        write_record(made_up.make("cifar_resnet", precision, **values), tmp_path)
    _, charts = explore(tmp_path, "epoch_time")
    assert {"1.00", "0.500‡", "0.250"} <= set(texts(charts["scaled_time"]))
    assert not any("‡" in text for text in texts(charts["epoch_time"]))


def test_repeats_begin_again_at_the_first_epoch():
    values = {"epochs": 2, "repeats": 2}
    record = flat(made_up.make("cifar_resnet", "fp32", seconds=[1.0] * 4, parameters=values))
    (group,) = group_runs([{**record, "metric": [0.5, 0.7, 0.6, 0.8]}])
    axes = plt.figure().subplots()
    draw_curves(axes, group, "metric")
    (line, *_) = axes.lines
    plt.close(axes.figure)
    assert list(line.get_xdata()) == [1, 2] and list(line.get_ydata()) == pytest.approx([0.55, 0.75])


@pytest.mark.parametrize(
    ("text", "escaped"), [("<b>", "&lt;b&gt;"), ("a_b*c", r"a\_b\*c"), ("$x$ | `y`", r"\$x\$ \| \`y\`")]
)
def test_text_of_a_record_is_plain_in_markdown(text, escaped):
    assert plain(text) == escaped


@pytest.mark.parametrize(("number", "text"), [(0.41234, "0.412"), (6.1, "6.10"), (12, "12.0"), (19230.77, "19,231")])
def test_numbers_have_three_digits_that_count(number, text):
    assert short(number) == text


def test_contents_link_to_every_section():
    cells = [cell for cell in read_notebook("summary")["cells"] if cell["cell_type"] == "markdown"]
    headings = re.findall("^## (.+)$", "\n".join("".join(cell["source"]) for cell in cells), re.MULTILINE)
    links = re.findall(r"\[([^]]+)\]\(#([^)]+)\)", "".join(cells[0]["source"]))
    assert links == [(heading, heading.replace(" ", "-")) for heading in headings] and len(links) > 12


def test_notebook_keeps_to_the_house_rules():
    notebook = read_notebook("summary")
    assert [cell["id"] for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", [])] == [
        "parameters"
    ]


@beside()
def report_of_probes(folder):
    for precision, size in (("fp32", 240), ("amp_fp16", 480)):
        known = {"batch_size_used": size, "samples_per_epoch": 49_920, "samples_per_second": 8000.0}
        known["batch_probes"] = [[256, "ok", 1.0, 1.0], [512, "ok", 1.0, 2.0], [512, "oom", 1.0, None]]
        write_record(made_up.make("cifar_resnet", precision, parameters={"batch_size": "max"}, **known), folder)
    return partial(execute, folder)


def test_a_probe_that_ran_out_with_cudnns_search_is_not_the_largest_batch(report_of_probes):
    process, _, folder = report_of_probes
    assert process.returncode == 0  # though no comparison at one batch size is there
    report, _ = explore(folder)
    assert [row["largest that trained"] for row in rows_by_batch(figures_by_batches(report))] == [240, 480]
    assert [row["out of memory at"] for row in rows_by_batch(figures_by_batches(report))] == [512, 512]
    assert all(set(sizes) == {256} for sizes in figures_by_batches(report)[0]["probes"].values())


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """(report, charts) of the batch sizes, on a search as `largest_batch` makes it."""
    folder = tmp_path_factory.mktemp("searched")
    plain = [[16, "ok", 1.0, 900.0], [32, "ok", 2.0, 1000.0], [64, "oom", 4.0, None], [40, "ok", 3.0, 1100.0]]
    probes = {"fp32": [*plain[:3], [40, "oom", 3.0, None], [32, "ok", 2.0, 1500.0]]}
    probes["amp_fp16"] = [*plain, [48, "oom", 3.5, None], [40, "oom", 3.0, 1600.0], [32, "ok", 2.0, 1700.0]]
    for precision, made in probes.items():
        known = {"batch_size_used": 32, "samples_per_epoch": 49_920, "batch_probes": made}
        write_record(made_up.make("cifar_resnet", precision, parameters={"batch_size": "max"}, **known), folder)
    return explore(folder, "batch_sizes")


def test_probes_with_cudnns_search_are_drawn_apart_from_those_without(searched):
    report, charts = searched
    (family,) = figures_by_batches(report)
    assert family["probes"] == {name: {16: 900.0, 32: 1000.0} for name in ("fp32", "amp_fp16")}
    assert family["searched"] == {"fp32": {32: 1500.0}, "amp_fp16": {32: 1700.0}}
    assert [begin_of_search(run["batch_probes"]) for run in runs_of(family["groups"])] == [4, 5]
    assert begin_of_search([]) == 0 and begin_of_search([[16, "oom", 1.0, None]]) == 1
    axes = charts["batch_size"].axes[0]
    joined = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert [(line.get_linestyle(), list(line.get_ydata())) for line in joined] == [(":", [900.0, 1000.0])] * 2
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert [list(line.get_ydata()) for line in hollow] == [[1500.0], [1700.0]]
    assert {"probes without cuDNN's search", "the last probe, with it"} <= set(texts(charts["batch_size"]))


def test_the_largest_batch_has_its_resolution(searched):
    rows = {row["precision"]: row for row in rows_by_batch(figures_by_batches(searched[0]))}
    assert (rows["fp32"]["out of memory at"], rows["fp32"]["resolution"]) == (40, "+25%, below 40")
    assert failing_above(40, searched[0].largest[0]["runs"]["amp_fp16"]) == 48
    assert failing_above(64, searched[0].largest[0]["runs"]["amp_fp16"]) is None


def test_machines_with_one_gpu_model_are_pooled_and_two_models_stand_side_by_side(tmp_path):
    other = {**made_up.H200, "gpu_name": "NVIDIA L4"}
    for place, device in enumerate((made_up.H200, made_up.H200, other)):
        (tmp_path / str(place)).mkdir()
        for precision in ("fp32", "amp_fp16"):
            card = {**device, "gpu_uuid": f"GPU-{place}"}
            record = made_up.make("lstm_language_model", precision, device=card)
            write_record(record, tmp_path / str(place))
    report, charts = explore(tmp_path)
    assert len(runs_of(report.every_group)) == 6 and not report.left_out
    ticks = [tick.get_text() for tick in charts["machines_lstm_language_model"].axes[0].get_xticklabels()]
    assert sorted(ticks) == ["H200", "L4"]


def test_of_two_machines_runs_of_one_name_the_one_that_learned_nothing_is_marked(tmp_path):
    for machine, metric in (("learned", [0.5, 0.9]), ("stuck", [0.1, 0.1])):
        (tmp_path / machine).mkdir()
        for precision in ("fp32", "amp_fp16"):
            own = metric if precision == "amp_fp16" else [0.5, 0.9]
            card = {**made_up.H200, "gpu_uuid": machine}
            write_record(made_up.make("cifar_resnet", precision, device=card, metric=own), tmp_path / machine)
    report = load(tmp_path)
    runs = [run for group in report.every_group for precision in group["runs"].values() for run in precision]
    ends = {(run["gpu_uuid"], run["precision"]): run["status"] for run in runs}
    assert len(ends) == 4 and [key for key, status in ends.items() if status != "ok"] == [("stuck", "amp_fp16")]


@beside()
def report_of_a_sweep(folder):
    made_up.write_sweep(folder)
    return partial(execute, folder)


def test_a_sweep_of_loss_scales_has_its_chart(report_of_a_sweep):
    process, notebook, folder = report_of_a_sweep
    assert process.returncode == 0, process.stderr[-2000:]
    assert (folder / "loss_scale_sweep.png").exists()
    text = json.dumps(notebook)
    assert "amp_fp16, resnet18: 3 of 4 fixed scales from 1 to 1,048,576 ended well" in text
    assert "gradients lost go from 40% down to 2.5%; at 65,536 **9.97%** of the steps were skipped" in text
    report, _ = explore(folder)
    (((_, precision), runs),) = sweeps_of(report.comparisons).items()
    assert (precision, set(runs)) == ("amp_fp16", {1.0, 256.0, 65536.0, 2.0**20, "dynamic"})
    read = LINES["skipped steps (%)"]
    assert read(runs[65536.0][0]) == pytest.approx(10, abs=0.1)


def test_fixed_loss_scales_are_told_apart_and_one_that_skipped_most_steps_is_not_well(tmp_path):
    for scale, skipped in ((1.0, 0), (256.0, 3), (65536.0, 0), (2.0**20, 900), ("dynamic", 2)):
        known = {"skipped_steps": skipped, "loss_scale_trace": [[0, 65536.0 if scale == "dynamic" else scale]]}
        write_record(made_up.make("cifar_resnet", "amp_fp16", parameters={"loss_scale": scale}, **known), tmp_path)
    report = load(tmp_path)
    said = said_in("loss_scale", report)
    steps = report.timed[0][1]["steps_per_epoch"] * 3
    assert said[0].startswith(f"amp_fp16: 2 of {steps:,} timed steps were skipped") and "went from 65,536" in said[0]
    start = f"amp_fp16 at fixed loss scales: 903 of {4 * steps:,} timed steps were skipped"
    assert said[1].startswith(start) and "the loss scale was 1 to 1,048,576; 1 of 4 runs skipped more than" in said[1]
    (swept,) = [text for text in said if "fixed scales from" in text]
    well = "3 of 4 fixed scales from 1 to 1,048,576 ended well, 1 more ended with more than half of the steps skipped"
    assert well in swept


def test_two_loss_scales_are_no_sweep():
    group = {"settings": {"loss_scale": "1.0", "model": '"m"'}, "runs": {"amp_fp16": [{"loss_scale": 1.0}]}}
    other = {"settings": {"loss_scale": "2.0", "model": '"m"'}, "runs": {"amp_fp16": [{"loss_scale": 2.0}]}}
    assert sweeps_of([group, other]) == {}


@beside()
def report_of_the_warm_up(folder):
    write_record(made_up.make("cifar_resnet", "fp32", peak=1024.0, peak_allocated_with_warmup_mib=4096.0), folder)
    write_record(made_up.make("cifar_resnet", "tf32", peak=1024.0, peak_allocated_with_warmup_mib=1024.0), folder)
    return partial(execute, folder)


def test_the_peak_of_the_warm_up_is_set_beside_that_of_training(report_of_the_warm_up):
    process, notebook, _ = report_of_the_warm_up
    assert process.returncode == 0, process.stderr[-2000:]
    assert "takes up to 4.0 times the peak of training: 4.00 GiB (fp32, resnet18" in shown(notebook, "text/markdown")


def test_inference_has_charts_and_a_table(everything, explored):
    _, charts = explored
    assert {"inference_latency", "inference_throughput"} <= set(charts)
    text = shown(everything[3], "text/markdown")
    assert "from **2.00** (fp32, resnet18" in text
    assert "apart from fp32" in shown(everything[3], "text/html")
    assert "0.12%" in shown(everything[3], "text/html")
    assert "1.75 to 4.25" in shown(everything[3], "text/html")
    assert explored[0].latency[0, "fp32"][1:3] == (1.75, 4.25)


@beside()
def report_without_inference(folder):
    write_record(made_up.make("cifar_resnet", "fp32", explained=False), folder)
    return partial(execute, folder)


def test_records_without_inference_say_so(report_without_inference):
    process, notebook, _ = report_without_inference
    assert process.returncode == 0, process.stderr[-2000:]
    assert "Inference was not measured in any run" in shown(notebook, "text/markdown")


@beside()
def report_of_batch_sizes(folder):
    made_up.write_batches(folder)
    return partial(execute, folder)


def test_batch_sizes_have_a_chart_and_two_speed_ups_that_are_not_mixed(report_of_batch_sizes):
    process, notebook, folder = report_of_batch_sizes
    assert process.returncode == 0, process.stderr[-2000:]
    assert (folder / "batch_size.png").exists()
    assert "per sample, each at its largest batch (512 and 256): faster" in shown(notebook, "text/markdown")
    report, charts = explore(folder)
    table = {row["precision"]: row for row in rows_by_batch(figures_by_batches(report))}
    assert [table[name]["largest that trained"] for name in ("fp32", "amp_fp16")] == [256, 512]
    assert [table[name]["out of memory at"] for name in ("fp32", "amp_fp16")] == [512, 1024]
    assert table["amp_fp16"]["at the largest batch of both"].startswith("1.50x")
    assert table["amp_fp16"]["at the largest batch of both"].endswith(", b128")
    assert table["amp_fp16"]["each at its fastest"] == "1.83x, b512 over b256"  # 50,000 / 3.0 s over 49,920 / 5.0 s
    speeds = {"fp32": {128: 100.0, 512: 110.0}, "amp_fp16": {128: 150.0, 512: 220.0}, "o2_fp16": {128: 140.0}}
    assert gains_by_batch(report, [], speeds)[3] == {"amp_fp16": (2.0, 512, 512)}  # o2_fp16 had one size alone
    alone = {name: dict([sizes.popitem()]) for name, sizes in speeds.items()}  # as with batch_size="max" alone
    assert set(gains_by_batch(report, [], alone)[3]) == {"amp_fp16", "o2_fp16"}
    assert all(group["batch"] != "bmax" for group in report.comparisons)
    assert not any("max" in text for name in ("epoch_time", "speed_up", "peak_memory") for text in texts(charts[name]))
    whole = ("largest that trained", "out of memory at")
    assert all(type(row[name]) is int for row in table.values() for name in whole)


def test_two_speed_ups_are_those_at_the_largest_common_batch_and_at_the_fastest(tmp_path):
    times = {"fp32": {64: 6.0, 128: 6.0, 256: 5.0}, "tf32": {64: 3.5, 128: 3.0}, "amp_fp16": {64: 6.0, 256: 2.0}}
    for precision, sizes in times.items():
        for size, seconds in sizes.items():
            values = {"parameters": {"batch_size": size}, "batch_size_used": size}
            write_record(made_up.make("cifar_resnet", precision, seconds=[seconds] * 6, **values), tmp_path)
    report, charts = explore(tmp_path, "batch_sizes")
    rows = {row["precision"]: row for row in rows_by_batch(figures_by_batches(report))}
    common = {name: row["at the largest batch of both"].split(" ")[0::4] for name, row in rows.items()}
    assert common == {"fp32": ["-"], "tf32": ["2.00x", "b128"], "amp_fp16": ["2.50x", "b256"]}
    assert rows["tf32"]["each at its fastest"] == "1.67x, b128 over b256"
    assert rows["amp_fp16"]["each at its fastest"] == "2.50x, both b256"
    said = texts(charts["batch_size"])
    assert {"2.00x\nb128", "2.50x\nb256", "1.67x\nb128\nover b256", "2.50x\nboth\nb256"} <= set(said)
    said = said_in("batch_sizes", report)
    alike = "amp_fp16 and fp32 are fastest at the same batch size, of those that were run"
    assert said[0] == f"resnet18 · cifar10: {alike}: that is no second gain from memory."


@pytest.fixture(scope="module")
def scaling(tmp_path_factory):
    """(report, charts) of what grows, on the made-up records of that study."""
    folder = tmp_path_factory.mktemp("scaling")
    made_up.write_scaling(folder)
    return explore(folder, "scaling")


def markers_of(axes, colour):
    """Return {size: (microseconds, whether hollow)} of the markers of a colour."""
    lines = [line for line in axes.lines if line.get_marker() != "None" and line.get_color() == colour]
    return {line.get_xdata()[0]: (line.get_ydata()[0], line.get_markerfacecolor() == "white") for line in lines}


def test_time_per_sample_is_drawn_over_batch_size_and_over_depth(scaling):
    _, charts = scaling
    by_batch, by_depth = charts["scaling"].axes
    colours = {name: style[0] for name, style in PRECISIONS.items()}
    drawn = {name: markers_of(by_batch, colours[name]) for name in ("fp32", "tf32", "amp_bf16")}
    times = {size: time for size, (time, _) in drawn["fp32"].items()}
    assert times == pytest.approx({16: 156.25, 64: 39.0625, 128: 20, 256: 20, 1024: 20})
    hollow = {name: [size for size, one in markers.items() if one[1]] for name, markers in drawn.items()}
    assert hollow == {"fp32": [16, 64], "tf32": [16, 64, 128], "amp_bf16": [16, 64, 128, 256]}
    assert [size for size, one in markers_of(by_depth, colours["tf32"]).items() if one[1]] == [18, 34]
    assert {line.get_color() for line in by_batch.lines} == {colours[name] for name in ("fp32", "tf32", "amp_bf16")}
    for axes, label in ((by_batch, "batch size, images per step"), (by_depth, "depth of the model, layers")):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert (axes.get_xlabel(), axes.get_ylabel()) == (label, "µs per image")
    assert [text.get_text() for text in by_batch.get_xticklabels()] == ["16", "64", "128", "256", "1,024", "4,096"]
    titles = [axes.get_title(loc="left") for axes in (by_batch, by_depth)]
    assert titles == ["resnet18 · cifar10", "resnet18 to resnet152 · cifar10, b128"]
    assert [text.get_text() for text in by_batch.texts if text.get_text()] == ["fp32: oom"]
    said = texts(charts["scaling"])
    assert "hollow: GPU idle 20% of a step or more; small: not known" in said
    assert [text for text in said if text in colours] == ["fp32", "tf32", "amp_bf16"]


def test_what_grows_is_read_in_a_table_and_in_sentences(scaling):
    report, _ = scaling
    rows = {row["size"]: row for row in rows_of_sizes(find_growths(report))}
    assert len(rows) == len(rows_of_sizes(find_growths(report))) == 11
    assert rows["batch 4,096"]["fp32"] == "oom"
    assert rows["batch 64"]["tf32"] == "39.1 µs, GPU idle 74%: kernel launches"
    assert rows["resnet50"]["tf32"] == "54.3 µs, GPU idle 15%: arithmetic on Tensor Cores"
    assert list(rows["resnet50"]) == ["comparison", "size", "fp32", "tf32", "amp_bf16"]
    by_batch, by_depth = find_growths(report)
    ends = {name: sentence_on_costs(by_batch, name).partition("; ") for name in by_batch["costs"]}
    assert ends["fp32"][0] == "fp32: **156** µs at batch 16 and **20.0** µs at batch 1,024"
    reach = [text.removeprefix("kernel launches limit it ") for _, _, text in ends.values()]
    assert reach == ["up to batch 64.", "up to batch 128.", "up to batch 256."]
    reach = [sentence_on_costs(by_depth, name).rpartition(" limit it ")[2] for name in by_depth["costs"]]
    assert reach == ["at no size.", "up to resnet34.", "at every size."]


def test_two_sizes_and_names_without_layers_are_no_growth(tmp_path):
    for model in ("resnet18", "resnet34", "densenet121", "wide_resnet28_10", "wide_resnet40_10", "wide_resnet52_10"):
        for size in (64, 128):
            values = {"model": model, "batch_size": size}
            write_record(made_up.make("cifar_resnet", "fp32", parameters=values), tmp_path)
    for kind in range(3):
        values = {"model": f"tf_efficientnet_b{kind}"}
        write_record(made_up.make("efficientnet_regression", "fp32", parameters=values), tmp_path)
    report, charts = explore(tmp_path, "scaling")
    assert find_growths(report) == [] and "scaling" not in charts
    write_record(made_up.make("cifar_resnet", "fp32", parameters={"model": "resnet50"}), tmp_path)
    report, charts = explore(tmp_path, "scaling")
    assert [list(growth["groups"]) for growth in find_growths(report)] == [[18, 34, 50]]
    assert "resnet18 to resnet50 · cifar10, b128" in texts(charts["scaling"])


def test_sizes_that_did_not_end_well_or_were_not_profiled_are_no_markers_of_a_busy_gpu(tmp_path):
    for size in (8, 16, 32):
        known = {"parameters": {"batch_size": size}, "explained": False}
        write_record(made_up.make("lstm_language_model", "fp32", **known), tmp_path)
        reason = {"status": "unsupported", "reason": "too old", "parameters": {"batch_size": size}}
        write_record(made_up.make_failed("lstm_language_model", "tf32", **reason), tmp_path)
    report, charts = explore(tmp_path, "scaling")
    (axes, _) = charts["scaling"].axes
    assert axes.get_title(loc="left") == "lstm · wikitext-2\ntf32: unsupported"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("batch size, columns of text per step", "µs per token")
    assert {line.get_markersize() for line in axes.lines if line.get_marker() != "None"} == {3}
    assert sentence_on_costs(find_growths(report)[0], "fp32").endswith("; not every size was profiled.")
    assert [row["tf32"] for row in rows_of_sizes(find_growths(report))] == ["unsupported"] * 3


def test_the_runs_of_the_study_scaling_are_recognised(tmp_path):
    study = load_studies(NOTEBOOKS / "studies.yaml")["scaling"]
    comparisons, _ = plan(study, NOTEBOOKS, tmp_path, {}, True)
    for run in (run for runs in comparisons for run in runs):
        parameters = {**run.parameters, "precisions": [run.precision]}
        write_record(made_up.make(run.notebook.stem, run.precision, parameters=parameters), tmp_path)
    report, _ = explore(tmp_path, "scaling")
    sizes = [list(growth["groups"]) for growth in find_growths(report)]
    assert sizes == [[16, 64, 128, 256, 1024, 4096], [18, 34, 50, 101, 152]]
    assert all(list(growth["costs"]) == ["fp32", "tf32", "amp_bf16"] for growth in find_growths(report))


def test_one_batch_size_is_no_chart_of_batch_sizes(tmp_path):
    write_record(made_up.make("cifar_resnet", "fp32"), tmp_path)
    write_record(made_up.make("cifar_resnet", "tf32"), tmp_path)
    report, charts = explore(tmp_path)
    assert figures_by_batches(report) == []
    assert "batch_size" not in charts


def test_records_of_other_code_are_named_and_left_out_where_they_were_set_aside(tmp_path):
    def write(folder, code, day, **changes):
        record = made_up.make("cifar_resnet", **changes)
        record.code_hash, record.finished_at = code, f"2026-01-0{day}T00:00:00+00:00"
        write_record(record, tmp_path / folder)

    write(".", "new", 3, precision="fp32")
    write("other_code-old", "old", 1, precision="tf32")  # not yet measured again
    write("elsewhere", "old", 2, precision="amp_fp16")
    write("elsewhere", None, 1, precision="amp_bf16")  # by hand, or before the hash was noted
    report = load(tmp_path)
    assert {one["precision"] for one in report.others} == {"tf32", "amp_fp16"}
    assert {one["precision"] for one in report.used} == {"fp32", "amp_fp16", "amp_bf16"}
    assert "1 record that run_all.py had set aside left out" in said_in("load", report)[0]


@pytest.fixture(scope="module")
def ladder(tmp_path_factory):
    """(report, charts) of the ladders and what comes before, on the made-up ladders."""
    folder = tmp_path_factory.mktemp("ladder")
    made_up.write_ladder(folder)
    return explore(folder, "epoch_time", "memory_use", "batch_sizes", "ladder")


def steps_of(report, notebook):
    return next(steps for steps in measured_ladders(report) if title_of_ladder(report, steps).startswith(notebook))


def test_a_ladder_has_its_steps_in_order_and_their_known_gains(ladder):
    report, charts = ladder
    assert len(measured_ladders(report)) == 3
    steps = steps_of(report, "cifar_resnet")
    labels = ["fp32", "tf32", "amp_bf16", "+ channels_last", "+ compile", "+ CUDA graph", "+ batch 512"]
    assert [step["label"] for step in steps] == labels
    assert [step["gain"]["ratio"] for step in steps[1:]] == pytest.approx([2, 2.4, 2.4, 3, 4.8, 12])
    assert [step["more"]["ratio"] for step in steps[1:]] == pytest.approx([2, 1.2, 1, 1.25, 1.6, 2.5])
    assert [step["gain"]["pairs"] for step in steps[1:]] == [24] * 5 + [6]  # the larger batch by whole epochs
    assert all(step["gain"]["low"] is not None for step in steps[1:])
    verdicts = [row["verdict"] for row in rows_of_ladders(report, measured_ladders(report))[:7]]
    assert verdicts == ["-", "faster", "faster", "no measurable difference", "faster", "faster", "faster"]
    row = rows_of_ladders(report, measured_ladders(report))[6]
    assert (row["over the first step"], row["peak, GiB"]) == ("12.00x (12.00 to 12.00)", "2.05")
    assert row["seconds per 1,000 samples"] == "0.0100"
    assert row["what limits it"].startswith("kernels that move memory: ")
    speeds, memory = charts["ladder"].axes[:2]
    assert [bar.get_width() for bar in speeds.patches] == pytest.approx([1, 2, 2.4, 2.4, 3, 4.8, 12])
    assert [bar.get_width() for bar in memory.patches][-1] == pytest.approx(2100 / 1024)
    colours = {tuple(bar.get_facecolor()) for bar in speeds.patches[2:]}
    assert colours == {matplotlib.colors.to_rgba(PRECISIONS["amp_bf16"][0])}


def test_a_step_that_did_not_end_well_or_was_not_run_is_a_labelled_gap(ladder):
    report, charts = ladder
    steps = steps_of(report, "efficientnet")
    assert {step["label"]: step["gap"] for step in steps if not step["ok"]} == {
        "+ compile": "failed",
        "+ batch 128": "oom",
    }
    graph = next(step for step in steps if step["label"] == "+ CUDA graph")
    assert graph["more"]["ratio"] == pytest.approx(1.25)  # over channels_last, the last that ended well
    steps = steps_of(report, "lstm")
    assert [(step["label"], step["gap"]) for step in steps if not step["ok"]] == [("+ compile", "not run")]
    said = texts(charts["ladder"])
    assert [said.count(text) for text in ("failed", "oom", "not run")] == [2, 2, 2]  # beside speed and beside memory
    rows = {row["step"]: row for row in rows_of_ladders(report, measured_ladders(report))[7:14]}
    assert (rows["+ batch 128"]["verdict"], rows["+ batch 128"]["what limits it"]) == ("oom", "CUDA out of memory")


def test_steps_of_a_ladder_on_different_cards_are_not_paired(ladder):
    report, charts = ladder
    steps = steps_of(report, "lstm")
    assert steps[-1]["gain"]["low"] is None
    assert steps[-1]["gain"]["ratio"] == pytest.approx(4 * 2_086_000 / 2_087_400)  # of the throughputs
    assert rows_of_ladders(report, measured_ladders(report))[-1]["verdict"].startswith("not paired")
    assert [text.endswith("/s, another card") for text in texts(charts["ladder"]) if "/s" in text].count(True) == 1


def test_the_ladder_is_read_in_sentences(ladder):
    said = said_in("ladder", ladder[0])
    assert any("+ batch 512 comes to **12.00x (12.00 to 12.00)**" in text for text in said)
    assert any("no gain by + channels_last." in text for text in said)
    assert [text for text in said if "MIND" in text and "lstm" in text and "not all on one card" in text]


def test_the_chart_of_the_ladder_is_readable(ladder):
    (figure,) = [figure for name, figure in ladder[1].items() if name == "ladder"]
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        assert all(box.x1 <= axes.get_window_extent().x1 + 8 for box in boxes)  # within its own panel
    labels = ["last accuracy", "last mean\nabsolute error", "last perplexity"]
    assert [axes.get_xlabel() for axes in figure.axes[2::3]] == labels
    last = [text.get_text() for text in figure.axes[2].texts]
    assert len(last) == sum("/s" in text.get_text() for text in figure.axes[0].texts) and all(map(float, last))
    assert "batch_size" not in ladder[1]  # one precision at two sizes is a step here, no comparison of precisions


def test_what_was_made_for_the_ladder_alone_is_in_no_other_chart(ladder):
    report, charts = ladder
    shown_titles = [report.comparisons[number]["title"] for number in report.charted]
    eager = [title for title in shown_titles if title.endswith("eager") and "b128" in title]
    assert len(shown_titles) == 3 and len(eager) == 1 and len(report.comparisons) == 13
    assert {key[0] for key in report.epoch_times} == {key[0] for key in report.sentences} == set(report.charted)
    for name in ("epoch_time", "scaled_time", "peak_memory", "throughput"):
        assert not {"-", "not run", "failed", "oom"} & set(texts(charts[name])), name
    assert {"not run", "failed", "oom"} <= set(texts(charts["ladder"]))
    assert len(report.timed) == 17  # every run that ended well is in the tables of runs
    assert sorted(row["status"] for row in rows_of_failed(report)) == ["failed", "oom"]


def test_one_precision_alone_that_is_no_step_of_a_ladder_keeps_its_place_and_its_gaps(tmp_path):
    made_up.write_ladder(tmp_path)
    values = {"epochs": 6, "channels_last": False, "execution": "cuda_graph", "lr": 0.2}
    write_record(made_up.make_failed("cifar_resnet", "amp_fp16", "oom", "no memory", parameters=values), tmp_path)
    report, charts = explore(tmp_path, "epoch_time")
    assert len(report.charted) == 4
    said = texts(charts["epoch_time"])
    assert (said.count("oom"), said.count("-")) == (1, 4)  # three of its own, one of amp_fp16 beside it


def test_a_ladder_of_single_precisions_alone_is_still_charted(tmp_path):
    ways = [("fp32", False, "eager", 64), ("tf32", True, "eager", 64), ("tf32", True, "compile", 64)]
    for precision, layout, execution, size in ways:
        values = {"channels_last": layout, "execution": execution, "batch_size": size}
        write_record(made_up.make("cifar_resnet", precision, parameters=values), tmp_path)
    report, charts = explore(tmp_path, "epoch_time", "ladder")
    assert len(measured_ladders(report)) == 1 and len(report.charted) == 3
    assert "ladder" in charts and "epoch_time" in charts


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
        write_record(make("cifar_resnet", precision, **times | values), folder)
    report, charts = explore(folder, "ladder")
    (steps,) = measured_ladders(report)
    return report, charts, {step["label"]: step for step in steps}


@pytest.mark.parametrize(("step", "gap"), [(3, "diverged"), (4, "")])
def test_a_step_of_a_ladder_that_learned_nothing_is_no_gain(tmp_path, step, gap):
    changed = {(step, repeat): {"metric": [0.1, 0.1]} for repeat in range(3)}  # a larger batch may need more epochs
    report, charts, steps = explore_steps(tmp_path, changed)
    label = ("+ CUDA graph", "+ batch 512")[step - 3]
    assert bool(steps[label]["gain"]) is not bool(gap) and steps[label]["gap"].startswith(gap)
    assert texts(charts["ladder"]).count("diverged") == 2 * bool(gap)
    reasons = [row["reason"] for row in rows_of_failed(report)]
    assert len(reasons) == 3 * bool(gap)
    assert all("ended no better than chance" in text and "another step of the ladder" in text for text in reasons)
    row = next(row for row in rows_of_ladders(report, measured_ladders(report)) if row["step"] == label)
    assert (row["verdict"], row["quality at the end"]) == (("diverged", "-") if gap else ("faster", "accuracy 0.100"))


def test_what_a_test_set_says_is_told_beside_the_validation(tmp_path):
    for precision, ends in (("fp32", (142.04, 143.0)), ("amp_fp16", (144.5,)), ("amp_bf16", (None,))):
        for seed, end in enumerate(ends):
            record = made_up.make("lstm_language_model", precision, parameters={"seed": seed}, test_metric=end)
            write_record(record, tmp_path)
    said = said_in("training_curves", load(tmp_path))
    (line,) = [text for text in said if "test set" in text]
    assert line.endswith(": fp32 142 to 143, amp_fp16 144.5.") and line.startswith("On a test set on which no choice")


def test_the_quality_of_a_step_is_readable_for_small_and_large_metrics():
    run = {"metric_name": "perplexity", "metric": [240.04]}
    assert quality_of_step({"ok": [run, {**run, "metric": [236.0]}]}) == "perplexity 236.0 to 240.0"
    assert quality_of_step({"ok": [{**run, "metric": [99.51]}]}) == "perplexity 99.5"
    assert quality_of_step({"ok": [{**run, "metric": [None]}]}) == "not measured"


def test_a_step_that_not_all_runs_reached_says_so_beside_its_gain(tmp_path):
    failed = {"status": "oom", "reason": "CUDA out of memory"}
    report, charts, steps = explore_steps(tmp_path, {(4, 2): failed})
    assert steps["+ batch 512"]["gain"]["repetitions"] == 2
    said = [text for text in texts(charts["ladder"]) if "oom" in text]
    assert said and all(re.fullmatch(r"[\d.]+x, [\d,]+/s, oom \(1 of 3\)", text) for text in said)
    row, judged = rows_of_ladders(report, measured_ladders(report))[-1], judgement(report, steps["+ batch 512"]["more"])
    assert (row["verdict"], row["n"]) == (f"{judged}, oom (1 of 3)", "2 runs")


def test_most_is_gained_by_a_step_that_is_faster(tmp_path):
    times = {"seconds": [9.0, 1.5], "block_seconds": made_up.blocks_of([9.0, 1.5])}
    noisy = {(1, repeat): times for repeat in range(3)}
    report, _, steps = explore_steps(tmp_path, noisy)
    said = said_in("ladder", report)
    (text,) = [text for text in said if "most is gained by" in text]
    assert judgement(report, steps["tf32"]["more"]) == "no measurable difference"
    assert "most is gained by + CUDA graph, 2.00x" in text and "no gain by tf32" in text


def test_a_ladder_says_what_compiling_and_the_search_took(tmp_path):
    taken = {(3, repeat): {"compile_seconds": 2.0 + repeat, "search_seconds": 1.25} for repeat in range(3)}
    report, _, _ = explore_steps(tmp_path, taken)
    rows = {row["step"]: row for row in rows_of_ladders(report, measured_ladders(report))}
    name = "compiling + cuDNN's search, s, at most"
    assert rows["+ CUDA graph"][name] == "4.0 + 1.2" and rows["+ channels_last"]["n"] == "3 runs"


def test_whole_numbers_of_a_table_stay_whole_beside_a_gap():
    said = Table([{"batch size": 128, "GiB": 0.5}, {"batch size": None, "GiB": 1.0}]).html()
    assert ">128<" in said and "128.0" not in said and ">0.5<" in said and ">-<" in said


def test_a_setting_that_older_records_lack_is_unknown_beside_published_figures(tmp_path):
    write_record(made_up.make("cifar_resnet", "fp32", parameters={"channels_last": False}), tmp_path)
    write_record(made_up.make("cifar_resnet", "fp32"), tmp_path)
    report, charts = explore(tmp_path)
    cards = [card_of(report, number, (0, 1)) for number in (0, 1)]
    cards += [card_of(report, number, (1, 0)) for number in (0, 1)]
    assert ["H200", "channels_last unknown"] in cards and ["H200", "no channels_last"] in cards
    assert BESIDE in charts


def test_no_ladder_is_one_sentence_and_no_chart(tmp_path, everything):
    text = shown(everything[3], "text/markdown")
    assert "No runs form a ladder (`python run_all.py ladder` makes them), so there is no chart." in text
    assert not (everything[0] / "ladder.png").exists()


def test_a_ladder_on_the_cpu_has_the_loud_title_and_no_verdict(tmp_path):
    for layout, precisions in ((False, ("fp32", "tf32", "amp_bf16")), (True, ("amp_bf16",))):
        for precision in precisions:
            values = {"parameters": {"channels_last": layout, "batch_size": 4}, "device": made_up.CPU}
            if precision == "tf32":
                record = made_up.make_failed("cifar_resnet", precision, "unsupported", "needs a GPU", **values)
            else:
                record = made_up.make("cifar_resnet", precision, seconds=[5.0, 5.0], **values)
            write_record(record, tmp_path)
    for size in (4, 16):
        values = {"channels_last": True, "batch_size": size, "execution": "compile_cuda_graph"}
        values = {"parameters": values, "device": made_up.CPU}
        reason = "compile_cuda_graph needs a GPU"
        write_record(made_up.make_failed("cifar_resnet", "amp_bf16", "unsupported", reason, **values), tmp_path)
    report, charts = explore(tmp_path, "ladder")
    assert LOUD in texts(charts["ladder"])
    ((*_, compiled, graph, larger),) = measured_ladders(report)
    assert [step["gap"] for step in (compiled, graph, larger)] == ["not run", "unsupported", "unsupported"]
    words = " ".join(str(value) for row in rows_of_ladders(report, measured_ladders(report)) for value in row.values())
    assert "not judged: CPU" in words and not re.search("faster|slower|kernel launches", words)


def test_the_runs_of_the_study_are_recognised_as_three_ladders(tmp_path):
    study = load_studies(NOTEBOOKS / "studies.yaml")["ladder"]
    comparisons, _ = plan(study, NOTEBOOKS, tmp_path, {}, True)
    for run in (run for runs in comparisons for run in runs):
        parameters = {**run.parameters, "precisions": [run.precision]}
        known = {"seconds": [3.0], "parameters": parameters, "samples_per_epoch": 49_920}
        write_record(made_up.make(run.notebook.stem, run.precision, **known), tmp_path)
    report, _ = explore(tmp_path, "ladder")
    start, end = ["fp32", "tf32"], ["+ compile", "+ CUDA graph"]
    found = {title_of_ladder(report, steps).partition(":")[0]: steps for steps in measured_ladders(report)}
    assert {name: [step["label"] for step in steps] for name, steps in found.items()} == {
        "cifar_resnet": [*start, "amp_bf16", "+ channels_last", *end, "+ batch 512"],
        "efficientnet_regression": [*start, "amp_fp16", "+ channels_last", *end, "+ batch 128"],
        "lstm_language_model": [*start, "amp_bf16", *end, "+ batch 80"],
    }
    assert all(step["ok"] for steps in measured_ladders(report) for step in steps)


def test_a_longer_way_up_is_taken_and_what_was_added_is_not_added_again():
    def group(precision, layout, execution, size):
        run = {"precision": precision, "execution": execution, "status": "ok"}
        runs = {name: [run] if name == precision else [] for name in PRECISIONS}
        settings = {"channels_last": json.dumps(layout), "execution": json.dumps(execution), "model": '"m"'}
        return {"runs": runs, "settings": settings, "batch": f"b{size}"}

    groups = [
        group(*one)
        for one in (
            ("fp32", False, "eager", 128),
            ("fp32", False, "eager", 512),  # a larger batch before the precision: not the order of a ladder
            ("amp_fp16", False, "eager", 128),
            ("amp_bf16", False, "eager", 128),
            ("amp_bf16", True, "eager", 128),
            ("amp_bf16", True, "cuda_graph", 128),
            ("amp_bf16", True, "compile", 128),
            ("amp_bf16", True, "compile_cuda_graph", 512),
        )
    ]
    report = Report(comparisons=groups)
    (steps,) = find_ladders(report)
    labels = ["fp32", "amp_bf16", "+ channels_last", "+ compile", "+ CUDA graph", "+ batch 512"]
    assert [label for label, *_ in steps] == labels
    assert [label for label, *_, runs in steps if not runs] == ["+ CUDA graph"]
    report.comparisons = groups[:5]
    assert find_ladders(report) == []  # precision and layout alone


def test_ladders_that_differ_in_another_setting_have_names_of_their_own(tmp_path):
    made_up.write_ladder(tmp_path)
    for record in [json.loads(path.read_text(encoding="utf-8")) for path in sorted(tmp_path.glob("cifar*.json"))]:
        record |= {"epochs": 7, "run_id": f"{record['run_id']}-longer"}
        (tmp_path / f"{record['run_id']}.json").write_text(json.dumps(record), encoding="utf-8")
    report, _ = explore(tmp_path, "ladder")
    titles = [title_of_ladder(report, steps) for steps in measured_ladders(report)]
    assert "cifar_resnet: resnet18 · cifar10, from b128 · epochs=7" in titles
    assert [
        row["comparison"] for row in rows_of_ladders(report, measured_ladders(report)) if row["step"] == "fp32"
    ] == titles
    assert len(set(titles)) == 4


def test_a_sweep_of_loss_scales_is_in_no_other_chart_and_in_no_other_label(pooled):
    report, charts = pooled
    titles = [report.comparisons[number]["title"] for number in report.charted]
    assert [title for title in titles if "loss_scale" in title] == ["dpn92 · cifar10, b512 · loss_scale=128"]
    assert "resnet18 · cifar10, b128 · epochs=4 · eager" in titles
    assert len(report.comparisons) - len(titles) == 6 and len(report.sweeps) == 2
    assert {"loss_scale_sweep_1", "loss_scale_sweep_2"} <= set(charts)
    assert {key[0] for key in report.sentences} <= set(report.charted)


def test_a_memory_limit_is_always_named_in_words(pooled):
    report = pooled[0]
    titles = [group["title"] for group in report.every_group]
    assert "dpn92 · cifar10, b640 · at most 24 GiB" in titles and "dpn92 · cifar10, b640 · whole card" in titles
    assert "resnet50 · cifar100, bmax · at most 11 GiB" in titles  # though no other comparison of it has another
    assert setting_text("loss_scale", "1048576.0") == "loss_scale=1048576"
    assert setting_text("memory_limit_gib", "0.0") == "whole card"
    assert setting_text("memory_limit_gib", "null") == "memory_limit_gib unknown"


def test_what_is_usual_is_said_once(pooled):
    report = pooled[0]
    assert {"epochs=1", "loader=gpu"} <= set(usual_settings(report)["cifar_resnet"])
    assert usual_settings(report)["efficientnet_regression"] == []
    assert [row["not the same in all"] for row in rows_of_comparisons(report) if "resnet101" in row["comparison"]] == [
        "max_steps=60"
    ]


def test_of_many_comparisons_each_model_has_its_facet_and_one_epoch_draws_no_curve(pooled):
    report, charts = pooled
    assert len(report.charted) > MANY
    models = [{report.comparisons[number]["model"] for number in facet} for row in facet_rows(report) for facet in row]
    assert {"dpn92"} in models and {"resnet18"} in models and {"wide_resnet28_10"} in models
    assert max(sum(map(len, row)) for row in facet_rows(report)) <= 6
    drawn = [axes.get_title(loc="left") for axes in charts["training_curves"].axes]
    assert not any("dpn92" in title for title in drawn) and any("cuda_graph" in title for title in drawn)


def test_no_text_of_the_pooled_report_lies_on_another(pooled):
    for name, figure in pooled[1].items():
        for axes in figure.axes:
            boxes = [text.get_window_extent().padded(-1) for text in axes.texts]
            pairs = itertools.combinations(zip(boxes, axes.texts, strict=True), 2)
            assert [(a[1].get_text(), b[1].get_text()) for a, b in pairs if a[0].overlaps(b[0])] == [], name
        width = figure.get_figwidth() * figure.dpi
        assert all(legend.get_window_extent().x1 <= width for part in figure.subfigs for legend in part.legends), name


def test_without_a_common_batch_the_chart_says_so(pooled):
    said = texts(pooled[1]["batch_size"])
    assert "no batch size was run\nin both precisions" in said and "not measured" not in said


def test_of_many_comparisons_the_verdicts_are_folded_by_experiment(pooled, everything):
    assert "<summary>cifar_resnet: verdicts" not in shown(everything[3], "text/markdown")  # a few are all seen
    said = [text for text in said_in("verdicts", pooled[0]) if text.startswith("<details>")]
    label = r"(\w+): verdicts on (\d+) comparisons?(?:, \d+ times [a-z ]+)+"
    pattern = rf"<details><summary>{label}</summary>\n\n(.*)\n\n</details>"
    parts = [re.fullmatch(pattern, text, re.DOTALL).groups() for text in said]
    assert [name for name, *_ in parts] == sorted(EXPERIMENTS)
    assert sum(int(count) for _, count, _ in parts) > 12
    assert all(text.count("**\n\n- ") == int(count) for _, count, text in parts)


def test_long_tables_of_runs_are_folded():
    for number, folded in ((24, False), (25, True)):
        page = Table([{"a": 1}] * number, "Energy of every run").html()
        assert ("<details><summary>Energy of every run: 25 rows</summary>" in page) is folded


def test_no_line_of_a_title_begins_with_a_dot():
    group = {"notebook": "cifar_resnet", "title": "resnet18 · cifar10, b128 · epochs=3 · eager · dataset=cifar10"}
    lines = panel_title(Report(comparisons=[group]), 0).split("\n")
    assert lines == ["cifar_resnet", "resnet18 · cifar10, b128 · epochs=3 ·", "eager · dataset=cifar10"]


def test_one_seed_is_said_in_two_words_on_the_page_and_in_full_in_the_file(pooled):
    row = next(row for row in table_rows(pooled[0]) if row["model"] == "gru")
    assert row["quality_verdict"] in ("equal", "one seed, so no verdict")
    row = {**row, "quality_change": 0.5, "quality_verdict": "one seed, so no verdict", "quality_seeds": 1}
    assert row_text(row)["quality"] == "perplexity +0.5: one seed"
