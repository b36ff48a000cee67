"""The published figures: their file, and what the summary says of them beside made-up runs."""

import csv
import io
import itertools
import re
from functools import partial

import made_up_records as made_up
import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT, beside
from drawn_reports import bars_at, execute, explore, panel_of, shown, texts

from mixed_precision_study.parameters import PRECISION_NAMES
from mixed_precision_study.record import STATUSES, write_record
from mixed_precision_study.report.published.charts import panels_beside
from mixed_precision_study.report.published.claims import (
    PIXELS,
    TIME_ALIKE,
    UNPAIRED,
    claims_of,
    judge_published,
    metric_claim,
    metric_word,
    oom_claim,
    outcome_of,
    status_claim,
    time_claim,
    timed_claim,
    without_counterpart,
)
from mixed_precision_study.report.published.matching import NUMBERS, bare, differences
from mixed_precision_study.report.published.table import notes_of, row_beside
from mixed_precision_study.report.style import GREYS, PRECISIONS
from mixed_precision_study.report.words import plain
from mixed_precision_study.runner.studies import load_studies

PATH = ROOT / "mixed_precision_study" / "report" / "published" / "published_results.csv"
COLUMNS = "study source title year gpu framework experiment dataset model precision batch_size loss_scale epochs"
COLUMNS += " time_seconds time_of memory_mib memory_kind metric_name metric status note"
STUDIES = {"rtx-titan-dpn", "titan-rtx-resnet", "fastai-cifar100", "word-language-model"}
STUDIES |= {"efficientnet-3090-v100", "colab-wide-resnet"}
RANGES = {  # of what is given, and whether it is a whole number
    "year": (2018, 2025, True),
    "batch_size": (1, 1024, True),
    "loss_scale": (1, 2**20, True),
    "epochs": (1, 100, True),
    "time_seconds": (0.001, 200_000, False),
    "memory_mib": (100, 25_000, False),
    "metric": (0.1, 100, False),
}
DPN = ("rtx-titan-dpn", "Titan RTX")
RESNET = "titan-rtx-resnet"
EFFICIENT = "efficientnet-3090-v100"
WIDE = "colab-wide-resnet"
FIGURES = {  # (study, GPU, model, precision, batch size, loss scale): seconds, MiB, metric, status, as published
    (*DPN, "dpn92", "fp32", "128", ""): (213, None, None, "ok"),
    (*DPN, "dpn92", "fp32", "256", ""): (204, None, None, "ok"),
    (*DPN, "dpn92", "fp32", "512", ""): (None, None, None, "oom"),
    (*DPN, "dpn92", "o2_fp16", "128", "128"): (169, None, None, "ok"),
    (*DPN, "dpn92", "o2_fp16", "256", "128"): (150, 13 * 1024, None, "ok"),
    (*DPN, "dpn92", "o2_fp16", "512", "128"): (140, 21.87 * 1024, None, "ok"),
    (*DPN, "dpn92", "o2_fp16", "640", "128"): (None, None, None, "oom"),
    (*DPN, "dpn92", "o2_fp16", "512", "64"): (140, None, None, "ok"),
    (*DPN, "dpn92", "o2_fp16", "512", "256"): (140, None, None, "ok"),
    (*DPN, "", "fp32", "", ""): (0.05, None, None, "ok"),
    (*DPN, "", "o3_fp16", "", ""): (0.026, None, None, "ok"),
    (*DPN, "detector", "fp32", "", ""): (30 * 3600, None, None, "ok"),
    (*DPN, "detector", "o2_fp16", "", ""): (15 * 3600, None, None, "ok"),
    (RESNET, "RTX 2080 Ti", "resnet18", "fp32", "128", ""): (15, 2000, 0.89, "ok"),
    (RESNET, "RTX 2080 Ti", "resnet18", "o2_fp16", "128", ""): (10, 1500, 0.89, "ok"),
    (RESNET, "Titan RTX", "resnet50", "fp32", "512", ""): (57, 21_000, 0.89, "ok"),
    (RESNET, "Titan RTX", "resnet50", "o2_fp16", "512", ""): (27, 11_727, 0.89, "ok"),
    (EFFICIENT, "RTX 3090", "tf_efficientnet_b0", "fp32", "32", ""): (114, 14205845504 / 2**20, None, "ok"),
    (EFFICIENT, "RTX 3090", "tf_efficientnet_b0", "amp_fp16", "32", ""): (144, 9092988928 / 2**20, None, "ok"),
    (EFFICIENT, "V100", "tf_efficientnet_b0", "fp32", "32", ""): (122, 13943701504 / 2**20, None, "ok"),
    (EFFICIENT, "V100", "tf_efficientnet_b0", "amp_fp16", "32", ""): (90, 8084258816 / 2**20, None, "ok"),
    (WIDE, "T4", "wide_resnet28_10", "fp32", "128", ""): (3437, 7657, 0.8675, "ok"),
    (WIDE, "T4", "wide_resnet28_10", "amp_fp16", "128", ""): (1874, 4433, 0.8525, "ok"),
    (WIDE, "T4", "wide_resnet28_10", "o2_fp16", "128", ""): (1771, 4383, 0.8890, "ok"),
    (WIDE, "T4", "wide_resnet28_10", "o3_fp16", "128", ""): (None, 4347, None, "diverged"),
    (WIDE, "K80", "wide_resnet28_10", "fp32", "128", ""): (6187, 6786, 0.8844, "ok"),
    (WIDE, "P100", "wide_resnet28_10", "fp32", "128", ""): (2821, 5677, 0.8749, "ok"),
    (WIDE, "P100", "wide_resnet28_10", "amp_fp16", "128", ""): (2854, 6283, 0.8851, "ok"),
    (WIDE, "P100", "wide_resnet28_10", "o2_fp16", "128", ""): (2734, 5665, 0.8774, "ok"),
}
OTHERS = {  # (study, precision, batch size, name of the metric): its values, which stand in rows of their own
    ("rtx-titan-dpn", "fp32", "128", "train_loss_at_step_350"): [1.817],
    ("rtx-titan-dpn", "o2_fp16", "128", "train_loss_at_step_350"): [1.831],
    ("rtx-titan-dpn", "fp32", "128", "train_accuracy_at_step_350"): [0.33224],
    ("rtx-titan-dpn", "o2_fp16", "128", "train_accuracy_at_step_350"): [0.31987],
    ("rtx-titan-dpn", "fp32", "", "largest_batch"): [50],
    ("rtx-titan-dpn", "o2_fp16", "", "largest_batch"): [64],
    ("fastai-cifar100", "o2_fp16", "", "largest_batch_over_fp32"): [1.8],
    ("fastai-cifar100", "o2_fp16", "", "fp32_time_over_mixed"): [1.18, 1.13],
    ("colab-wide-resnet", "amp_fp16", "512", "fp32_time_over_mixed"): [1],
}


