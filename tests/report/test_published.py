"""The published figures: their file, and what the report says of them next to made-up runs."""

import csv
import itertools
import re

import made_up_records as made_up
import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT
from drawn_reports import explore, said_in, texts
from made_up_runs import gained

from mixed_precision_study.analysis.equivalence import quality_difference
from mixed_precision_study.analysis.verdict import NOT_PAIRED, SAME, judge
from mixed_precision_study.parameters import PRECISION_NAMES
from mixed_precision_study.record import STATUSES, write_record
from mixed_precision_study.report.load import load
from mixed_precision_study.report.published.articles import row_of_claim
from mixed_precision_study.report.published.claims import (
    claims_of,
    judge_published,
    metric_claim,
    metric_word,
    oom_claim,
    status_claim,
    time_claim,
    without_counterpart,
)
from mixed_precision_study.report.published.dumbbells import pairs_of
from mixed_precision_study.report.published.matching import (
    NUMBERS,
    Entry,
    bare,
    differences,
    own_entries,
    published_entries,
)
from mixed_precision_study.report.published.ratios import (
    FAILS,
    HOLDS,
    NO_RATIO,
    PIXELS,
    TIME_ALIKE,
    Finding,
    RatioClaim,
    find_speedup,
    outcome_of,
    unknown,
)
from mixed_precision_study.report.published.ratios import UNKNOWN as UNTOLD
from mixed_precision_study.report.published.table import notes_of, row_of_entry, rows_of_rest
from mixed_precision_study.report.words import plain
from mixed_precision_study.runner.studies import load_studies

PATH = ROOT / "mixed_precision_study" / "report" / "published" / "published_results.csv"
DPN, RESNET, WIDE = "rtx-titan-dpn", "titan-rtx-resnet", "colab-wide-resnet"
FASTAI, EFFICIENT, WORDS = "fastai-cifar100", "efficientnet-3090-v100", "word-language-model"
STUDIES = {DPN, RESNET, WIDE, FASTAI, EFFICIENT, WORDS}
RANGES = {  # of what is given, and whether it is a whole number
    "year": (2018, 2025, True),
    "batch_size": (1, 1024, True),
    "loss_scale": (1, 2**20, True),
    "epochs": (1, 100, True),
    "time_seconds": (0.001, 200_000, False),
    "memory_mib": (100, 25_000, False),
    "metric": (0.1, 100, False),
}
WIDE_RUN = {"parameters": {"model": "wide_resnet28_10", "epochs": 10}}


def read_rows():
    with PATH.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_pair(folder, seconds=(6.0, 3.0), epochs=3, **fields):
    """Write a ResNet's runs in fp32 and amp_fp16; a tuple among the fields has a value for each."""
    for place, precision in enumerate(("fp32", "amp_fp16")):
        own = {name: value[place] if isinstance(value, tuple) else value for name, value in fields.items()}
        times = [seconds[place]] * epochs
        own = {"block_seconds": made_up.blocks_of(times)} | own
        made_up.write_processes(made_up.make("cifar_resnet", precision, seconds=times, **own), folder)


def judge_folder(folder):
    """Return the published figures with their claims, of a folder with records."""
    return judge_published(load(str(folder)))


def claims_on(published, study, start):
    """Return [(published, here, outcome)] of the claims of an article whose name begins so."""
    found = [claim for claim in published.claims[study] if claim["claim"].startswith(start)]
    return [(claim["published"], claim["here"], claim["outcome"]) for claim in found]


def entries_of(published, study):
    """Return (entries of the runs here, published entries) of the first panel of an article."""
    numbers, rows = next(iter(published.comparable[study].items()))
    return own_entries(published.report, numbers), published_entries(rows)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """(published figures with their claims, charts of the articles) of the made-up comparable runs."""
    folder = tmp_path_factory.mktemp("comparable")
    made_up.write_published(folder)
    report, charts = explore(folder, "articles")
    return judge_published(report), charts


@pytest.fixture(scope="module")
def pooled_claims(pooled):
    return judge_published(pooled[0])


# The file


