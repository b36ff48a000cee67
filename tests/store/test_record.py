"""The run record: names, writing, reading, comparing."""

import json
import math
import os
import zipfile
from unittest.mock import Mock

import made_up_records as made_up
import pytest
from conftest import CASES, ROOT, read_json, results
from nested import PARAMETERS, changed, make, sound

from mixed_precision_study import __version__
from mixed_precision_study.report.files import sort_out
from mixed_precision_study.report.tables import read_tables
from mixed_precision_study.store import reading
from mixed_precision_study.store import record as records


def test_the_name_depends_on_every_parameter_but_the_folders():
    name = records.run_id_of("cifar_resnet", PARAMETERS, "fp32")
    assert name.startswith("cifar_resnet-resnet18-auto-fp32-b128-s0-")
    same = [{"data_dir": "x"}, {"output_dir": "y"}, {"precisions": ["fp32", "tf32"]}]
    assert {
        records.run_id_of("cifar_resnet", {**PARAMETERS, **change}, "fp32") for change in same
    } == {name}
    other = [{"lr": 0.2}, {"seed": 1}, {"batch_size": 64}, {"model": "resnet34"}, {"extra": 1}]
    names = {
        records.run_id_of("cifar_resnet", {**PARAMETERS, **change}, "fp32") for change in other
    }
    names |= {
        records.run_id_of("cifar_resnet", PARAMETERS, "tf32"),
        records.run_id_of("lstm", PARAMETERS, "fp32"),
    }
    assert len(names | {name}) == 8
    safe = records.run_id_of(
        "n", {**PARAMETERS, "model": "../a b/c:d", "csv_path": "/etc/x.csv"}, "fp32"
    )
    assert "/" not in safe and "-csv-" in safe


