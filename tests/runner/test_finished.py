"""Which runs are made again, in which order, and where records go that no longer count."""

import json
import os

import pytest
from conftest import NOTEBOOKS, read_json
from nested import changed
from tiny_suite import entry, write_run, write_suite

from mixed_precision_study.runner.batch import jobs_of
from mixed_precision_study.runner.devices import Device
from mixed_precision_study.runner.finished import set_aside_records, unfinished
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.runner.studies import parse_overrides
from mixed_precision_study.store.record import NOT_YET_EXPLAINED, load, new_record, write_record
from mixed_precision_study.tasks.data_files import data_files_hash

GPUS = [Device(number, f"gpu{number}", f"GPU-{number}", "Made-up") for number in range(2)]


@pytest.fixture
def one_run(tmp_path):
    """The only run of a study."""
    (tmp_path / "suite").mkdir()
    (((run,),), _) = plan(
        {"runs": [entry()]}, write_suite(tmp_path / "suite", {}), tmp_path, {}, on_gpu=False
    )
    return run


def test_a_record_that_cannot_count_is_made_again(one_run):
    path = write_run(one_run)
    assert unfinished([one_run], GPUS) == []
    whole = read_json(path)
    # spoilt, or ended before it explained
    for changes in ({"seed": [1]}, {"profile_reason": NOT_YET_EXPLAINED}):
        path.write_text(json.dumps(changed(whole, **changes)))
        assert unfinished([one_run], GPUS) == [one_run]
    path.unlink()
    os.mkfifo(path)
    assert unfinished([one_run]) == [one_run]


def test_a_process_is_made_whole_where_a_way_is_missing(tmp_path):
    """As where `quick` was begun when it had one way, or was ended between two."""
    ways = [{"precisions": ["fp32", "amp_bf16"]}, {"precisions": ["amp_bf16"], "scaler": "device"}]
    (((run,),), _) = plan(
        {"runs": [{"notebook": "cifar_resnet", "ways": ways}]}, NOTEBOOKS, tmp_path, {}, on_gpu=True
    )
    write_run(run._replace(ways=run.ways[:1]), code_hash=None)
    assert [*unfinished([run], GPUS)] == [run] and len([*tmp_path.glob("*.json")]) == 2
    last = write_run(run)
    assert unfinished([run], GPUS) == [] and len([*tmp_path.glob("*.json")]) == 3
    assert load(last).settings["scaler"] == "device"
    write_run(run, code_hash="old")
    set_aside_records([[run]])
    assert len([*tmp_path.glob("other_code-*/*.json")]) == 3 and unfinished([run]) == [run]


def test_records_of_other_code_are_set_aside(one_run, tmp_path, monkeypatch):
    """Those of the same notebook, too, that are not asked for: the report would compare them
    with the new ones.
    """
    monkeypatch.setattr("time.strftime", lambda form: "0")  # a clock that is set back
    for number in range(2):
        write_run(one_run, code_hash="a", train_samples=number)
        set_aside_records([[one_run]])
    kept = {path.parent.name: load(path).train_samples for path in tmp_path.glob("*/*.json")}
    assert kept == {"other_code-0": 0, "other_code-0b": 1}
    for name, notebook, code in (("a", "tiny", "old"), ("b", "tiny", None), ("c", "large", "old")):
        facts = {"run_id": name, "status": "ok", "code_hash": code, "epoch_seconds": [2.0]}
        write_record(new_record(notebook, one_run.parameters, "fp32", facts), tmp_path)
    (tmp_path / "a.ipynb").touch()
    (tmp_path / "e.json").write_text("[]")
    set_aside_records([[one_run]])
    assert {path.name for path in (tmp_path / "other_code-0bb").iterdir()} >= {"a.ipynb", "a.json"}
    assert sorted(path.stem for path in tmp_path.glob("*.json")) == ["b", "c", "e"]


def test_runs_on_other_data_are_made_again(tmp_path):
    """Once there are files in place of made-up data, or other files; not where they are gone."""
    notebooks = write_suite(tmp_path, {})
    study = {"runs": [entry(dataset="folder")]}
    ((run,),), _ = plan(
        study, notebooks, tmp_path, parse_overrides([("data_dir", str(tmp_path / "pets"))]), False
    )
    write_run(run, synthetic=True)  # there was no file
    set_aside_records([[run]])
    assert unfinished([run]) == []
    image = tmp_path / "pets/train/cat/0.png"
    image.parent.mkdir(parents=True)
    image.touch()
    set_aside_records([[run]])
    assert unfinished([run]) == [run]
    found = data_files_hash(run.parameters)
    for known in (None, found):
        write_run(run, data_files_hash=known)
        set_aside_records([[run]])
        assert unfinished([run]) == []
    image.write_bytes(b"two")
    set_aside_records([[run]])
    assert unfinished([run]) == [run] and list(tmp_path.glob(f"other_data-*/{run.name}.json"))
    write_run(run, data_files_hash=found)
    image.unlink()
    set_aside_records([[run]])
    assert unfinished([run]) == []


@pytest.mark.parametrize(
    "devices, uuid, whole", [(GPUS[:1], "0", False), (GPUS[:1], "9", True), (GPUS, "0", True)]
)
def test_a_repetition_of_another_gpu_is_made_again_whole(tmp_path, devices, uuid, whole):
    entry = {
        "notebook": "cifar_resnet",
        "parameters": {"precisions": ["fp32", "tf32"]},
        "repeats": 2,
    }
    ((*made, begun, missing),), _ = plan({"runs": [entry]}, NOTEBOOKS, tmp_path, {}, on_gpu=True)
    for run in (*made, begun):
        write_run(run, gpu_uuid=uuid)
    assert unfinished([*made, begun, missing], devices) == (
        [begun, missing] if whole else [missing]
    )
    write_run(missing, gpu_uuid="8")
    assert unfinished([*made, begun, missing], devices) == []


def test_what_takes_longest_begins_first_and_on_one_device_last(one_run, tmp_path):
    runs = [{**entry(seed=number), "minutes": minutes} for number, minutes in enumerate([2, 3, 1])]
    comparisons, _ = plan({"runs": runs}, one_run.notebook.parent, tmp_path, {}, on_gpu=True)
    for devices, minutes in ((GPUS, [3, 2, 1]), (GPUS[:1], [1, 2, 3])):
        assert [job.to_do[0].minutes for job in jobs_of(comparisons, devices)] == minutes
