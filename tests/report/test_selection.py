"""Which records are used: flaws, copies, records of the CPU, synthetic data, other code."""

import json
import shutil
import zipfile

import made_up_records as made_up
import pandas as pd
import pytest
from conftest import ROOT
from drawn_reports import flat, rows_in, said_in, write_all

from mixed_precision_study.report import results
from mixed_precision_study.report.files import sort_out
from mixed_precision_study.report.tables import device_name, group, read_tables
from mixed_precision_study.runner import status
from mixed_precision_study.store import commit
from mixed_precision_study.store.record import write_json


def test_opened_by_hand_it_finds_the_outputs(tmp_path, monkeypatch):
    write_all(tmp_path / "outputs/quick", made_up.make("cifar_resnet", "fp32"))
    (tmp_path / "notebooks").mkdir()
    for name in ("main/quick-h200", "checks/aa", "archive/old"):
        write_all(tmp_path / "outputs" / name, made_up.make("cifar_resnet", "tf32"))
    monkeypatch.chdir(tmp_path / "notebooks")
    tables = read_tables("outputs")
    assert (tables.folder, len(tables.trainings)) == ("../outputs", 1)
    write_all(tmp_path / "notebooks/outputs/your_model", made_up.make("cifar_resnet", "fp32"))
    assert read_tables("outputs").folder == "outputs"
    elsewhere = read_tables(
        ["outputs"], output_dir=tmp_path / "new"
    )  # as --report outputs asks for
    assert (elsewhere.folder, len(elsewhere.trainings)) == (str(tmp_path / "new"), 1)
    assert len(read_tables("../outputs/main/quick-h200").trainings) == 1


def test_files_that_are_no_records_are_named_but_not_the_suites(
    tmp_path,
):
    record, quick = made_up.make("cifar_resnet", "fp32"), tmp_path / "quick"
    write_all(quick, record)
    (quick / "logs").mkdir()
    write_json({"run_seconds": {record.run_id: 9.0}}, quick / status.TIMES_FILE)
    commit.keep_code(quick, {ROOT / "notebooks/cifar_resnet.ipynb"})
    shutil.make_archive(str(tmp_path / "uploaded"), "zip", quick)
    assert [
        path for path, reason in read_tables(tmp_path).left_out if "copy of" not in reason
    ] == []


def comparisons_in(records):
    return len({number for _, number in group(records, {})})


EARLY = {**made_up.NOT_STARTED, "gpu_uuid": None}


def test_run_killed_early_joins_its_comparison_if_it_is_certain():
    killed = made_up.make_failed("cifar_resnet", "tf32", "killed", "signal 9", **EARLY)
    both = [
        flat(made_up.make("cifar_resnet", "fp32", device=one), one["gpu_uuid"])
        for one in (made_up.H200, made_up.TURING)
    ]
    for records, uuid, number in ((both[:1], None, 1), (both, None, 3), (both, "GPU-2", 2)):
        killed.gpu_uuid = uuid  # run_all.py knows the GPU, not yet the data
        used, left_out = sort_out([flat(killed, "a"), *map(dict, records)])
        assert (left_out, comparisons_in(used)) == ([], number)
    assert sorted(map(device_name, used)) == ["H200", "RTX 2080 Ti", "RTX 2080 Ti"]


def test_real_data_and_runs_on_a_gpu_go_before_newer_ones():
    name, newer = "lstm_language_model", {"finished_at": "2030-01-01T00:00:00+00:00"}
    fake = made_up.make(name, "fp32", dataset_used="synthetic", synthetic=True, **newer)
    cpu = made_up.make(name, "fp32", device=made_up.CPU, **newer)
    used, left_out = sort_out(
        [flat(fake, "fake"), flat(cpu, "cpu"), flat(made_up.make(name, "fp32"), "real")]
    )
    assert [record["path"] for record in used] == ["real"]
    reasons = {path: reason.split(",")[0] for path, reason in left_out}
    assert reasons == {"fake": "synthetic data", "cpu": "ran on the CPU"}


def test_records_of_other_code_are_named_or_set_aside(tmp_path):
    def write(folder, code, day, precision):
        finished = f"2026-01-0{day}T00:00:00+00:00"
        write_all(
            tmp_path / folder,
            made_up.make("cifar_resnet", precision, code_hash=code, finished_at=finished),
        )

    write(".", "new", 3, "fp32")
    write("other_code-old", "old", 1, "tf32")  # not yet measured again
    write("elsewhere", "old", 2, "amp_fp16")
    write("elsewhere", None, 1, "amp_bf16")  # by hand, or before the hash was noted
    tables = read_tables(tmp_path)
    assert {one["precision"] for one in tables.other_code} == {"tf32", "amp_fp16"}
    assert set(tables.trainings.precision) == {"fp32", "amp_fp16", "amp_bf16"}
    section = results.method_section(tables)
    assert "2 records of 3" in said_in(section)
    switches = {
        row[""]: row["H200"] for row in rows_in(section)[-1] if row[""].startswith("switches")
    }
    ends = {"fp32": "off", "fp16 AMP": "float16", "bf16 AMP": "bfloat16"}
    assert switches == {
        f"switches, {name}": f"ieee / ieee / ieee, autocast {end}" for name, end in ends.items()
    }


@pytest.mark.parametrize("theirs", ["a", "a.zip", "../theirs"])
def test_a_later_date_from_elsewhere_replaces_no_record(tmp_path, theirs):
    """Of copies in one folder the newest stands; of others those in the folder that is read
    first.
    """
    mine = tmp_path / "mine"
    write_all(mine, made_up.make("cifar_resnet", "fp32"))
    (path,) = mine.glob("*.json")
    record = json.loads(path.read_text())
    (mine / "newer.json").write_text(
        json.dumps({**record, "finished_at": "2999-01-01T00:00:00+00:00"})
    )
    late = json.dumps(
        {**record, "finished_at": "9999-01-01T00:00:00+00:00", "epoch_seconds": [0.001]}
    )
    if theirs.endswith(".zip"):
        with zipfile.ZipFile(mine / theirs, "w") as archive:
            archive.writestr("x.json", late)
    else:
        (mine / theirs).mkdir()
        (mine / theirs / "x.json").write_text(late)
    places = [str(mine), str(tmp_path / "theirs")] if theirs.startswith("..") else str(mine)
    tables = read_tables(places)
    assert tables.trainings.path.tolist() == ["newer.json"]
    reasons = dict(tables.left_out)
    assert reasons[path.name] == "older copy of newer.json"
    assert reasons[f"{theirs}/x.json"].startswith("copy of newer.json")


def test_runs_of_no_clean_commit_are_counted(tmp_path):
    commits = ("a", "b-dirty", "b-dirty", None)
    for repeat, one in enumerate(commits):
        facts = {"parameters": {"repeat": repeat}, "commit": one}
        write_all(tmp_path, made_up.make("cifar_resnet", "fp32", **facts))
    tables = read_tables(tmp_path)
    # those of several arms stand in several rows
    tables.trainings = pd.concat([tables.trainings, tables.trainings])
    said = said_in(results.method_section(tables))
    told = "Of 4 runs, 2 came from a commit with local changes and 1 came from a commit that is not"
    assert f"{told} known" in said