def test_a_record_is_nested_and_reads_back(tmp_path):
    """Without what is too long, and without NaN, which JSON lacks."""
    record = make(
        status="diverged", train_loss=[1.5, math.nan], chance_metric=math.inf, overflow_steps=[3]
    )
    record.kernel_family_fractions = [["convolution", 0.7]]
    record.step_ms_all, record.data_wait_seconds_all = [1.0] * 1000, [0.1]
    record.card_samples_all = [{"seconds": 1.0, "joules": None, "samples": [{"pids": [1]}] * 1000}]
    path = records.write_record(record, tmp_path / "new")
    written = read_json(path)
    assert list(written) == ["run", "settings", "machine", "measured", "quality"]
    assert not {"step_ms_all", "data_wait_seconds_all"} & set(written["measured"]["time"])
    quality = written["quality"]
    assert (quality["train_loss"], quality["chance_metric"]) == ([1.5, None], None)
    ((found,), left_out) = reading.read_records(tmp_path)
    assert (found["run_id"], left_out) == (path.stem, []) == (record.run_id, [])
    assert found["overflow_steps"] == [3]
    assert found["settings"] == written["settings"] == PARAMETERS


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    record = make(status="ok")
    path = records.write_record(record, tmp_path)
    before = path.read_text()
    monkeypatch.setattr(os, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    record.status = "failed"
    with pytest.raises(OSError):
        records.write_record(record, tmp_path)
    assert path.read_text() == before
    # and no temporary file is left
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


WRONG = {  # of every other field report/test_odd_records.py tries odd values
    "status": ["ok"],
    "gradient_flush_fraction_scaled": 10**400,
    "batch_probes": [[0, "ok", 0, 0]],
    "reason": "x" * 1_000_000,
    "study": {"show": {"over": "\0"}},
    "own": json.loads("[" * 300 + "]" * 300),
    "epochs": math.nan,
    "execution": 3,
    # The others contradict a sound field.
    "epoch_seconds": [],
    "block_seconds": [0.0],
    "metric_better": None,
    "peak_allocated_mib": 0,
    "data_on_device_mib": 1e300,  # in a smaller peak
    "schema_version": 99,
    "batch_size": "max",  # without the size that it became
}


@pytest.mark.parametrize("name, value", WRONG.items(), ids=lambda one: str(one)[:20])
def test_a_wrong_field_is_told_and_costs_no_other_record(tmp_path, name, value):
    good = sound()
    paths = [tmp_path / folder / f"{good['run']['run_id']}.json" for folder in ("bad", "good")]
    for path, one in zip(paths, (changed(good, **{name: value}), good), strict=True):
        path.parent.mkdir()
        path.write_text(json.dumps(one))
    found, unusable = reading.read_records(tmp_path)
    assert [one["path"].partition("/")[0] for one in found] == ["good"]
    ((path, reason),) = unusable
    assert path.startswith("bad/") and name in reason.replace(" v", "_v") and len(reason) < 400
    read = records.read_run(paths[1])
    assert records.read_run(paths[0]) is None and read["settings"] == PARAMETERS


def key(precision="fp32", gpu="H200", used="cifar10", **parameters):
    record = make(precision, gpu_name=gpu, dataset_used=used, parameters=parameters)
    return records.comparison_key(records.flat_record(record))


def test_only_equal_conditions_are_compared():
    assert key("tf32", seed=3, output_dir="z") == key() == key(dataset="cifar10")
    for other in (
        {"gpu": "T4"},
        {"batch_size": 64},
        {"lr": 0.2},
        {"model": "resnet34"},
        {"used": "synthetic"},
    ):
        assert key(**other) != key()
    # older records lack the parameter, and trained so
    assert key(cudnn_benchmark=True) == key(checkpointing=False) == key()
    for usual, other in (
        ({"moments": "as_weights"}, {"moments": "fp32"}),
        ({"fused": False}, {"fused": True}),
        ({"checkpointing": 0}, {"checkpointing": 1}),
    ):
        assert key(**usual) == key() != key(**other)
    # a run that ended before it had its data
    assert key(used=None, dataset="cifar10") == key() != key(used=None)
    known, unknown = (records.flat_record(make(data_fingerprint=one)) for one in ("a", None))
    assert records.comparison_key(unknown) != records.comparison_key(known)


@pytest.mark.parametrize(
    "before, status, after, others",
    CASES["records of other data"],
)
def test_a_record_is_replaced_by_one_of_the_same_data_only(tmp_path, before, status, after, others):
    times = {"epoch_seconds": [1.0], "peak_allocated_mib": 2.0}
    records.write_record(
        make(data_fingerprint=before, status=status, reason="old", **times), tmp_path
    )
    for _ in range(2):
        new = make(data_fingerprint=after, status="ok", reason="new", **times)
        records.write_record(new, tmp_path)
    found = {path.stem: read_json(path)["run"] for path in tmp_path.iterdir()}
    assert {stem: one["run_id"] for stem, one in found.items()} == {stem: stem for stem in found}
    assert found.pop(new.run_id)["reason"] == "new"
    assert [one["reason"] for one in found.values()] == ["old"] * others
    assert all(stem.startswith(f"{new.run_id}-") for stem in found)


def compared(folder, change):
    """Return (comparisons, ratios) of four records, each changed as JSON by change(number,
    record).
    """
    for number, precision in enumerate(("fp32", "tf32", "amp_fp16", "amp_bf16")):
        record = made_up.make("cifar_resnet", precision, temperature_celsius_max=40.0 + number)
        value = record.model_dump(warnings=False)
        change(number, value)
        (folder / f"{number}.json").write_text(json.dumps(value))
    tables = read_tables(folder)
    return len(tables.comparisons), len(tables.ratios)


CHANGES = {
    "none": lambda number, value: None,
    "a field that another version adds": lambda number, value: value["measured"].update(
        pcie_gb=20.0 + number
    ),
    "a section that another version adds": lambda number, value: value.update(
        network={"hosts": number}
    ),
    "a field that this version lacks": lambda number, value: value["measured"]["energy"].pop(
        "temperature_celsius_max"
    ),
    "a field in another place": lambda number, value: value["run"].update(
        max_temperature=40.0 + number
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_field_more_or_less_changes_no_comparison(tmp_path, change):
    assert compared(tmp_path, change) == (1, 5)


@pytest.mark.parametrize(
    "name", ["gradient_accumulation_steps", "epoch_seconds", "notebook", "settings", "path"]
)
def test_a_parameter_with_the_name_of_a_field_is_told_apart(tmp_path, name):
    times = {"status": "ok", "epoch_seconds": [1.5], "peak_allocated_mib": 2.0}
    for record in [make(parameters={name: value}, **times) for value in (1, 16)]:
        records.write_record(record, tmp_path)
    found, _ = reading.read_records(tmp_path)
    assert sorted(one["settings"][name] for one in found) == [1, 16]
    assert len({records.comparison_key(one) for one in found}) == 2
    assert [(one["epoch_seconds"], one["notebook"]) for one in found] == [
        ([1.5], "cifar_resnet")
    ] * 2


@pytest.mark.release
def test_records_of_0_3_are_lifted(tmp_path):
    """The zip holds records as version 0.3 wrote them: four of hosts-h200, which lie there in
    their nested form now.
    """
    with zipfile.ZipFile(ROOT / "tests/records-0.3.zip") as archive:
        flat = [json.loads(archive.read(name)) for name in archive.namelist()]
    now = {one["run_id"]: one for one in reading.read_records(results("hosts-h200"))[0]}
    # which a record of 0.3 does not tell
    names = {"path", "model_title", "data_title", "metric_target"}
    for value in flat:
        record, other = records.flat_record(records.record_of(value)), now[value["run_id"]]
        assert {name: one for name, one in record.items() if name not in names} == {
            name: one
            for name, one in other.items()
            if name not in names and name not in ("fp8_scaling", "fp16_accumulation")
        }
        assert records.comparison_key(record) == records.comparison_key(other)
    (tmp_path / "old.json").write_text(json.dumps({**flat[0], "package_version": "0.2.0"}))
    ((_, reason),) = reading.read_records(tmp_path)[1]
    assert "0.2.0" in reason


def test_a_result_of_another_version_moves_aside(tmp_path):
    times = {"status": "ok", "epoch_seconds": [1.0], "peak_allocated_mib": 2.0}
    records.write_record(make(package_version="0.3.0", reason="old", **times), tmp_path)
    path = records.write_record(make(package_version=__version__, **times), tmp_path)
    aside = tmp_path / "other_code-0.3.0" / path.name
    assert (records.load(path).reason, records.load(aside).reason) == (None, "old")


@pytest.mark.parametrize(
    "before, after, count",
    [
        ({"model": "a"}, {"model": "a"}, 1),
        ({"model": "a"}, {"model": "b"}, 2),
        (None, {"model": "b"}, 2),
    ],
)
def test_a_sound_record_of_another_identity_is_kept(tmp_path, before, after, count):
    times = {"epoch_seconds": [1.0], "peak_allocated_mib": 2.0, "data_fingerprint": "aa"}
    records.write_record(make(identity=before, status="ok", **times), tmp_path)
    for status in ("failed", "ok", "failed"):
        records.write_record(make(identity=after, status=status, **times), tmp_path)
    found, left_out = reading.read_records(tmp_path)
    assert (len(found), left_out) == (count, [])
    assert (
        len({record["run_id"] for record in found})
        == len({records.comparison_key(one) for one in found})
        == count
    )
    assert [one["status"] for one in found if one["identity"] == before] == [
        "ok" if count == 2 else "failed"
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"metric": [1e301], "metric_better": "lower"},
        {"metric": [0.5]},
        {"chance_metric": object()},
        {"metric_name": "a" * 3000},
        {"batch_size_used": "many"},
    ],
)
def test_what_the_reader_refuses_is_written_as_a_failed_run(tmp_path, wrong):
    record = make(status="ok", epoch_seconds=[1.0], data_fingerprint="aa", **wrong)
    path = records.write_record(record, tmp_path)
    found, left_out = reading.read_records(tmp_path)
    used, contradicting = sort_out(found)
    assert ([one["run_id"] for one in used], left_out, contradicting) == ([path.stem], [], [])
    assert used[0]["status"] == record.status == "failed" and used[0]["reason"] == record.reason
    assert records.read_run(path)["data_fingerprint"] == "aa"
