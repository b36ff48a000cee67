"""The records in outputs/: complete, measured on a GPU on real data, small, and without folders of a machine."""

import functools
import itertools
import os
import re
import subprocess
import zipfile

import figures
import pytest
from conftest import ROOT, results
from equal_runs import equal_runs, false_positive_rate

import outputs
from mixed_precision_study.judge.ratios import paired_ratio
from mixed_precision_study.judge.verdict import DIFFERENT, NOT_TRAINED, OTHER_CONDITIONS, TOO_SHORT, judge
from mixed_precision_study.record import comparison_key, is_explanation, read_records
from mixed_precision_study.report.growth import families_of, judge_loss, pairs_of
from mixed_precision_study.report.tables import group, read_tables

OUTPUTS = ROOT / "outputs"
FOREIGN = r"(?<![\w.])/(home|root|tmp|opt|usr|work|mnt)/\w+"  # a folder of a machine
NO_OUTCOME = {NOT_TRAINED, OTHER_CONDITIONS, TOO_SHORT}


@functools.cache
def read_folder(name):
    """Return the records of committed results, all of which must be readable."""
    records, left_out = read_records(results(name))
    assert left_out == []
    return records


def test_there_are_few_files_and_each_folder_has_a_report_and_a_short_readme():
    assert len([path for path in OUTPUTS.rglob("*") if path.is_file()]) <= 150
    folders = [path.parent for path in OUTPUTS.glob("*/*/README.md")]
    assert 10 < len(folders) < 15  # and checks
    for folder in folders:
        needed = {"records.zip", "notes.md", "study.yaml", "summary.ipynb", "summary.html", "trainings.csv"}
        assert needed <= {path.name for path in folder.iterdir()}
    for folder in (*folders, OUTPUTS / "checks"):
        text = (folder / "README.md").read_text(encoding="utf-8")
        assert len(re.findall(r"[^\s|]+", text)) <= 150
        assert re.findall(r"!\[.+\]\((.+)\)", text) == ["picture.png"] and text.count("\n|---") == 1
    assert sum(path.stat().st_size for path in OUTPUTS.rglob("*") if path.is_file()) < 15_000_000


def texts():
    """Yield (name, text) of every committed file of results, also in zips, but for pictures."""
    for path in OUTPUTS.rglob("*.*"):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
                assert [one.filename for one in entries] == sorted(one.filename for one in entries)
                assert {one.date_time for one in entries} == {outputs.DATE}
                yield from ((f"{path}/{one.filename}", archive.read(one)) for one in entries)
        else:
            yield str(path), path.read_bytes()


def test_no_file_names_a_folder_of_a_machine_and_zips_are_sorted_and_have_one_date():
    found = {name: re.search(FOREIGN, text.decode()) for name, text in texts() if not name.endswith(".png")}
    assert len(found) > 1000
    assert {name: match[0] for name, match in found.items() if match} == {}


NUMBERS = {  # folder: its records
    **{"first-h200": 12, "ladder-h200": 58, "fastest-h200": 32, "fastest-h100": 37, "modern-h100": 22},
    **{"quality-h100": 134, "aa-h100": 72, "scaling-h200": 30, "order-h200": 10, "inference-h200": 30},
    **{"quick-h100": 12, "quick-earlier-h100": 12, "reference-h100": 117, "reference-h200": 96, "quick-h200": 12},
    **{"graph-quality-h200": 27, "neighbour-h200": 11, "executed-h100": 12},
}


@pytest.mark.parametrize("name", NUMBERS)
def test_every_run_ended_well_on_an_undisturbed_gpu_and_real_data(name):
    records = read_folder(name)
    assert len(records) == NUMBERS[name]
    for record in records:
        assert (record["status"], record["synthetic"], record["gpu_shared"]) == ("ok", False, False)
        assert name.rpartition("-")[2].upper() in record["gpu_name"]
        assert is_explanation(record) or len(record["epoch_seconds"]) == record["epochs"] * record["repeats"]


