"""The run record: names, writing, reading, comparing."""

import json
import math
import os
import zipfile

import pytest

from mixed_precision_study import record as records

PARAMETERS = {
    "dataset": "auto",
    "model": "resnet18",
    "precisions": ["fp32"],
    "batch_size": 128,
    "lr": 0.1,
    "seed": 0,
    "data_dir": "data",
    "output_dir": "outputs",
}


def make(precision="fp32", **facts):
    parameters = {**PARAMETERS, **facts.pop("parameters", {})}
    return records.new_record("cifar_resnet", parameters, precision, facts)


def test_the_name_is_readable_and_depends_on_every_parameter_but_the_folders():
    name = records.run_id_of("cifar_resnet", PARAMETERS, "fp32")
    assert name.startswith("cifar_resnet-resnet18-auto-fp32-b128-s0-")
    same = [{"data_dir": "x"}, {"output_dir": "y"}, {"precisions": ["fp32", "tf32"]}]
    assert {records.run_id_of("cifar_resnet", {**PARAMETERS, **change}, "fp32") for change in same} == {name}
    other = [{"lr": 0.2}, {"seed": 1}, {"batch_size": 64}, {"model": "resnet34"}, {"extra": 1}]
    names = {records.run_id_of("cifar_resnet", {**PARAMETERS, **change}, "fp32") for change in other}
    names |= {records.run_id_of("cifar_resnet", PARAMETERS, "tf32"), records.run_id_of("lstm", PARAMETERS, "fp32")}
    assert len(names | {name}) == 8


def test_a_name_is_a_safe_file_name():
    parameters = {**PARAMETERS, "model": "../a b/c:d", "dataset": "auto", "csv_path": "/etc/x.csv"}
    name = records.run_id_of("n", parameters, "fp32")
    assert "/" not in name
    assert "-csv-" in name


def test_a_record_is_flat_and_reads_back_without_what_is_too_long(tmp_path):
    record = make(status="ok", epoch_seconds=[1.5, math.nan], chance_metric=math.inf, overflow_steps=[3])
    record.kernel_family_fractions = [["convolution", 0.7]]
    record.step_ms_all, record.data_wait_seconds_all = [1.0] * 1000, [0.1]
    record.card_samples_all = [{"seconds": 1.0, "joules": None, "samples": [{"pids": [1]}] * 1000}]
    path = records.write_record(record, tmp_path / "new")
    assert path.name == f"{record.run_id}.json"
    flat = json.loads(path.read_text())
    assert set(flat) == set(records.RunRecord.__dataclass_fields__) - set(records.NOT_WRITTEN) | set(PARAMETERS)
    assert flat["lr"] == 0.1
    assert (flat["epoch_seconds"], flat["chance_metric"]) == ([1.5, None], None)  # JSON has no NaN
    assert (flat["kernel_family_fractions"], flat["overflow_steps"]) == ([["convolution", 0.7]], [3])
    found, left_out = records.read_records(tmp_path)
    assert [item["run_id"] for item in found] == [record.run_id]
    assert left_out == []


def test_what_explains_a_run_is_null_or_an_empty_list_until_it_is_measured():
    fields = records.DiagnosticFields.__dataclass_fields__
    first, second = make(), make("tf32")
    assert all(getattr(first, name) is None or getattr(first, name) == [] for name in fields)
    first.overflow_steps.append(1)
    assert second.overflow_steps == []  # no list is shared


UNITS = {"fraction", "mib", "seconds", "ms", "joules", "watts", "mhz", "celsius", "tflop", "gb", "flops", "bytes"}
UNITS |= {"kernels", "algorithms"}