def read_rows():
    with PATH.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number(text):
    return float(text) if text else None


def test_columns_and_what_every_row_has():
    rows = read_rows()
    assert PATH.read_text(encoding="utf-8").splitlines()[0].split(",") == COLUMNS.split()
    assert len(rows) == 42 and len({tuple(row.values()) for row in rows}) == 42
    assert {row["study"] for row in rows} == STUDIES
    for row in rows:
        assert None not in row and None not in row.values()  # as many fields as columns
        assert all(row[name] for name in ("study", "source", "title", "year", "framework", "experiment", "status"))
        assert row["status"] in STATUSES and row["precision"] in PRECISION_NAMES
        assert row["experiment"] in (*EXPERIMENTS, "none")
        assert (row["experiment"] == "none") is (row["dataset"] == "")
    for name in ("source", "title", "year"):
        assert len({(row["study"], row[name]) for row in rows}) == 6, name  # one of each for a study


@pytest.mark.parametrize("name", RANGES)
def test_numbers_have_their_type_and_a_plausible_size(name):
    low, high, whole = RANGES[name]
    given = [row[name] for row in read_rows() if row[name]]
    assert given
    for text in given:
        assert low <= float(text) <= high
        assert not whole or text == str(int(text))


def test_units_are_said():
    for row in read_rows():
        assert bool(row["time_seconds"]) is bool(row["time_of"])
        assert row["time_of"] in ("", "epoch", "training", "frame")
        assert bool(row["metric"]) is bool(row["metric_name"])
        assert row["memory_mib"] or not row["memory_kind"]
        assert row["memory_kind"] in ("", "device_used")
        assert "accuracy" not in row["metric_name"] or 0 < float(row["metric"]) <= 1
        if row["memory_mib"]:  # converted, and from what
            assert re.search(r"\d bytes|[GM]B as [GM]iB", row["note"])
        if found := re.search(r"(\d+) bytes", row["note"]):
            assert float(row["memory_mib"]) == int(found[1]) / 2**20


def test_every_published_figure_is_there():
    names, rows = ("study", "gpu", "model", "precision", "batch_size", "loss_scale"), read_rows()
    in_chart = [row for row in rows if "in its chart" in row["note"]]
    plain_rows = [row for row in rows if row not in in_chart and row["metric_name"] in ("", "accuracy")]
    for key, (seconds, mib, metric, status) in FIGURES.items():
        (row,) = [row for row in plain_rows if tuple(map(row.get, names)) == key]
        assert (number(row["time_seconds"]), row["status"]) == (seconds, status), key
        assert number(row["memory_mib"]) == (mib and pytest.approx(mib)), key
        assert number(row["metric"]) == metric, key
    (row,) = in_chart  # a second figure for the same run
    assert (row["gpu"], row["precision"], float(row["memory_mib"]) * 2**20) == ("V100", "fp32", 13954187264)
    for key, values in OTHERS.items():
        names = ("study", "precision", "batch_size", "metric_name")
        assert [float(row["metric"]) for row in rows if tuple(map(row.get, names)) == key] == values, key
    words = [row for row in rows if row["study"] == "word-language-model"]
    assert [(row["precision"], row["epochs"]) for row in words] == [("fp32", "30"), ("o2_fp16", "30")]
    assert len(FIGURES) + 1 + sum(map(len, OTHERS.values())) + len(words) == len(rows)