def test_every_row_is_complete_and_names_what_the_study_knows():
    rows = read_rows()
    assert len({tuple(row.values()) for row in rows}) == len(rows)
    assert {row["study"] for row in rows} == STUDIES
    for row in rows:
        assert None not in row and None not in row.values()  # as many fields as columns
        assert all(row[name] for name in ("study", "source", "title", "year", "framework", "experiment", "status"))
        assert row["status"] in STATUSES and row["precision"] in PRECISION_NAMES
        assert row["experiment"] in (*EXPERIMENTS, "none")
        assert (row["experiment"] == "none") is (row["dataset"] == "")
    for name in ("source", "title", "year"):
        assert len({(row["study"], row[name]) for row in rows}) == len(STUDIES), name  # one of each for a study


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


def test_reading_gives_numbers_none_and_seconds_per_epoch(judged):
    rows = judged[0].rows
    assert len(rows) == len(read_rows())
    assert all(isinstance(row[name], float | None) for row in rows for name in NUMBERS)
    assert not any("" in row.values() for row in rows)
    seconds = [row["seconds"] for row in rows if (row["study"], row["gpu"]) == (WIDE, "T4")]
    assert seconds == [343.7, 187.4, 177.1, None]  # ten epochs
    assert [row["seconds"] for row in rows if row["study"] == RESNET] == [15, 10, 57, 27]
    assert all(row["seconds"] is None for row in rows if row["experiment"] == "none")


# What is comparable


def test_only_the_same_experiment_data_model_and_batch_are_comparable(judged):
    published, _ = judged
    assert set(published.comparable) == {DPN, WIDE}
    numbers = [number for matches in published.comparable.values() for group in matches for number in group]
    groups = [published.report.comparisons[number] for number in numbers]
    models = [(group["model"], group["batch"]) for group in groups]
    assert models == [("dpn92", "b256"), ("dpn92", "b512"), ("wide_resnet28_10", "b128")]
    assert all(group["settings"]["max_steps"] == "0" and group["data"] == "cifar10" for group in groups)
    assert sum(group["model"] == "wide_resnet28_10" for group in published.report.comparisons) == 3


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
def test_what_forbids_a_comparison_is_named(judged, changes, word):
    row = next(row for row in judged[0].rows if row["study"] == WIDE)
    group = {"data": "cifar10", "batch": "b128", "settings": {"device_type": '"cuda"', "max_steps": "0"}}
    for name, value in changes.items():
        (group if name in group else group["settings"])[name] = value
    assert differences(row, group) == ([word] if word else [])


def test_names_are_compared_without_case_and_punctuation():
    assert bare("WideResNet-28-10") == bare("wide_resnet28_10") == "wideresnet2810"


@pytest.mark.parametrize(
    ("notebook", "device", "rest", "near"),
    [
        ("cifar_resnet", made_up.CPU, 42, "not on a GPU here"),
        # The ratios of other images than the article's own can be judged.
        ("efficientnet_regression", made_up.H200, 37, "data here elpv, published own images"),
    ],
)
def test_rows_without_a_comparable_run_are_listed_with_the_nearest_one(tmp_path, notebook, device, rest, near):
    write_record(made_up.make(notebook, "fp32", device=device), tmp_path)
    published = judge_folder(tmp_path)
    assert published.comparable == {}
    listed = without_counterpart(published)
    assert len(listed) == rest
    rows = rows_of_rest(published.report, listed + [row for row in published.rows if row["similar"]])
    assert any(near in row["nearest here"] for row in rows)


def test_of_runs_that_differ_in_length_one_is_comparable(pooled_claims, pooled):
    (numbers,) = pooled_claims.comparable[RESNET]
    assert [pooled_claims.report.comparisons[number]["title"] for number in numbers] == [
        "resnet18 · cifar10, b128 · epochs=3 · eager",  # has o2_fp16, the other has not
        "resnet18 · cifar10, b128 · epochs=30 · cuda_graph",
    ]
    assert not any("loss_scale" in text for text in texts(pooled[1]["published_ratios"]))  # no sweep


def test_every_article_has_claims_and_the_rest_is_listed(pooled_claims):
    assert set(pooled_claims.claims) == STUDIES and all(pooled_claims.claims.values())
    models = [row["model"] for row in without_counterpart(pooled_claims)]
    assert models == ["dpn92", "dpn92", "detector", "detector", "resnet50", "resnet50"]