@pytest.mark.parametrize(("name", "epochs"), [("crossover-h100", 4), ("crossover-h200", 9)])
def test_each_size_of_the_crossover_ran_on_one_gpu_and_only_fp8_at_200_units_did_not_run(name, epochs):
    records = [record for record in read_folder(name) if record["max_steps"]]
    sizes = {}
    for record in records:
        sizes.setdefault((record["model"], record.get("units")), []).append(record)
        unsupported = (record.get("units"), record["precision"]) == (200, "fp8")
        assert (record["status"], record["synthetic"]) == ("unsupported" if unsupported else "ok", False)
        assert not record["gpu_shared"]
        assert record["model"] != "transformer" or record["epochs"] == epochs
    assert len([size for size in sizes if size[0] == "transformer"]) == 6
    for runs in sizes.values():
        assert len(runs) == 15 and len({run["gpu_uuid"] for run in runs}) == 1


def test_on_the_whole_text_fp8_is_faster_at_2048_and_its_loss_within_the_bar():
    tables = read_tables(results("crossover-h200"))
    (family,) = (one for one in families_of(tables) if one.model.iloc[0] == "transformer")
    fp8 = pairs_of(tables, family).set_index(["precision", "size"]).loc[("fp8", 2048)]
    runs = {name: tables.runs(fp8.loss_comparison, name) for name in ("fp8", "amp_bf16", "bf16_true")}
    assert {len(run["epoch_seconds"]) for run in runs["fp8"]} == {4}
    assert tables.between(runs["fp8"], runs["amp_bf16"])["outcome"] == "faster"
    assert fp8.loss_outcome == "within"
    assert judge_loss(runs["bf16_true"], runs["amp_bf16"])["loss_outcome"] == "outside"


def same_runs():
    """Return lists of ok runs on a GPU that differ in seed, repetition and process alone, in the order of their start.

    The study of several GPUs has most of them: the same LSTM again and again.
    """
    alike = {}
    for name in ("first-h200", "ladder-h200", "graph-quality-h200", "published", "batches-h200"):
        for record in read_folder(name):
            if record["status"] == "ok" and record["batch_size"] != "max":
                key = (name, record["precision"], record["commit"], comparison_key(record))
                alike.setdefault(key, []).append(record)
    return [sorted(runs, key=lambda run: run["started_at"]) for runs in alike.values() if len(runs) > 1]


def test_no_stored_run_is_called_faster_than_another_process_of_the_same():
    pairs = [pair for runs in same_runs() for pair in itertools.combinations(runs, 2)]
    assert len(pairs) > 70
    assert {judge(paired_ratio([pair])) for pair in pairs} <= {"one process", *NO_OUTCOME}


def test_three_stored_runs_are_seldom_called_faster_than_three_others_of_the_same():
    words = []
    for runs in (runs for runs in same_runs() if len(runs) >= 6):
        for chosen in itertools.combinations(range(6), 3):
            others = sorted(set(range(6)) - set(chosen))
            pairs = [(runs[a], runs[b]) for a, b in zip(chosen, others, strict=True)]
            words.append(judge(paired_ratio(pairs)))
    assert len(words) >= 20
    assert sum(word in DIFFERENT for word in words) <= 0.1 * len(words)


