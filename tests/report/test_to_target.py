"""The tables of time and energy to the same quality."""

from dataclasses import replace

import made_up_records as made_up
import pytest

from mixed_precision_study.record import write_record
from mixed_precision_study.report.load import load
from mixed_precision_study.report.section import Sentence, Table
from mixed_precision_study.report.time_to_target import section

HOT = {"throttled": True, "throttle_fractions": [["thermal, software", 0.9]]}


def make(folder, precision, seconds, metric, seed=0, **fields):
    record = made_up.make("cifar_resnet", precision, seconds=seconds, parameters={"seed": seed}, **fields)
    record.metric = metric
    write_record(record, folder)


@pytest.fixture
def report(tmp_path):
    make(tmp_path, "fp32", [10.0] * 3, [0.5, 0.93, 0.93])
    make(tmp_path, "fp32", [12.0] * 3, [0.5, 0.93, 0.93], seed=1)
    make(tmp_path, "tf32", [8.0] * 3, [0.5, 0.6, 0.93])
    make(tmp_path, "amp_fp16", [4.0] * 3, [0.5, 0.6, 0.7])
    return load(str(tmp_path))


def test_each_precision_has_its_way_to_the_target_and_slower_ways_are_named(report):
    parts = list(section(report))
    said = " ".join(part.text for part in parts if isinstance(part, Sentence))
    summary, every = (part.rows for part in parts if isinstance(part, Table))
    cells = {row["precision"]: (row["reached"], row["seconds of training"]) for row in summary}
    assert cells["fp32"][0] == "2 of 2"
    assert "22.0" in cells["fp32"][1] and "20 to 24" in cells["fp32"][1]
    assert cells["tf32"] == ("1 of 1", "24.0")
    assert cells["amp_fp16"] == ("0 of 1", "not reached")
    assert len(every) == 4
    assert "**tf32**" in said and "**amp_fp16**" in said


def test_a_run_that_heat_slowed_counts_for_the_epochs_alone(report, tmp_path):
    make(tmp_path, "tf32", [20.0] * 3, [0.5, 0.93, 0.93], seed=2, **HOT)
    parts = list(section(load(str(tmp_path))))
    summary, every = (part.rows for part in parts if isinstance(part, Table))
    (row,) = (row for row in summary if row["precision"] == "tf32")
    assert (row["reached"], row["epochs"], row["timed"]) == ("2 of 2", "2.50 (2 to 3)", 1)
    assert (row["seconds of training"], row["s per epoch"]) == ("24.0", "8.00")
    assert [row["seconds of training"] for row in every if row["seed"] == 2] == ["slowed by heat"]
    assert "heat did not slow" in " ".join(part.text for part in parts if isinstance(part, Sentence))
    assert "timed" not in next(part for part in section(report) if isinstance(part, Table)).rows[0]


def test_nothing_is_said_where_no_run_reaches_the_target(report):
    assert list(section(replace(report, target_metric=0.99))) == []
    assert [
        row["target"]
        for row in next(part for part in section(replace(report, target_metric=0.6)) if isinstance(part, Table)).rows
    ] == ["0.6"] * 3