def test_images_of_a_study_have_the_size_that_the_study_gives_them():
    for name, study in load_studies(NOTEBOOKS / "studies.yaml").items():
        if name in STUDIES:
            assert {run["parameters"].get("image_size") for run in study["runs"]} == {PIXELS.get(name)}


# Charts and tables


def test_each_published_ratio_has_one_row_beside_the_ratio_here(judged):
    pairs = pairs_of(judged[0])
    assert [pair.here for pair in pairs] == sorted(pair.here for pair in pairs) and pairs
    assert len({(pair.label, pair.published) for pair in pairs}) == len(pairs)
    t4 = next(pair for pair in pairs if "amp_fp16 on T4" in pair.label)
    assert (t4.published, t4.here) == (pytest.approx(343.7 / 187.4, rel=0.01), pytest.approx(2))
    (axes,) = judged[1]["published_ratios"].axes
    assert len(axes.get_yticklabels()) == len(pairs)


def test_each_claim_stands_once_with_the_number_of_models():
    rows = [{"claim": "a", "published": "1x", "here": "2x", "runs here": f"{model} · data"} for model in "xyz"]
    outcomes = ("holds", "does not hold, because", "holds, larger here")
    row = row_of_claim("study", [one | {"outcome": said} for one, said in zip(rows, outcomes, strict=True)])
    assert row["outcome"] == "holds on 2, does not hold on 1 of 3 models"


def test_no_text_lies_on_another(judged):
    for name, figure in judged[1].items():
        for axes in figure.axes if name.startswith("published") else ():
            boxes = [text.get_window_extent().padded(-1) for text in axes.texts]
            pairs = itertools.combinations(zip(boxes, axes.texts, strict=True), 2)
            assert [(a[1].get_text(), b[1].get_text()) for a, b in pairs if a[0].overlaps(b[0])] == [], name


def test_a_whole_training_stands_beside_the_time_of_an_epoch(judged):
    own, theirs = entries_of(judged[0], WIDE)
    rows = [row_of_entry("", one) for one in (own[0], theirs[0])]
    assert [(row["seconds per epoch"], row["whole training, s"]) for row in rows] == [("60.0", "600"), ("344", "3,437")]


def test_notes_with_markup_are_shown_as_text(judged):
    row = {**judged[0].rows[0], "note": "<b>a</b>; $x$"}
    assert notes_of([row, row]) == "<b>a</b>; $x$"
    assert plain(row["note"]) == r"&lt;b&gt;a&lt;/b&gt;; \$x\$"


def test_sentences_count_rows(judged):
    assert "14 of 42 published rows" in said_in("articles", judged[0].report)


# Claims on time, memory, metric and status


def test_claims_are_judged_by_what_the_runs_show(judged):
    published = judged[0]
    alone = unknown("1 seed of each cannot tell it")
    assert claims_on(published, WIDE, "amp_fp16 on T4, b128") == [
        ("1.83x as fast as fp32", "2.00x (2.00 to 2.00), faster", HOLDS),
        ("42% less", "PyTorch's peak 41% less, the whole device 40% less", HOLDS),
        ("0.8525 against 0.8675, best of 10 epochs", "0.9 against 0.9, best of 10 epochs", alone),
    ]
    o2_time, _, o2_accuracy = claims_on(published, WIDE, "o2_fp16 on T4")
    assert o2_time == ("1.94x as fast as fp32", f"1.00x (1.00 to 1.00), {SAME}", FAILS)
    assert o2_accuracy[1:] == ("0.7 against 0.9, best of 10 epochs", alone)
    assert claims_on(published, WIDE, "o3_fp16 on T4, b128: status") == [("diverged", "ok", FAILS)]
    p100_time, p100_memory, _ = claims_on(published, WIDE, "amp_fp16 on P100")
    assert (p100_time[0], p100_time[2]) == ("0.99x as fast as fp32", FAILS)
    assert p100_memory[0] == "11% more" and p100_memory[1].startswith("PyTorch's peak 41% less")
    oom = claims_on(published, DPN, "fp32 on Titan RTX, b512: memory")
    assert oom == [("out of memory", "oom within 24.0 GiB", HOLDS)]
    ((_, here, outcome),) = claims_on(published, DPN, "o2_fp16 on Titan RTX, b256: time")
    assert (here, outcome) == ("1.11x (1.11 to 1.11), faster", HOLDS)
    assert not claims_on(published, WIDE, "fp32 on K80")  # fp32 alone claims nothing