def test_what_a_report_writes_beside_committed_records_is_ignored():
    names = ("main/quick-h100/time_and_memory.png", "main/quick-h100/logs/summary.log", "checks/logs/summary.log")
    paths = [f"outputs/{name}" for name in names]
    done = subprocess.run(["git", "check-ignore", "--no-index", *paths], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == paths
    kept = [f"outputs/more/modern-h100/{name}" for name in ("records.zip", "summary.ipynb", "picture.png")]
    assert subprocess.run(["git", "check-ignore", *kept], cwd=ROOT, capture_output=True).returncode == 1


@pytest.mark.parametrize("folder", ["quick-h200", "reference-h100"])
def test_no_committed_record_reaches_more_than_its_matmul_or_uses_less_than_its_reserve(folder):
    for record in read_tables(results(folder)).trainings.record:
        if (fraction := record["compute_limit_fraction"]) is not None:
            reached = record["achieved_tflop_per_second"] / record["ceiling_matmul_tflop_per_second"]
            assert fraction == pytest.approx(reached, rel=1e-6)
        if None not in (record["device_used_mib"], record["peak_reserved_mib"]):
            assert record["device_used_mib"] >= record["peak_reserved_mib"]


def test_a_zip_is_written_only_where_a_file_has_changed(tmp_path):
    archive, record = tmp_path / "records.zip", tmp_path / "b" / "one.json"
    record.parent.mkdir()
    written = []
    for text in ("1", "1", "2"):
        record.write_text(text)
        outputs.zip_files(archive, [record])
        written.append(archive.stat().st_mtime > 1)
        os.utime(archive, (1, 1))
    assert written == [True, False, True] and not record.exists()
    (tmp_path / "a.json").write_text("3")
    outputs.zip_files(archive, [tmp_path / "a.json"])
    with zipfile.ZipFile(archive) as opened:
        assert {name: opened.read(name) for name in opened.namelist()} == {"a.json": b"3", "b/one.json": b"2"}


def test_pages_are_copied_with_an_index_that_has_their_titles(tmp_path, monkeypatch):
    folder = tmp_path / "outputs" / "main" / "quick"
    folder.mkdir(parents=True)
    for name, text in (("summary.ipynb", "{}"), ("summary.html", "<h1>Faster</h1>"), ("ratios.csv", "a")):
        (folder / name).write_text(text)
    monkeypatch.setattr(outputs, "OUTPUTS", tmp_path / "outputs")
    outputs.main(["--pages", str(tmp_path / "site")])
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert '<a href="main/quick/summary.html">Faster</a>' in index
    assert (tmp_path / "site" / "main" / "quick" / "ratios.csv").read_text() == "a"


@pytest.mark.parametrize("name", ["first-h200", "published"])
def test_what_was_measured_twice_agrees(name):
    """Events with the clock, and the parts of the memory with NVML's figure."""
    for record in (one for one in read_folder(name) if one["status"] == "ok"):
        assert [record[f"{part}_reason"] for part in ("profile", "limit", "ledger", "energy", "card")] == [None] * 5
        assert abs(sum(record["block_seconds"]) / sum(record["epoch_seconds"]) - 1) < 0.02
        assert abs(record["ledger_error_fraction"]) < 0.034
        assert sum(share for _, share in record["kernel_family_fractions"]) == pytest.approx(1)
        assert 0 < record["compute_limit_fraction"] < 1 and record["joules_per_1000_samples"] > 0


def test_what_a_process_of_its_own_explained_reaches_the_timed_runs():
    records = [dict(record) for record in read_folder("reference-h100")]
    explained = {}
    for run, _ in group(records, {}):  # it fills records in
        if not is_explanation(run):
            key = (run["model"], run["execution"])
            known = bool(run["kernel_family_fractions"] and run["ledger_activations_mib"])
            explained[key] = explained.get(key, 0) + known
    assert explained == {
        (model, way): 12 for model in ("resnet18", "tf_efficientnet_b0") for way in ("eager", "cuda_graph")
    } | {
        ("lstm", "eager"): 24,
        ("lstm", "cuda_graph"): 21,
    }


@pytest.mark.parametrize("folder", figures.CARDS)
def test_cuda_graphs_repeat_within_two_percent_and_amp_gains_over_tf32(folder):
    """On a card they repeat within 1.2%; EfficientNet ran on two cards of the H200's folder."""
    graphs = figures.bars(OUTPUTS, (folder,), "CUDA graph")
    assert (graphs.runs >= 3).all() and ((graphs.seconds_high / graphs.seconds_low).astype(float) < 1.021).all()
    best = graphs[graphs.precision.isin(figures.AMP)].sort_values("ratio").groupby("model").tail(1)
    assert len(best) == 3 and (best.low > 1.25).all() and (best.high < 1.55).all()


def test_equal_runs_are_told_apart_no_more_often_than_the_rules_allow(monkeypatch):
    monkeypatch.setattr("equal_runs.MOST_SPLITS", 400)
    groups = equal_runs(read_folder("aa-h100"))
    assert [len(runs) for runs in groups] == [24, 24, 24]
    for runs in groups:
        found = false_positive_rate(runs)
        assert found["splits"] == 400 and found["rate"] <= 0.05 + found["error"]