def published_in(folder):
    """Return (published figures with their claims, charts of the articles) of a folder with records."""
    report, charts = explore(folder, "articles")
    return judge_published(report), charts


@pytest.fixture(scope="module")
def pooled_claims(pooled):
    return judge_published(pooled[0]), pooled[1]


@beside()
def comparable(folder):
    made_up.write_published(folder)
    return partial(execute, folder)


@pytest.fixture(scope="module")
def explored(comparable):
    """(published figures with their claims, charts of the articles) of the made-up comparable runs."""
    return published_in(comparable[2])


@pytest.fixture(scope="module")
def executed(comparable):
    process, notebook, _ = comparable
    assert process.returncode == 0, process.stderr
    return notebook


def test_only_the_same_experiment_data_model_and_batch_are_set_beside(explored):
    published, _ = explored
    assert set(published.beside) == {"rtx-titan-dpn", "colab-wide-resnet"}
    numbers = list(itertools.chain(*(numbers for parts in published.beside.values() for numbers in parts)))
    groups = [published.report.comparisons[number] for number in numbers]
    assert [(group["model"], group["batch"]) for group in groups] == [
        ("dpn92", "b256"),
        ("dpn92", "b512"),
        ("wide_resnet28_10", "b128"),
    ]
    assert all(group["settings"]["max_steps"] == "0" and group["data"] == "cifar10" for group in groups)
    assert (
        sum(group["model"] == "wide_resnet28_10" for group in published.report.comparisons) == 3
    )  # two are never beside it


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"data": "cifar100"}, "data here cifar100, published cifar10"),
        ({"data": "cifar10 (synthetic)"}, "data here cifar10 (synthetic), published cifar10"),
        ({"batch": "b64"}, "batch here 64, published 128"),
        ({"max_steps": "50"}, "epochs here of 50 steps"),
        ({"device_type": '"cpu"'}, "not on a GPU here"),
        ({"device_type": "null"}, "not on a GPU here"),
        ({}, None),
    ],
)
def test_what_forbids_a_comparison_is_named(explored, changes, word):
    published = explored[0]
    row = next(row for row in published.rows if row["study"] == WIDE)
    group = {"data": "cifar10", "batch": "b128", "settings": {"device_type": '"cuda"', "max_steps": "0"}}
    group |= {name: value for name, value in changes.items() if name in group}
    group["settings"] |= {name: value for name, value in changes.items() if name not in group}
    assert differences(row, group) == ([word] if word else [])


def test_names_are_compared_without_case_and_punctuation():
    assert bare("WideResNet-28-10") == bare("wide_resnet28_10") == "wideresnet2810"


def test_times_are_divided_by_their_epochs(explored):
    published = explored[0]
    rows = [row for row in published.rows if row["study"] == WIDE and row["gpu"] == "T4"]
    assert [row["seconds"] for row in rows] == [343.7, 187.4, 177.1, None]
    rows = [row for row in published.rows if row["study"] == RESNET]
    assert [row["seconds"] for row in rows] == [15, 10, 57, 27]
    assert all(row["seconds"] is None for row in published.rows if row["experiment"] == "none")


def test_charts_have_a_group_for_every_card_and_grey_for_what_is_published(explored):
    _, charts = explored
    assert {"published_rtx_titan_dpn", "published_colab_wide_resnet"} <= set(charts)
    figure = charts["published_colab_wide_resnet"]
    axes = panel_of(figure, "wide_resnet28_10")
    ticks = [tick.get_text().split("\n") for tick in axes.get_xticklabels()]
    assert ticks == [["H200"], *([gpu, "published,", "other software"] for gpu in ("T4", "K80", "P100"))]
    assert bars_at(axes, 0) == [(0, 60)] and bars_at(axes, 1) == [(0, 30)]
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([60, 30, 60, 20, 343.7, 187.4, 177.1, 618.7, 282.1, 285.4, 273.4])
    colours = ["#{:02x}{:02x}{:02x}".format(*(round(255 * p) for p in bar.get_facecolor()[:3])) for bar in axes.patches]
    modes = ["fp32", "amp_fp16", "o2_fp16", "o3_fp16"]
    assert colours[:4] == [PRECISIONS[mode][0] for mode in modes]
    assert colours[4:7] == [GREYS[mode] for mode in modes[:3]]
    hatches = [bar.get_hatch() or "" for bar in axes.patches]
    assert hatches[:3] == hatches[4:7] == [PRECISIONS[mode][1] for mode in modes[:3]]
    assert "diverged" in texts(figure) and "o3_fp16, published" in texts(figure)
    assert {"oom", "not published"} <= set(texts(charts["published_rtx_titan_dpn"]))