@pytest.mark.parametrize(
    ("ends", "value", "outcome"),
    [
        (None, 0.7, UNTOLD),
        ([0.7], 0.7, UNTOLD),  # 20 points apart, and one seed
        ([0.7, 0.71, 0.69], 0.7, FAILS),  # the article's is higher
        ([0.95, 0.951, 0.949], 0.95, HOLDS),
        ([0.95, 0.6, 0.99], 0.95, UNTOLD),
        ([0.9] * 5, 0.9, FAILS),  # alike
        ([0.9] * 3, 0.9, UNTOLD),  # three seeds show no equality
    ],
)
def test_a_metric_is_told_by_seeds_that_tell(ends, value, outcome):
    entries = [Entry("", "amp_fp16", metrics={"accuracy": end}, epochs="10") for end in (0.889, 0.8675, value, 0.9)]
    if ends:
        own = dict(enumerate(ends))
        entries[2].quality = quality_difference(own, dict.fromkeys(own, 0.9), "accuracy", "higher")
    assert metric_claim(*entries).outcome.startswith(outcome)


@pytest.mark.parametrize(
    ("claimed", "here", "outcome"),
    [
        (1.04, (1.0, 0.98, 1.02), HOLDS),  # less than 5%
        (1.04, (1.0, 0.8, 1.3), UNTOLD),  # absence of evidence confirms nothing
        (1.04, (1.03, 1.025, 1.035), UNTOLD),  # a difference, and about as small as what counts as none
        (1.04, (1.2, 1.1, 1.3), FAILS),
        (1.049, (1.06, 1.01, 1.12), UNTOLD),
        (0.96, (1.0, 0.98, 1.02), HOLDS),
        (1.06, (1.0, 0.98, 1.02), FAILS),
        (1.06, (1.0, 0.8, 1.3), UNTOLD),
        (1.06, (1.03, 1.025, 1.035), HOLDS),
        (2.0, (3.0, 2.9, 3.1), HOLDS),
        (2.0, (3.1, 3.0, 3.2), f"{HOLDS}, larger here"),
        (2.0, (1.3, 1.2, 1.4), f"{HOLDS}, smaller here"),
        (2.0, (1.3, 0.9, 1.9), UNTOLD),
        (0.8, (0.5, 0.4, 0.6), f"{HOLDS}, smaller here"),
        (2.0, (0.5, 0.4, 0.6), FAILS),
        (2.0, (2.0, None, None), UNTOLD),  # one process
    ],
)
def test_a_time_is_confirmed_and_refuted_only_by_what_was_told(judged, monkeypatch, claimed, here, outcome):
    report = judged[0].report
    speedup = gained(*here, processes=3 if here[1] else 1)
    monkeypatch.setitem(report.speedups, (0, "amp_fp16", "fp32"), speedup)
    own, theirs = Entry("", "amp_fp16", seconds=1.0), Entry("", "amp_fp16", ratio=claimed)
    assert time_claim(report, theirs, own, 0).outcome.startswith(outcome)
    finding = Finding("", "", here[0], speedup=speedup, judged=judge(speedup))
    assert outcome_of(RatioClaim("time", "", claimed, TIME_ALIKE, []), finding).startswith(outcome)


