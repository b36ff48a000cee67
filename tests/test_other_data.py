"""Other data under the same name: two runs, two records, never paired. From the notebook to the report."""

from conftest import run_cells
from made_up_data import make_tree, save_image

from mixed_precision_study.record import read_records
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
    found, left_out = read_records(out)
    assert {one["data_fingerprint"] for one in found} == {first.data_fingerprint, second.data_fingerprint}
    assert (len(found), left_out) == (3, [])
    assert len({one["run_id"] for one in found}) == 3
    tables = read_tables(str(out))
    groups = tables.trainings.record.map(lambda run: run["data_fingerprint"]).groupby(tables.trainings.comparison)
    assert groups.nunique().tolist() == [1, 1]
    assert not tables.left_out