def test_no_text_lies_on_another(explored):
    for name, figure in explored[1].items():
        for axes in figure.axes if name.startswith("published") else ():
            boxes = [text.get_window_extent().padded(-1) for text in axes.texts]
            pairs = itertools.combinations(zip(boxes, axes.texts, strict=True), 2)
            assert [(a[1].get_text(), b[1].get_text()) for a, b in pairs if a[0].overlaps(b[0])] == [], name


def claims_on(published, study, start):
    """Return [(published, here, outcome)] of the claims of an article whose name begins so."""
    found = [claim for claim in published.claims[study] if claim["claim"].startswith(start)]
    return [(claim["published"], claim["here"], claim["outcome"]) for claim in found]


def test_claims_are_judged_by_what_the_runs_show(explored, executed):
    text, published = shown(executed, "text/markdown"), explored[0]
    for sentence in (
        "14 of 42 published rows can be set beside runs of this folder",
        "### colab-wide-resnet: WideResNet-28-10 on CIFAR-10 with Apex O0 to O3 (Apex O0 to O3 on T4 K80 P100, 2019)",
        "colab-wide-resnet, seconds per epoch: published from **177** (o2_fp16, T4) to **619** (fp32, K80);"
        " here from **20.0** (o3_fp16, H200) to **60.0** (fp32, H200).",
        "**Of 14 claims of colab-wide-resnet: holds 5, does not hold 5, cannot be told 4.**",
        "### Published, nothing comparable here",
    ):
        assert sentence in text
    alone = "cannot be told, because there is one run of each"
    assert claims_on(published, WIDE, "amp_fp16 on T4, b128") == [
        ("1.83x as fast as fp32", "2.00x (2.00 to 2.00), faster", "holds"),
        ("42% less", "PyTorch's peak 40% less, the whole device 40% less", "holds"),
        ("0.8525 against 0.8675 after epoch 10", "0.9 against 0.9 after epoch 10", alone),
    ]
    o2_time, _, o2_accuracy = claims_on(published, WIDE, "o2_fp16 on T4")
    assert o2_time == ("1.94x as fast as fp32", "1.00x (1.00 to 1.00), no measurable difference", "does not hold")
    assert o2_accuracy[1:] == ("0.7 against 0.9 after epoch 10", alone)
    assert claims_on(published, WIDE, "o3_fp16 on T4, b128: status") == [("diverged", "ok", "does not hold")]
    p100_time, p100_memory, _ = claims_on(published, WIDE, "amp_fp16 on P100")
    assert (p100_time[0], p100_time[2]) == ("0.99x as fast as fp32", "does not hold")
    assert p100_memory[0] == "11% more" and p100_memory[1].startswith("PyTorch's peak 40% less")
    assert claims_on(published, DPN[0], "fp32 on Titan RTX, b512: memory") == [
        ("out of memory", "oom within 24.0 GiB", "holds")
    ]
    ((_, here, outcome),) = claims_on(published, DPN[0], "o2_fp16 on Titan RTX, b256: time")
    assert (here, outcome) == ("1.11x (no interval)", "cannot be told, because it is too short to tell")
    assert not claims_on(published, WIDE, "fp32 on K80")  # fp32 alone claims nothing


@pytest.mark.parametrize(
    ("runs", "value", "outcome"),
    [
        ((1, 1), 0.7, "cannot be told, because there is one run of each"),
        ((2, 2), 0.7, "does not hold"),
        ((1, 1), 0.9, "cannot be told, because there is one run of each"),
        ((2, 2), 0.9, "does not hold"),
        ((1, 1), 0.95, "holds"),
    ],
)
def test_a_difference_of_accuracy_between_single_runs_cannot_refute(runs, value, outcome):
    sides = [{"metrics": {"accuracy": end}, "epochs": "10"} for end in (0.889, 0.8675)]
    sides += [{"metrics": {"accuracy": end}, "epochs": "10"} for end in (value, 0.9)]
    own = [side | {"runs": count} for side, count in zip(sides[2:], runs, strict=True)]
    assert metric_claim(*sides[:2], *own)[-1] == outcome


