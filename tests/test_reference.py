"""The records in outputs/: complete, measured on a GPU on real data, small, and without folders of a machine."""

import functools
import os
import re
import zipfile

import pytest
from conftest import ROOT, results
from equal_runs import equal_runs, false_positive_rate

import outputs
from mixed_precision_study.record import is_explanation, read_records

OUTPUTS = ROOT / "outputs"
FOREIGN = r"(?<![\w.])/(home|root|tmp|opt|usr|work|mnt)/\w+"  # a folder of a machine


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


WHOLE = "first-h200 ladder-h200 fastest-h200 fastest-h100 modern-h100 quality-h100 aa-h100 scaling-h200 order-h200"
WHOLE += " inference-h200 quick-h100 quick-earlier-h100 reference-h100 reference-h200 quick-h200 graph-quality-h200"
WHOLE += " neighbour-h200 executed-h100"


@pytest.mark.parametrize("name", WHOLE.split())
def test_every_run_ended_well_on_an_undisturbed_gpu_and_real_data(name):
    assert len(read_folder(name)) >= 10
    for record in read_folder(name):
        assert (record["status"], record["synthetic"], record["gpu_shared"]) == ("ok", False, False)
        assert name.rpartition("-")[2].upper() in record["gpu_name"]
        assert is_explanation(record) or len(record["epoch_seconds"]) == record["epochs"] * record["repeats"]


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


@pytest.mark.parametrize("name", ["first-h200", "published"])
def test_what_was_measured_twice_agrees(name):
    """Events with the clock, and the parts of the memory with NVML's figure."""
    for record in (one for one in read_folder(name) if one["status"] == "ok"):
        assert [record[f"{part}_reason"] for part in ("profile", "limit", "ledger", "energy", "card")] == [None] * 5
        assert abs(sum(record["block_seconds"]) / sum(record["epoch_seconds"]) - 1) < 0.02
        assert abs(record["ledger_error_fraction"]) < 0.034
        assert sum(share for _, share in record["kernel_family_fractions"]) == pytest.approx(1)
        assert 0 < record["compute_limit_fraction"] < 1 and record["joules_per_1000_samples"] > 0


def test_equal_runs_are_told_apart_no_more_often_than_the_rules_allow(monkeypatch):
    monkeypatch.setattr("equal_runs.MOST_SPLITS", 400)
    groups = equal_runs(read_folder("aa-h100"))
    assert [len(runs) for runs in groups] == [24, 24, 24]
    for runs in groups:
        found = false_positive_rate(runs)
        assert found["splits"] == 400 and found["rate"] <= 0.05 + found["error"]
