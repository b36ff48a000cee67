"""The table of where the seconds of a run went."""

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest
from conftest import ROOT

from mixed_precision_study.record import RunRecord, write_record

PARAMETERS = {"model": "resnet18", "execution": "eager", "batch_size": 128, "seed": 0}


def call(*words):
    command = [sys.executable, ROOT / "benchmarks" / "run_seconds.py", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rows_of(folder, seconds, *lines):
    """Return {name of a row: {column: text}} of the table of a folder whose runs took `seconds`."""
    (folder / "logs").mkdir()
    (folder / "logs" / "batch.json").write_text(json.dumps({"run_seconds": seconds}))
    (folder / "logs" / "batch.log").write_text("\n".join(lines))
    head, _, *rows = [line.strip("| ").split(" | ") for line in call(folder).stdout.splitlines()]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def write(folder, run_id, precision="fp32", parameters=(), **fields):
    record = RunRecord(run_id, "cifar_resnet", precision, {**PARAMETERS, **dict(parameters)}, status="ok")
    vars(record).update({"epoch_seconds": [4.0], **fields})
    write_record(record, folder)


def test_the_parts_of_a_run_add_up_to_the_whole(tmp_path):
    parts = {f"startup_{part}_seconds": 1.0 for part in ("import", "preflight", "data", "model", "warmup")}
    # The search is within the warm-up, so it counts once.
    write(tmp_path, "a-run", **parts, epoch_seconds=[2.0, 2.5], search_seconds=0.5, evaluation_seconds=1.5)
    began = datetime(2026, 5, 1, 12, 0, 0, 500_000).astimezone()
    first_cell = (began + timedelta(seconds=1.5)).astimezone(timezone.utc)
    times = {"start_time": first_cell.isoformat(), "duration": 15.0}
    (tmp_path / "a-run.ipynb").write_text(json.dumps({"metadata": {"papermill": times}}))
    lines = ["2026-05-01 11:00:00,000  gpu0  a-run  begins", "2026-05-01 12:00:00,500  gpu0  a-run  begins"]
    cells = rows_of(tmp_path, {"a-run": 20.0}, *lines)["cifar_resnet resnet18 eager fp32"]
    assert (cells["whole"], cells["training"], cells["evaluation"], cells["explanation"]) == ("20.0", "4.5", "1.5", "-")
    assert (cells["start"], cells["end"], cells["search"]) == ("1.5", "3.5", "0.5")
    assert float(cells["rest"]) == pytest.approx(15 - 5 - 4.5 - 1.5)


def test_equal_runs_are_one_row_of_medians_and_others_are_not_mixed_with_them(tmp_path):
    seconds = {"one": 10.0, "two": 14.0, "three": 40.0}
    for run_id in seconds:
        write(tmp_path, run_id, startup_import_seconds=2.0 if run_id == "one" else None)
    write(tmp_path, "old", parameters={"purpose": "explain"})  # it only explained, as no process does today
    for number, other in enumerate(({"scaler": "device"}, {"compile_mode": "coordinate-descent"})):
        write(tmp_path, f"other-{number}", "amp_fp16", other)
    rows = rows_of(tmp_path, seconds)
    timed = rows["cifar_resnet resnet18 eager fp32"]
    assert (timed["n"], timed["whole"], timed["import"]) == ("3", "14.0", "2.0")
    assert len(rows) == 3


def test_a_wrong_folder_is_one_sentence(tmp_path):
    done = call(tmp_path / "none")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