@pytest.mark.parametrize(
    ("claimed", "here", "outcome"),
    [
        (1.04, 1.0, "holds"),  # less than 5%
        (0.96, 1.04, "holds"),
        (1.05, 1.0, "does not hold"),
        (2.0, 3.0, "holds"),
        (2.0, 3.1, "holds, larger here"),
        (2.0, 1.3, "holds, smaller here"),
        (0.8, 0.5, "holds, smaller here"),
        (2.0, 0.5, "does not hold"),
    ],
)
def test_a_time_that_holds_says_where_the_factor_is_another(explored, monkeypatch, claimed, here, outcome):
    report, number = explored[0].report, 0
    ends = {"low": here, "high": here, "pairs": 6, "repetitions": 1, "seeds": 1, "seconds": 9.0}
    monkeypatch.setitem(report.speedups, (number, "amp_fp16", "fp32"), {"ratio": here, **ends})
    own = {"precision": "amp_fp16", "seconds": 1.0, "mark": ""}
    assert time_claim(report, {"precision": "amp_fp16", "ratio": claimed}, own, number)[-1] == outcome
    assert outcome_of(claimed, here, TIME_ALIKE, "time") == outcome
    assert outcome_of(claimed, here, 0.05, "largest batch").partition(",")[0] == outcome.partition(",")[0]


@pytest.mark.parametrize(
    ("name", "value", "base", "word"),
    [
        ("accuracy", 0.905, 0.930, "lower"),  # within 3% of each other
        ("accuracy", 0.940, 0.930, "alike"),  # one percentage point
        ("accuracy", 0.919, 0.930, "lower"),
        ("accuracy", 0.11, 0.10, "alike"),
        ("accuracy", 0.8890, 0.8675, "higher"),
        ("perplexity", 103.0, 100.0, "alike"),
        ("perplexity", 96.9, 100.0, "lower"),
        ("perplexity", 103.1, 100.0, "higher"),
    ],
)
def test_accuracies_are_alike_within_a_point_and_perplexities_within_their_share(name, value, base, word):
    assert metric_word(name, value, base) == word


def test_a_mode_that_does_not_converge_is_found_by_its_status(tmp_path):
    wide = {"parameters": {"model": "wide_resnet28_10", "epochs": 10}}
    write_record(made_up.make("cifar_resnet", "fp32", seconds=[60.0] * 10, **wide), tmp_path)
    stuck = made_up.make("cifar_resnet", "o3_fp16", seconds=[20.0] * 10, metric=[0.1] * 10, **wide)
    write_record(stuck, tmp_path)
    published, _ = published_in(tmp_path)
    _, own, theirs = next(iter(panels_beside(published)[WIDE].values()))
    assert [one["status"] for one in own] == ["ok", "diverged"]
    o3 = next(one for one in theirs if one["status"] == "diverged")
    assert status_claim(published.report, o3, 0) == ("status", "diverged", "diverged", "holds")
    o2 = next(one for one in theirs if one["precision"] == "o2_fp16")
    mode, (time, memory) = claims_of(published.report, o2, theirs, 0)
    assert mode is None and time[-1] == "cannot be told, because of o2_fp16: not run"
    assert memory[-1] == "cannot be told, because it was not measured here in both"


def test_what_one_card_cannot_tell_is_shown_beside_what_another_can(tmp_path):
    for device, epochs, execution in (
        (made_up.H200, 30, "eager"),
        (made_up.H200, 3, "cuda_graph"),  # the first tells of that card what this one cannot
        (made_up.TURING, 3, "eager"),
    ):
        for precision, seconds in (("fp32", 6.0), ("amp_fp16", 4.0)):
            rest = {"device": device, "block_seconds": made_up.blocks_of([seconds] * epochs), "metric": [0.9] * epochs}
            values = {"epochs": epochs, "execution": execution, "dataset": "cifar10"}
            record = made_up.make("cifar_resnet", precision, seconds=[seconds] * epochs, parameters=values, **rest)
            write_record(record, tmp_path / device["gpu_uuid"])
    published, _ = published_in(tmp_path)
    found = [claim for claim in published.claims[RESNET] if claim["claim"].endswith("b128: accuracy")]
    assert [(claim["runs here"].rpartition(" · ")[2].split(",")[0], claim["outcome"]) for claim in found] == [
        ("H200", "holds"),
        ("RTX 2080 Ti", "cannot be told, because 3 epochs is less than half of 50"),
    ]


def test_other_16_bit_mode_stands_in_and_memory_must_agree(tmp_path):
    for precision, seconds, peak, device in (("fp32", 6.0, 2000.0, 3000.0), ("amp_fp16", 3.0, 1000.0, 3100.0)):
        rest = {"seconds": [seconds] * 3, "block_seconds": made_up.blocks_of([seconds] * 3)}
        write_record(made_up.make("cifar_resnet", precision, peak=peak, device_used_mib=device, **rest), tmp_path)
    published, _ = published_in(tmp_path)
    _, _, theirs = next(iter(panels_beside(published)[RESNET].values()))
    mode, (time, memory, metric) = claims_of(published.report, theirs[1], theirs, 0)
    assert mode == "amp_fp16"
    assert time == ("time", "1.50x as fast as fp32", "2.00x (2.00 to 2.00), faster", "holds")
    assert memory[2] == "PyTorch's peak 50% less, the whole device 3% more"
    assert memory[3] == "cannot be told, because the two disagree"
    assert metric[0] == "accuracy" and metric[-1] == "cannot be told, because 3 epochs is less than half of 50"


