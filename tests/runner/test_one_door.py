"""A notebook of one's own under run_all.py: the plan and the notebook compute one run, whichever
way it trains.
"""

import json
import subprocess
import sys

import pytest
from conftest import ENVIRONMENT, ROOT, on_request
from own_gpt import DOORS, write_gpt
from tiny_suite import write_notebook

from mixed_precision_study.parameters import PLANNED_ENV
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.store import record as records

PACKAGE = ROOT / "mixed_precision_study"


def run_all(folder, *words):
    """Run the study of a folder outside the clone, as a person types it, and return what became
    of it.
    """
    command = [
        sys.executable,
        ROOT / "run_all.py",
        "--studies",
        folder / "studies.yaml",
        "--gpus",
        "none",
        "--jobs",
        "1",
        "--output-dir",
        folder / "out",
        *words,
    ]
    return subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def spare_the_report(folder):
    """Let a notebook of nothing stand for the report, where another test looks at that."""
    write_notebook(folder / "summary.ipynb", 'records_dir = "."', "1")


def sources():
    return sorted((path.name, path.stat().st_mtime_ns) for path in PACKAGE.rglob("*.py"))


def records_in(folder):
    return {path.name: records.load(path) for path in (folder / "out").glob("gpt-*.json")}


@pytest.mark.slow
@pytest.mark.parametrize("door", on_request(DOORS, "compare", "Experiment"))
def test_a_gpt_outside_the_clone_runs_and_resumes(tmp_path, door):
    write_gpt(tmp_path, door)
    spare_the_report(tmp_path)
    before = sources()
    done = run_all(tmp_path, "own", "-p", "layers", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    found = records_in(tmp_path)
    assert sorted((one.precision, one.status) for one in found.values()) == [
        ("amp_bf16", "ok"),
        ("fp32", "ok"),
    ]
    assert {
        (one.settings["layers"], one.settings["width"], one.notebook) for one in found.values()
    } == {(3, 32, "gpt")}
    assert sources() == before
    again = run_all(tmp_path, "own", "-p", "layers", "3")
    assert "2 are finished already" in again.stdout and records_in(tmp_path).keys() == found.keys()


@pytest.mark.slow
def test_your_model_runs_under_run_all(tmp_path):
    entry = {"notebook": "your_model", "cpu": {"max_steps": 1, "epochs": 1, "precisions": ["fp32"]}}
    (tmp_path / "studies.yaml").write_text(json.dumps({"own": {"runs": [entry]}}))
    spare_the_report(tmp_path)
    done = run_all(tmp_path, "own")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "out").glob("your_model-*.json")
    record = records.load(path)
    assert (record.status, record.settings["model"], record.settings["batch_size"]) == (
        "ok",
        "vit_tiny",
        64,
    )


def test_a_value_that_the_notebook_has_fixed_is_no_other_run(tmp_path, monkeypatch):
    """What the cell does not assign, the notebook may pass; the record then holds what was
    trained.
    """
    write_gpt(tmp_path, "compare")
    (((run,),), _) = plan(
        {"runs": [{"notebook": "gpt", "cpu": {}}]}, tmp_path, tmp_path, {}, on_gpu=False
    )
    assert "scaler" not in run.given and run.parameters["scaler"] == "pytorch"
    monkeypatch.setenv(
        PLANNED_ENV, json.dumps({"parameters": run.parameters, "given": list(run.given)})
    )
    made = records.new_record("gpt", {**run.parameters, "scaler": "device"}, "fp32", {})
    assert made.run_id in run.trainings and made.settings["scaler"] == "device"
