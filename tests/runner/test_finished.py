"""Which runs are made again, in which order, and where records go that no longer count."""

import json
import os

import pytest
from conftest import NOTEBOOKS
from tiny_suite import PARAMETERS, entry, write_notebook, write_run, write_suite

from mixed_precision_study.record import NOT_YET_EXPLAINED, RunRecord, write_record
from mixed_precision_study.runner.batch import Job, jobs_of, take_job
from mixed_precision_study.runner.devices import Device
from mixed_precision_study.runner.finished import home_of, set_aside_records, unfinished
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.runner.studies import parse_overrides
from mixed_precision_study.tasks.data_files import data_files_hash

GPUS = [Device(number, f"gpu{number}", f"GPU-{number}", "Made-up") for number in range(2)]


@pytest.fixture
def one_run(tmp_path):
    """The only run of a study."""
    (tmp_path / "suite").mkdir()
    (((run,),), _) = plan({"runs": [entry()]}, write_suite(tmp_path / "suite", {}), tmp_path, {}, on_gpu=False)
    return run


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "fp4"},
        {"seed": [1]},
        {"status": "failed", "reason": 7},
        {"profile_reason": NOT_YET_EXPLAINED},  # it was ended before it explained
    ],
    ids=lambda changes: " ".join(changes),
)
def test_a_record_that_cannot_count_is_made_again(one_run, changes):
    path = write_run(one_run)
    assert unfinished([one_run], GPUS) == []
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert unfinished([one_run], GPUS) == [one_run]
    assert home_of([one_run], GPUS) is None
    path.unlink()
    os.mkfifo(path)
    assert unfinished([one_run]) == [one_run]


def test_records_of_other_code_are_set_aside_and_never_overwritten(one_run, tmp_path):
    """Those of the same notebook, too, that are not asked for: the report would compare them with the new ones."""
    for number in range(2):
        write_run(one_run, code_hash="../a", train_samples=number)
        set_aside_records([[one_run]])
    kept = {path.parent.name: json.loads(path.read_text())["train_samples"] for path in tmp_path.glob("*/*.json")}
    assert kept == {"other_code-___a": 0, "other_code-___a-2": 1}
    for name, notebook, code in (("a", "tiny", "old"), ("b", "tiny", None), ("c", "large", "old")):
        record = RunRecord(name, notebook, "fp32", one_run.parameters, status="ok", code_hash=code)
        record.epoch_seconds = [2.0]
        write_record(record, tmp_path)
    (tmp_path / "a.ipynb").touch()
    (tmp_path / "e.json").write_text("[]")
    set_aside_records([[one_run]])
    assert sorted(path.name for path in (tmp_path / "other_code-old").iterdir()) == ["a.ipynb", "a.json"]
    assert sorted(path.stem for path in tmp_path.glob("*.json")) == ["b", "c", "e"]


def test_runs_on_other_data_are_made_again(tmp_path):
    """Once another data_dir has data in place of made-up ones, or its files have changed; not where they are gone."""
    write_notebook(tmp_path / "text.ipynb", PARAMETERS.replace('csv_path = ""\n', ""))
    write_notebook(tmp_path / "tiny.ipynb", PARAMETERS)  # its data come by csv_path

    def asked(notebook, dataset, data_dir):
        study = {"runs": [{"notebook": notebook, "cpu": {"dataset": dataset, "precisions": ["fp32"]}}]}
        overrides = parse_overrides([("data_dir", str(tmp_path / data_dir))])
        (comparison,), _ = plan(study, tmp_path, tmp_path, overrides, on_gpu=False)
        return comparison

    for name in ("empty/text", "cached/cache/text", "full/text", "pets/train/cat"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "0.png").touch() if name != "empty/text" else None
    for notebook, dataset in (("text", "auto"), ("text", "synthetic"), ("tiny", "auto")):
        write_run(*asked(notebook, dataset, "absent"), synthetic=True)
        again = [bool(unfinished(asked(notebook, dataset, place))) for place in ("absent", "empty", "cached", "full")]
        assert again == [False, False, False, (notebook, dataset) == ("text", "auto")]
    set_aside_records([asked("text", "auto", "full")])
    assert len(list((tmp_path / "made_up_data").iterdir())) == 1

    (run,) = comparison = asked("tiny", "folder", "pets")
    found = data_files_hash("tiny", run.parameters)
    for known in (None, found):
        write_run(run, data_files_hash=known)
        set_aside_records([comparison])
        assert not unfinished(comparison)
    (tmp_path / "pets/train/cat/0.png").write_bytes(b"two")
    set_aside_records([comparison])
    assert unfinished(comparison) == [run]
    assert [path.stem for path in (tmp_path / f"other_data-{found}").iterdir()] == [run.name]
    write_run(run, data_files_hash=found)
    (tmp_path / "pets/train/cat/0.png").unlink()
    set_aside_records([comparison])
    assert not unfinished(comparison)


@pytest.mark.parametrize("uuid", ["0", "9"])
def test_a_repetition_that_began_on_a_gpu_elsewhere_is_made_again_whole(tmp_path, uuid):
    entry = {"notebook": "cifar_resnet", "parameters": {"precisions": ["fp32", "tf32"]}, "repeats": 2}
    ((*made, begun, missing),), _ = plan({"runs": [entry]}, NOTEBOOKS, tmp_path, {}, on_gpu=True)
    for run in made:
        write_run(run, gpu_uuid="0")
    write_run(begun, gpu_uuid=uuid)
    comparison = [*made, begun, missing]
    assert home_of(comparison, GPUS) == GPUS[0]
    assert unfinished(comparison, GPUS) == ([begun, missing] if uuid == "9" else [missing])


def test_what_takes_longest_begins_first_and_on_one_device_last(one_run, tmp_path):
    """What may go to one GPU alone goes before what may go anywhere, or the other one idles."""
    study = {"runs": [{"notebook": "tiny", "sweep": {"model": ["a", "b"], "seed": [0, 1]}}]}
    comparisons, _ = plan(study, one_run.notebook.parent, tmp_path, {}, on_gpu=True)
    seconds = {runs[0].name: number for number, runs in enumerate(comparisons, 1)}
    assert [job.comparison for job in jobs_of(comparisons, GPUS, seconds)] == comparisons[::-1]
    assert [job.comparison for job in jobs_of(comparisons, GPUS[:1], seconds)] == comparisons
    first, second = comparisons[:2]
    waiting = [Job(first, first, None), Job(second, second, GPUS[0])]
    assert take_job(waiting, GPUS[0]).comparison == second
    assert take_job(waiting, GPUS[1]).comparison == first
    assert take_job(waiting, GPUS[0]) is None