@beside("other data", "cpu")
def not_comparable(folder, case):
    if case == "cpu":
        write_record(made_up.make("cifar_resnet", "fp32", device=made_up.CPU), folder)
    else:
        write_record(made_up.make("efficientnet_regression", "fp32"), folder)
    return lambda: (case, *execute(folder))


def test_where_nothing_is_comparable_one_sentence_says_so(not_comparable):
    case, process, notebook, folder = not_comparable
    assert process.returncode == 0, process.stderr
    text = shown(notebook, "text/markdown")
    assert "0 of 42 published rows can be set beside runs of this folder: no run is comparable" in text
    rest = {"cpu": 42, "other data": 37}[case]  # of other images than the article's own, ratios can be told
    assert f"### Published, nothing comparable here\n\n{rest} rows" in text and not list(folder.glob("published_*.png"))
    near = {"cpu": "not on a GPU here", "other data": "data here elpv, published own images"}[case]
    assert near in shown(notebook, "text/html")


def test_rows_with_markup_are_shown_as_text(explored):
    published = explored[0]
    row = {**published.rows[0], "note": "<b>a</b>; $x$"}
    assert notes_of([row, row]) == "<b>a</b>; $x$"
    assert plain(row["note"]) == r"&lt;b&gt;a&lt;/b&gt;; \$x\$"


def test_reading_gives_numbers_and_none(explored):
    published = explored[0]
    text = io.StringIO(PATH.read_text(encoding="utf-8"))
    assert len(published.rows) == len(list(csv.DictReader(text)))
    for row in published.rows:
        assert "" not in row.values()
        assert all(isinstance(row[name], float | None) for name in NUMBERS)


def test_of_runs_that_differ_in_length_one_is_beside(pooled_claims):
    published, charts = pooled_claims
    (numbers,) = published.beside[RESNET]
    shown_titles = [published.report.comparisons[number]["title"] for number in numbers]
    assert shown_titles == [
        "resnet18 · cifar10, b128 · epochs=3 · eager",  # has o2_fp16, the other has not
        "resnet18 · cifar10, b128 · epochs=30 · cuda_graph",
    ]
    assert not any("loss_scale" in text for text in texts(charts["published_titan_rtx_resnet"])), (
        "a sweep is not beside an article"
    )


def test_what_ran_out_of_memory_is_judged_by_the_size_of_that_card(pooled_claims):
    published = pooled_claims[0]
    assert claims_on(published, DPN[0], "fp32 on Titan RTX, b512: memory") == [
        ("out of memory", "ok, with 33.5 GiB; that card has 24 GiB", "holds")
    ]
    assert claims_on(published, DPN[0], "o2_fp16 on Titan RTX, b640: memory") == [
        ("out of memory", "oom within 24.0 GiB", "holds")  # not the run on the whole card
    ]
    theirs = {"precision": "o2_fp16", "gpu": "Titan RTX", "status": "oom"}
    for place, (needed, reserved, outcome) in enumerate(
        ((20.0, 21.0, "does not hold"), (23.0, 25.0, "cannot be told, because it is too near"), (25.0, 26.0, "holds"))
    ):
        run = {"status": "ok", "device_total_mib": 140_000.0, "ledger_context_mib": None}
        run |= {"peak_allocated_mib": 1024 * needed, "peak_reserved_mib": 1024 * reserved, "place": place}
        group = {"settings": {}, "runs": {"o2_fp16": [run]}}
        published.report.comparisons.append(group)
        assert oom_claim(published.report, theirs, len(published.report.comparisons) - 1)[1] == outcome
        published.report.comparisons.pop()


def test_loss_scales_are_compared_with_the_one_published_first(pooled_claims):
    published = pooled_claims[0]
    same, slower = (
        claims_on(published, DPN[0], f"o2_fp16 on Titan RTX: time at loss scale {scale}") for scale in (64, 256)
    )
    assert same == [("140 s against 140 s at 128", "1.00x (1.00 to 1.00) of the speed at 128", "holds")]
    ((_, here, outcome),) = slower
    assert here == "0.80x (no interval) of the speed at 128, on another card"
    assert outcome == "cannot be told, because it is too short, or not paired"


