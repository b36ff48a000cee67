"""Other data under the same name: two runs, two records, never paired. From the notebook to the report."""

import json

import pytest
from conftest import run_cells
from made_up_data import make_tree, save_image

from mixed_precision_study import record as records
from mixed_precision_study.report.tables import read_tables

TINY = {"model": "test_resnet", "batch_size": 4, "epochs": 1, "max_steps": 2, "dataset": "folder", "image_size": 32}


def train(data_dir, output_dir, precision):
    given = {**TINY, "data_dir": str(data_dir), "output_dir": str(output_dir), "precisions": [precision]}
    return run_cells("cifar_resnet", "run", **given)["records"][0]


def test_two_folders_of_one_name_leave_two_records_that_are_never_paired(tmp_path):
    for place, value in (("a", 0), ("b", 200)):
        make_tree(tmp_path / place / "pets")
        save_image(tmp_path / place / "pets" / "train" / "cat" / "0.png", value)
    out = tmp_path / "out"
    first = train(tmp_path / "a" / "pets", out, "fp32")
    second = train(tmp_path / "b" / "pets", out, "fp32")
    third = train(tmp_path / "b" / "pets", out, "amp_bf16")
    assert {one.status for one in (first, second, third)} == {"ok"}
    assert first.run_id == second.run_id
    assert first.data_fingerprint != second.data_fingerprint == third.data_fingerprint
    assert first.data_files_hash != second.data_files_hash == third.data_files_hash
    found, left_out = records.read_records(out)
    assert {one["data_fingerprint"] for one in found} == {first.data_fingerprint, second.data_fingerprint}
    assert (len(found), left_out) == (3, [])
    assert len({one["run_id"] for one in found}) == 3
    tables = read_tables(str(out))
    groups = tables.trainings.record.map(lambda run: run["data_fingerprint"]).groupby(tables.trainings.comparison)
    assert groups.nunique().tolist() == [1, 1]
    assert not tables.left_out


def flat(**facts):
    parameters = {"dataset": "cifar10", "model": "m", "batch_size": 4, "seed": 0, "data_dir": "d", "output_dir": "o"}
    return records.RunRecord("x", "cifar_resnet", "fp32", parameters, dataset_used="cifar10", **facts)


def test_records_without_a_fingerprint_are_compared_among_themselves_only():
    old, other, new = (
        records.comparison_key(records.flat_record(flat(data_fingerprint=one))) for one in (None, None, "a")
    )
    assert old == other != new
    older = records.flat_record(flat())
    del older["data_fingerprint"]
    assert records.comparison_key(older) == old


@pytest.mark.parametrize(
    ("before", "status", "after", "files"),
    [
        ("aa", "ok", "bb", ["x-aa.json", "x.json"]),
        (None, "ok", "bb", ["x-unknown_data.json", "x.json"]),
        ("aa", "ok", "aa", ["x.json"]),
        (None, "ok", None, ["x.json"]),
        (None, "failed", "bb", ["x.json"]),
    ],
)
def test_a_record_is_replaced_by_one_of_the_same_data_only(tmp_path, before, status, after, files):
    times = {"epoch_seconds": [1.0], "peak_allocated_mib": 2.0}
    records.write_record(flat(data_fingerprint=before, status=status, reason="old", **times), tmp_path)
    for _ in range(2):
        records.write_record(flat(data_fingerprint=after, status="ok", reason="new", **times), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    kept = [json.loads((tmp_path / name).read_text()) for name in files]
    assert [one["run_id"] for one in kept] == [name.removesuffix(".json") for name in files]
    assert [one["reason"] for one in kept] == ["old", "new"][-len(files) :]


@pytest.mark.parametrize(("seconds", "kept"), [([2.0, 2.9], False), ([2.0, 3.0], True), ([None, 6.0], True)])
def test_energy_of_a_short_training_is_left_out_with_a_reason(seconds, kept):
    record = records.flat_record(flat(status="ok", epoch_seconds=seconds, energy_joules=9.0, power_watts_mean=3.0))
    found = records.without_short_energy(record)
    assert (found["energy_joules"] is not None, found["energy_reason"] is None) == (kept, kept)
    assert found["power_watts_mean"] == (3.0 if kept else None)
    assert record["energy_joules"] == 9