def test_a_size_without_an_interval_is_told_by_its_direction():
    largest = RatioClaim("largest batch", "", 2.0, TIME_ALIKE, [])
    assert outcome_of(largest, Finding("", "", 3.1)) == HOLDS
    assert outcome_of(largest, Finding("", "", 0.5)) == FAILS


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
    write_record(made_up.make("cifar_resnet", "fp32", seconds=[60.0] * 10, **WIDE_RUN), tmp_path)
    write_record(made_up.make("cifar_resnet", "o3_fp16", seconds=[20.0] * 10, metric=[0.1] * 10, **WIDE_RUN), tmp_path)
    published = judge_folder(tmp_path)
    own, theirs = entries_of(published, WIDE)
    assert [one.status for one in own] == ["ok", "diverged"]
    o3 = next(one for one in theirs if one.status == "diverged")
    assert status_claim(published.report, o3, 0) == ("status", "diverged", "diverged", HOLDS)
    o2 = next(one for one in theirs if one.precision == "o2_fp16")
    mode, (time, memory) = claims_of(published.report, o2, theirs, 0)
    assert mode is None and "o2_fp16: not run" in time.outcome
    assert memory.here == "nothing to compare"


def test_a_claim_that_one_gpu_cannot_tell_is_shown_only_without_a_run_on_that_gpu_that_can(tmp_path):
    for device, epochs, execution in (
        (made_up.H200, 30, "eager"),
        (made_up.H200, 3, "cuda_graph"),  # the first can tell what this one cannot
        (made_up.TURING, 3, "eager"),
    ):
        for seed in range(5):
            values = {"epochs": epochs, "execution": execution, "dataset": "cifar10", "seed": seed}
            fields = {"device": device, "metric": [0.9] * epochs, "parameters": values}
            write_pair(tmp_path / device["gpu_uuid"], (6.0, 4.0), epochs, **fields)
    published = judge_folder(tmp_path)
    found = [claim for claim in published.claims[RESNET] if claim["claim"].endswith("b128: accuracy")]
    assert [(claim["runs here"].rpartition(" · ")[2].split(",")[0], claim["outcome"]) for claim in found] == [
        ("H200", HOLDS),
        ("RTX 2080 Ti", unknown("3 epochs is less than half of 50")),
    ]


def test_other_16_bit_mode_stands_in_and_memory_must_agree(tmp_path):
    write_pair(tmp_path, peak=(2000.0, 1000.0), device_used_mib=(3000.0, 3100.0))
    published = judge_folder(tmp_path)
    _, theirs = entries_of(published, RESNET)
    mode, (time, memory, metric) = claims_of(published.report, theirs[1], theirs, 0)
    assert mode == "amp_fp16"
    assert time == ("time", "1.50x as fast as fp32", "2.00x (2.00 to 2.00), faster", HOLDS)
    assert memory.here == "PyTorch's peak 54% less, the whole device 3% more"
    assert memory.outcome == unknown("the two disagree")
    assert (metric.what, metric.outcome) == ("accuracy", unknown("3 epochs is less than half of 50"))


def test_what_ran_out_of_memory_is_judged_by_the_size_of_that_gpu(pooled_claims):
    assert claims_on(pooled_claims, DPN, "fp32 on Titan RTX, b512: memory") == [
        ("out of memory", "ok, with 33.5 GiB; that GPU has 24 GiB", HOLDS)
    ]
    assert claims_on(pooled_claims, DPN, "o2_fp16 on Titan RTX, b640: memory") == [
        ("out of memory", "oom within 24.0 GiB", HOLDS)  # not the run on the whole GPU
    ]


@pytest.mark.parametrize(
    ("needed", "reserved", "outcome"),
    [(20.0, 21.0, FAILS), (23.0, 25.0, unknown("that lies between the two")), (25.0, 26.0, HOLDS)],
)
def test_a_run_on_a_larger_gpu_tells_what_fits_by_what_it_needs(judged, monkeypatch, needed, reserved, outcome):
    run = {"status": "ok", "device_total_mib": 140_000.0, "ledger_context_mib": None}
    run |= {"peak_allocated_mib": 1024 * needed, "peak_reserved_mib": 1024 * reserved}
    report = judged[0].report
    monkeypatch.setattr(report, "comparisons", [{"settings": {}, "runs": {"o2_fp16": [run]}}])
    theirs = Entry("", "o2_fp16", gpu="Titan RTX", status="oom")
    assert oom_claim(report, theirs, 0).outcome == outcome


# Claims on ratios


