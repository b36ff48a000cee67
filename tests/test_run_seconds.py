"""The table of where the seconds of a run went."""

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest
from conftest import ROOT

from mixed_precision_study.record import RunRecord, write_record

PARAMETERS = {"model": "resnet18", "execution": "eager", "batch_size": 128, "seed": 0}
SCRIPT = ROOT / "benchmarks" / "run_seconds.py"


def call(*words):
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, check=False)


def test_the_parts_of_a_run_add_up_to_the_whole(tmp_path):
    record = RunRecord("a-run", "cifar_resnet", "fp32", PARAMETERS, status="ok")
    for part in ("import", "preflight", "data", "model", "warmup"):
        setattr(record, f"startup_{part}_seconds", 1.0)
    record.epoch_seconds = [2.0, 2.5]
    record.search_seconds = 0.5  # within the warm-up: counted once
    record.evaluation_seconds = 1.5
    write_record(record, tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "batch.json").write_text(json.dumps({"run_seconds": {"a-run": 20.0}}))
    head, _, row = call(tmp_path).stdout.splitlines()
    cells = dict(zip(head.strip("| ").split(" | "), row.strip("| ").split(" | "), strict=True))
    assert cells["run"] == "cifar_resnet resnet18 eager fp32"
    assert (cells["whole"], cells["training"], cells["evaluation"], cells["explanation"]) == ("20.0", "4.5", "1.5", "-")
    assert float(cells["rest"]) == pytest.approx(20 - 5 - 4.5 - 1.5)
    assert cells["search"] == "0.5"


def test_start_and_end_of_a_run_come_from_the_log_and_the_executed_notebook(tmp_path):
    record = RunRecord("a-run", "cifar_resnet", "fp32", PARAMETERS, status="ok", epoch_seconds=[4.0])
    write_record(record, tmp_path)
    began = datetime(2026, 5, 1, 12, 0, 0, 500_000).astimezone()
    first_cell = (began + timedelta(seconds=1.5)).astimezone(timezone.utc)
    times = {"start_time": first_cell.isoformat(), "duration": 7.0}
    (tmp_path / "a-run.ipynb").write_text(json.dumps({"metadata": {"papermill": times}}))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "batch.json").write_text(json.dumps({"run_seconds": {"a-run": 10.0}}))
    lines = ["2026-05-01 11:00:00,000  cuda:0  a-run  begins", "2026-05-01 12:00:00,500  cuda:0  a-run  begins"]
    (tmp_path / "logs" / "batch.log").write_text("\n".join(lines))
    head, _, row = call(tmp_path).stdout.splitlines()
    cells = dict(zip(head.strip("| ").split(" | "), row.strip("| ").split(" | "), strict=True))
    assert (cells["start"], cells["training"], cells["end"]) == ("1.5", "4.0", "1.5")
    assert cells["rest"] == "3.0"  # 7 s of cells, of which 4 s of training


def test_equal_runs_are_one_row_of_medians_and_what_explains_is_another(tmp_path):
    seconds = {"one": 10.0, "two": 14.0, "three": 40.0, "four": 9.0}
    for run_id, purpose in zip(seconds, ("time", "time", "time", "explain"), strict=True):
        record = RunRecord(run_id, "cifar_resnet", "fp32", {**PARAMETERS, "purpose": purpose}, status="ok")
        record.epoch_seconds = [4.0]
        record.startup_import_seconds = 2.0 if run_id == "one" else None
        write_record(record, tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "batch.json").write_text(json.dumps({"run_seconds": seconds}))
    head, _, *rows = call(tmp_path).stdout.splitlines()
    names = head.strip("| ").split(" | ")
    cells = {row["run"]: row for row in (dict(zip(names, text.strip("| ").split(" | "), strict=True)) for text in rows)}
    timed = cells["cifar_resnet resnet18 eager fp32"]
    assert (timed["n"], timed["whole"], timed["import"]) == ("3", "14.0", "2.0")
    assert cells["cifar_resnet resnet18 eager fp32 explained"]["whole"] == "9.0"


def test_rows_of_other_scalers_and_compile_modes_are_not_mixed(tmp_path):
    others = ({}, {"scaler": "device"}, {"compile_mode": "coordinate-descent"})
    for number, other in enumerate(others):
        record = RunRecord(f"run-{number}", "cifar_resnet", "amp_fp16", {**PARAMETERS, **other}, status="ok")
        record.epoch_seconds = [4.0]
        write_record(record, tmp_path)
    names = {row.strip("| ").split(" | ")[0] for row in call(tmp_path).stdout.splitlines()[2:]}
    name = "cifar_resnet resnet18 eager amp_fp16"
    assert names == {name, f"{name} device scaler", f"{name} coordinate-descent"}


def test_a_wrong_folder_is_one_sentence(tmp_path):
    for words in ((), (tmp_path / "none",)):
        done = call(*words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