def test_figures_at_one_step_are_those_of_the_training_log(pooled_claims):
    published = pooled_claims[0]
    assert claims_on(published, DPN[0], "o2_fp16 on Titan RTX: train loss at step 350") == [
        ("1.831 against 1.817", "1.75 against 1.7", "holds")
    ]
    ((_, here, outcome),) = claims_on(published, DPN[0], "o2_fp16 on Titan RTX: train accuracy at step 350")
    assert (here, outcome) == ("0.25 against 0.35", "does not hold")


def test_the_largest_batch_is_judged_by_searches_within_the_memory_of_that_card(pooled_claims):
    published = pooled_claims[0]
    assert claims_on(published, "fastai-cifar100", "o2_fp16 on 2080 Ti and 1080 Ti: largest batch") == [
        ("about 1.8x that of fp32", "736 in amp_fp16 against 384", "holds")
    ]
    both = claims_on(
        published, DPN[0], "o2_fp16 on Titan RTX: largest batch"
    )  # none within 24 GiB: every search on images
    assert [here for _, here, _ in both] == ["18,000 in amp_fp16 against 18,000", "736 in amp_fp16 against 384"]
    assert [outcome for *_, outcome in both] == ["does not hold", "holds"]


def test_the_largest_batch_holds_where_the_published_ratio_lies_in_the_resolution(tmp_path):
    assert outcome_of(1.8, (1.0, 0.9, 1.9), 0.03) == outcome_of(1.8, (2.5, 2.4, 2.6), 0.03) == "holds"
    assert outcome_of(1.8, (1.0, 0.9, 1.7), 0.03) == outcome_of(1.8, 1.0, 0.03) == "does not hold"
    for precision, size, failing in (("fp32", 300, 320), ("amp_fp16", 300, 600)):
        values = {"model": "resnet50", "batch_size": "max", "memory_limit_gib": 11.0, "image_size": 64}
        known = {"batch_size_used": size, "samples_per_epoch": 49_000, "dataset_used": "cifar100"}
        known["batch_probes"] = [[size, "ok", 1.0, 1.0], [failing, "oom", 1.0, None], [size, "ok", 1.0, 2.0]]
        write_record(made_up.make("cifar_resnet", precision, parameters=values, **known), tmp_path)
    published, start = published_in(tmp_path)[0], "o2_fp16 on 2080 Ti and 1080 Ti: largest batch"
    ((_, here, told),) = claims_on(published, "fastai-cifar100", start)
    assert (here, told) == ("300 in amp_fp16 against 300: 0.94 to 2.00 times", "holds")


@pytest.mark.parametrize(
    ("data", "pixels", "why"),
    [
        ("cifar10", 64, "the data here are cifar10, not cifar100"),
        ("cifar100", 32, "the images here have 32 pixels a side, not 64"),
        ("cifar100", None, "the images here have unknown pixels a side, not 64"),
        ("cifar100", 64, None),
    ],
)
def test_an_article_on_enlarged_images_is_judged_by_these_alone(tmp_path, data, pixels, why):
    values = {"image_size": pixels} if pixels else {}
    for precision, size, seconds in (("fp32", 300, 6.0), ("amp_fp16", 540, 5.0)):
        rest = {"seconds": [seconds] * 3, "block_seconds": made_up.blocks_of([seconds] * 3), "dataset_used": data}
        largest = {**values, "model": "resnet50", "batch_size": "max", "memory_limit_gib": 11.0}
        known = {"batch_size_used": size, "samples_per_epoch": 49_000}
        write_record(made_up.make("cifar_resnet", precision, parameters=largest, **known, **rest), tmp_path)
        deep = {**values, "model": "resnet101"}
        write_record(made_up.make("cifar_resnet", precision, parameters=deep, **rest), tmp_path)
    published, start = published_in(tmp_path)[0], "o2_fp16 on 2080 Ti and 1080 Ti"
    outcome = f"cannot be told, because {why}" if why else "holds"
    ((_, here, told),) = claims_on(published, "fastai-cifar100", f"{start}: largest batch")
    assert (here, told) == ("540 in amp_fp16 against 300", outcome)
    times = claims_on(published, "fastai-cifar100", f"{start}: time")  # 1.18x and 1.13x, of this model on this data
    assert [told for *_, told in times] == ([outcome] * 2 if data == "cifar100" else [])


def test_images_of_a_study_have_the_size_that_the_study_gives_them():
    sizes = {
        name: {entry["parameters"].get("image_size") for entry in study["runs"]}
        for name, study in load_studies(NOTEBOOKS / "studies.yaml").items()
        if name in STUDIES
    }
    assert sizes == {name: {PIXELS.get(name)} for name in STUDIES}