def test_loss_scales_are_compared_with_the_one_published_first(pooled_claims):
    name = "o2_fp16 on Titan RTX: time at loss scale"
    assert claims_on(pooled_claims, DPN, f"{name} 64") == [
        ("140 s against 140 s at 128", f"1.00x (1.00 to 1.00) of the speed at 128, {SAME}", HOLDS)
    ]
    ((_, here, outcome),) = claims_on(pooled_claims, DPN, f"{name} 256")
    assert here == f"0.80x (not paired) of the speed at 128, {NOT_PAIRED}"
    assert outcome == unknown(f"it is: {NOT_PAIRED}")


def test_figures_at_one_step_are_those_of_the_training_log(pooled_claims):
    name = "o2_fp16 on Titan RTX: train"
    loss = claims_on(pooled_claims, DPN, f"{name} loss at step 350")
    assert loss == [("1.831 against 1.817", "1.75 against 1.7", HOLDS)]
    ((_, here, outcome),) = claims_on(pooled_claims, DPN, f"{name} accuracy at step 350")
    assert (here, outcome) == ("0.25 against 0.35", FAILS)


def test_the_largest_batch_is_judged_by_searches_within_the_memory_of_that_gpu(pooled_claims):
    found = claims_on(pooled_claims, FASTAI, "o2_fp16 on 2080 Ti and 1080 Ti: largest batch")
    assert found == [("about 1.8x that of fp32", "736 in amp_fp16 against 384", HOLDS)]
    every = claims_on(pooled_claims, DPN, "o2_fp16 on Titan RTX: largest batch")  # none within 24 GiB
    assert [claim[1:] for claim in every] == [
        ("18,000 in amp_fp16 against 18,000", FAILS),
        ("736 in amp_fp16 against 384", HOLDS),
    ]


@pytest.mark.parametrize(
    ("found", "outcome"),
    [((1.0, 0.9, 1.9), HOLDS), ((2.5, 2.4, 2.6), HOLDS), ((1.0, 0.9, 1.7), FAILS), ((1.0,), FAILS)],
)
def test_the_largest_batch_holds_where_the_published_ratio_lies_in_the_resolution(found, outcome):
    assert outcome_of(RatioClaim("largest batch", "", 1.8, 0.03, []), Finding("", "", *found)) == outcome


def test_the_resolution_of_the_largest_batch_is_that_of_its_search(tmp_path):
    probes = tuple(
        [[300, "ok", 1.0, 1.0], [failing, "oom", 1.0, None], [300, "ok", 1.0, 2.0]] for failing in (320, 600)
    )
    values = {"model": "resnet50", "batch_size": "max", "memory_limit_gib": 11.0, "image_size": 64}
    known = {"batch_size_used": 300, "samples_per_epoch": 49_000, "dataset_used": "cifar100", "batch_probes": probes}
    write_pair(tmp_path, parameters=values, **known)
    published = judge_folder(tmp_path)
    ((_, here, outcome),) = claims_on(published, FASTAI, "o2_fp16 on 2080 Ti and 1080 Ti: largest batch")
    assert (here, outcome) == ("300 in amp_fp16 against 300: 0.94 to 2.00 times", HOLDS)


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
    largest = {**values, "model": "resnet50", "batch_size": "max", "memory_limit_gib": 11.0}
    known = {"batch_size_used": (300, 540), "samples_per_epoch": 49_000, "dataset_used": data}
    write_pair(tmp_path, (6.0, 5.0), parameters=largest, **known)
    write_pair(tmp_path, (6.0, 5.0), parameters={**values, "model": "resnet101"}, dataset_used=data)
    published = judge_folder(tmp_path)
    outcome = unknown(why) if why else HOLDS
    name = "o2_fp16 on 2080 Ti and 1080 Ti"
    ((_, here, told),) = claims_on(published, FASTAI, f"{name}: largest batch")
    assert (here, told) == ("540 in amp_fp16 against 300", outcome)
    times = claims_on(published, FASTAI, f"{name}: time")  # 1.18x and 1.13x, of this model on this data
    assert [told for *_, told in times] == ([outcome] * 2 if data == "cifar100" else [])