def test_numbers_of_the_explanation_and_of_the_start_have_their_unit_in_their_name():
    fields = records.RunRecord.__dataclass_fields__
    names = [name for name, spec in records.DiagnosticFields.__dataclass_fields__.items() if "float" in str(spec.type)]
    names += [name for name in fields if name.startswith(("startup_", "search_")) and not name.endswith("_reason")]
    assert [name for name in names if not UNITS & set(name.split("_"))] == []


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    record = make(status="ok")
    path = records.write_record(record, tmp_path)
    before = path.read_text()

    def disk_full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", disk_full)
    record.status = "failed"
    with pytest.raises(OSError, match="No space"):
        records.write_record(record, tmp_path)
    assert path.read_text() == before
    assert [item.name for item in tmp_path.iterdir()] == [path.name]  # and no temporary file is left


def test_reading_says_what_it_left_out(tmp_path):
    good = make(status="ok")
    records.write_record(good, tmp_path / "deep" / "er")
    (tmp_path / "cut.json").write_text('{"run_id": "x", "status"')
    (tmp_path / "strange.json").write_text(json.dumps({**vars(good), **PARAMETERS, "status": "fine"}))
    (tmp_path / "short.json").write_text('{"run_id": "x"}')
    (tmp_path / "other.json").write_text('{"cells": []}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "broken.zip").write_bytes(b"PK no")
    hidden = tmp_path / ".ipynb_checkpoints"
    hidden.mkdir()
    (hidden / "x.json").write_text("{")
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.write(tmp_path / "deep" / "er" / f"{good.run_id}.json", "inside/a.json")
    found, left_out = records.read_records(tmp_path)
    assert sorted(item["path"] for item in found) == [f"deep/er/{good.run_id}.json", "more.zip/inside/a.json"]
    reasons = dict(left_out)
    assert set(reasons) == {"cut.json", "strange.json", "short.json", "broken.zip"}
    assert "not readable as JSON" in reasons["cut.json"]
    assert "unknown status 'fine'" in reasons["strange.json"]
    assert "lacks notebook" in reasons["short.json"]


def test_only_equal_conditions_are_compared():
    def flat(precision="fp32", gpu="H200", **parameters):
        return records.flat_record(make(precision, gpu_name=gpu, parameters=parameters))

    key = records.comparison_key(flat())
    assert records.comparison_key(flat("tf32", seed=3, output_dir="z")) == key
    for other in (flat(gpu="T4"), flat(batch_size=64), flat(lr=0.2), flat(model="resnet34")):
        assert records.comparison_key(other) != key


def test_the_data_that_were_used_are_compared_not_how_they_were_asked_for():
    def key(used, asked):
        return records.comparison_key(records.flat_record(make(dataset_used=used, parameters={"dataset": asked})))

    assert key("cifar10", "auto") == key("cifar10", "cifar10")
    assert len({key("cifar10", "auto"), key("synthetic", "auto"), key(None, "auto")}) == 3
    assert key(None, "cifar10") == key("cifar10", "auto")  # a run that ended before it had its data


def run(precision, metric, better="higher", chance=0.1, status="ok"):
    figures = {"metric": metric, "metric_better": better, "chance_metric": chance}
    return {"run_id": precision, "status": status, **figures}


@pytest.mark.parametrize(
    ("runs", "diverged"),
    [
        ([run("a", [0.2, 0.6]), run("b", [0.3, 0.1]), run("c", [0.12])], {"b"}),
        ([run("a", [150.0], "lower", 900.0), run("b", [910.0], "lower", 900.0)], {"b"}),
        ([run("a", [0.1]), run("b", [0.09])], set()),  # none learned
        ([run("a", []), run("b", [0.1], chance=None)], set()),
        ([run("a", [0.9]), run("b", [0.1], status="oom")], set()),
    ],
)
def test_a_run_at_chance_is_found_where_another_learned(runs, diverged):
    found = records.find_diverged(runs)
    assert set(found) == diverged
    assert all(found.values())


def test_a_failed_run_may_lack_what_a_comparison_with_chance_needs():
    assert records.find_diverged([{"run_id": "a", "status": "failed", "metric": [0.1], "chance_metric": 0.1}]) == {}