def test_part_of_an_epoch_is_enough_for_a_ratio_and_a_loader_needs_no_model(pooled_claims):
    published = pooled_claims[0]
    times = claims_on(published, "fastai-cifar100", "o2_fp16 on 2080 Ti and 1080 Ti: time")
    assert [claim[0] for claim in times] == ["fp32 takes 1.18x as long", "fp32 takes 1.13x as long"]
    assert {claim[1:] for claim in times} == {("amp_fp16 1.25x (1.25 to 1.25), faster", "holds")}
    ((_, here, outcome),) = claims_on(published, WIDE, "amp_fp16: time with loader workers")
    assert (here, outcome) == ("amp_fp16 1.00x (1.00 to 1.00), no measurable difference", "holds")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"data_wait_fraction": 0.06}, "waiting for data: 6%"),  # the GPU is busy
        ({"gpu_busy_fraction": None, "data_wait_fraction": None}, "waiting for data: not known"),
        ({"gpu_busy_fraction": 0.3, "data_wait_fraction": 0.1}, "waiting for data: 10%"),  # kernel launches
    ],
)
def test_a_loader_that_limits_nothing_tells_nothing_of_weak_cores(tmp_path, fields, why):
    values = {"batch_size": 512, "loader": "workers", "dataset": "cifar10"}
    for precision, seconds in (("fp32", 6.0), ("amp_fp16", 3.0)):
        rest = {"seconds": [seconds] * 3, "block_seconds": made_up.blocks_of([seconds] * 3), "host_cores": 32}
        write_record(made_up.make("cifar_resnet", precision, parameters=values, **rest, **fields), tmp_path)
    ((_, here, outcome),) = claims_on(published_in(tmp_path)[0], WIDE, "amp_fp16: time with loader workers")
    assert here == "amp_fp16 2.00x (2.00 to 2.00), faster"
    assert outcome.startswith("cannot be told, because data loading does not limit these runs (host cores: 32; ")
    assert why in outcome


def test_inference_in_half_and_what_was_only_drawn_are_shown(pooled_claims):
    published = pooled_claims[0]
    every = claims_on(published, DPN[0], "o3_fp16 on Titan RTX: one image")  # one for each model on images
    assert {said for said, *_ in every} == {"50 ms in fp32, 26 ms"}
    own = [claim for claim in every if claim[1].endswith("o3_fp16")]
    assert [claim[1:] for claim in own] == [("4.00 ms in fp32, 2.00 ms in o3_fp16", "holds")]
    assert any(claim[1].endswith(" ms in o2_fp16") for claim in every)  # dpn92, though a wide ResNet has o3_fp16
    assert len(every) == 5
    (drawn,) = published.claims["word-language-model"]
    assert drawn["here"] == "amp_fp16 1.60x (1.60 to 1.60), faster; perplexity 191 against 191 in fp32"
    assert drawn["outcome"] == "cannot be told, because no figure was published"


def test_a_claim_of_a_mode_that_did_not_end_well_says_how_it_ended(tmp_path):
    values = {"model": "rnn_relu", "execution": "cuda_graph"}
    write_record(made_up.make("lstm_language_model", "fp32", seconds=[8.0] * 3, parameters=values), tmp_path)
    failed = made_up.make_failed("lstm_language_model", "amp_fp16", "diverged", "every step", parameters=values)
    write_record(failed, tmp_path)
    published, _ = published_in(tmp_path)
    (drawn,) = published.claims["word-language-model"]
    assert drawn["here"] == "amp_fp16: diverged"
    assert timed_claim(published.report, 0, "o2_fp16")[1:] == ("o2_fp16: not run", UNPAIRED)


def test_of_an_articles_own_images_ratios_are_judged_and_times_not_shown(pooled_claims):
    published, charts = pooled_claims
    rtx = claims_on(published, EFFICIENT, "amp_fp16 on RTX 3090, b32")
    assert rtx[0] == ("0.79x as fast as fp32", "1.50x (1.50 to 1.50), faster", "does not hold")
    assert rtx[1][0] == "36% less" and rtx[1][2] == "holds"
    assert claims_on(published, EFFICIENT, "amp_fp16 on V100")[0][2] == "holds"
    assert all(claim["runs here"].endswith(", other images") for claim in published.claims[EFFICIENT])
    assert EFFICIENT not in published.beside and f"published_{EFFICIENT.replace('-', '_')}" not in charts


def test_every_article_has_its_section_and_the_rest_is_listed(pooled_claims):
    published = pooled_claims[0]
    assert set(published.claims) == STUDIES and all(published.claims.values())
    assert [row["model"] for row in without_counterpart(published)] == ["dpn92"] * 2 + ["detector"] * 2 + [
        "resnet50"
    ] * 2


def test_a_whole_training_stands_beside_the_time_of_an_epoch(explored):
    published = explored[0]
    ((_, own, theirs),) = panels_beside(published)[WIDE].values()
    rows = [row_beside("", one) for one in (own[0], theirs[0])]
    assert [(row["seconds per epoch"], row["whole training, s"]) for row in rows] == [("60.0", "600"), ("344", "3,437")]