def test_part_of_an_epoch_is_enough_for_a_ratio_and_a_loader_needs_no_model(pooled_claims):
    times = claims_on(pooled_claims, FASTAI, "o2_fp16 on 2080 Ti and 1080 Ti: time")
    assert [claim[0] for claim in times] == ["fp32 takes 1.18x as long", "fp32 takes 1.13x as long"]
    assert {claim[1:] for claim in times} == {("amp_fp16 1.25x (1.25 to 1.25), faster", HOLDS)}
    ((_, here, outcome),) = claims_on(pooled_claims, WIDE, "amp_fp16: time with loader workers")
    assert (here, outcome) == (f"amp_fp16 1.00x (1.00 to 1.00), {SAME}", HOLDS)


@pytest.mark.parametrize(
    ("fields", "waiting"),
    [
        ({"data_wait_fraction": 0.06}, "6%"),  # the GPU is busy
        ({"gpu_busy_fraction": None, "data_wait_fraction": None}, "not known"),
        ({"gpu_busy_fraction": 0.3, "data_wait_fraction": 0.1}, "10%"),  # kernel launches
    ],
)
def test_a_loader_that_limits_nothing_tells_nothing_of_weak_cores(tmp_path, fields, waiting):
    values = {"batch_size": 512, "loader": "workers", "dataset": "cifar10"}
    write_pair(tmp_path, parameters=values, host_cores=32, **fields)
    published = judge_folder(tmp_path)
    ((_, here, outcome),) = claims_on(published, WIDE, "amp_fp16: time with loader workers")
    assert here == "amp_fp16 2.00x (2.00 to 2.00), faster"
    assert outcome.startswith(unknown("data loading does not limit these runs"))
    assert "host cores: 32" in outcome and f"waiting for data: {waiting}" in outcome


def test_inference_in_half_is_shown_once_for_each_model_on_images(pooled_claims):
    every = claims_on(pooled_claims, DPN, "o3_fp16 on Titan RTX: one image")
    assert len(every) == 5
    assert {said for said, *_ in every} == {"50 ms in fp32, 26 ms"}
    own = [claim[1:] for claim in every if claim[1].endswith("o3_fp16")]
    assert own == [("4.00 ms in fp32, 2.00 ms in o3_fp16", HOLDS)]
    assert any(claim[1].endswith(" ms in o2_fp16") for claim in every)  # dpn92, though a wide ResNet has o3_fp16


def test_what_was_only_drawn_is_shown_and_not_judged(pooled_claims):
    (drawn,) = pooled_claims.claims[WORDS]
    assert drawn["here"] == "amp_fp16 1.60x (1.60 to 1.60), faster; perplexity 191 against 191 in fp32"
    assert drawn["outcome"] == unknown("no figure was published")


def test_a_claim_of_a_mode_that_did_not_end_well_says_how_it_ended(tmp_path):
    values = {"model": "rnn_relu", "execution": "cuda_graph"}
    write_record(made_up.make("lstm_language_model", "fp32", seconds=[8.0] * 3, parameters=values), tmp_path)
    failed = made_up.make_failed("lstm_language_model", "amp_fp16", "diverged", "every step", parameters=values)
    write_record(failed, tmp_path)
    published = judge_folder(tmp_path)
    (drawn,) = published.claims[WORDS]
    assert drawn["here"] == "amp_fp16: diverged"
    finding = find_speedup(published.report, 0, "o2_fp16")
    assert (finding.text, finding.unknown) == ("o2_fp16: not run", NO_RATIO)


def test_of_an_articles_own_images_ratios_are_judged_and_times_not_shown(pooled_claims, pooled):
    rtx = claims_on(pooled_claims, EFFICIENT, "amp_fp16 on RTX 3090, b32")
    assert rtx[0] == ("0.79x as fast as fp32", "1.50x (1.50 to 1.50), faster", FAILS)
    assert (rtx[1][0], rtx[1][2]) == ("36% less", HOLDS)
    assert claims_on(pooled_claims, EFFICIENT, "amp_fp16 on V100")[0][2] == HOLDS
    assert all(claim["runs here"].endswith(", other images") for claim in pooled_claims.claims[EFFICIENT])
    assert EFFICIENT not in pooled_claims.comparable
    assert f"published_{EFFICIENT.replace('-', '_')}" not in pooled[1]
