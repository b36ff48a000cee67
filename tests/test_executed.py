"""The copy of an executed notebook that people read."""

import json
import subprocess
import sys

import nbformat
import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT

SCRIPT = ROOT / "docs" / "executed.py"


def executed(name, folder):
    """Write a notebook as papermill leaves it: with its metadata, a printed line and a warning in every cell."""
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    notebook["metadata"]["papermill"] = {"output_path": "/somewhere/out.ipynb"}
    for cell in notebook["cells"]:
        cell["metadata"]["papermill"] = {"start_time": "now"}
        if cell["cell_type"] == "code":
            streams = (("stdout", "printed by the cell"), ("stderr", "a warning"))
            cell["outputs"] = [{"output_type": "stream", "name": name, "text": [text]} for name, text in streams]
    path = folder / "executed.ipynb"
    path.write_text(json.dumps(notebook))
    return path


def call(*words):
    command = [sys.executable, SCRIPT, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_result_comes_first_and_nothing_is_lost(name, tmp_path):
    path, target = executed(name, tmp_path), tmp_path / "copy.ipynb"
    done = call(path, target)
    assert (done.returncode, done.stderr) == (0, "")
    copy, before = (nbformat.read(one, as_version=4) for one in (target, path))
    nbformat.validate(copy)
    heads = ["".join(cell["source"]).splitlines()[0] for cell in copy.cells[:4]]
    assert heads[0].startswith("# ") and heads[2:] == ["## Result", "show(records)"]
    kept = sorted(cell["source"] for cell in copy.cells if cell["id"] != "note")
    assert kept == sorted(cell["source"] for cell in before.cells)
    text = target.read_text()
    assert "papermill" not in copy.metadata and "/somewhere" not in text and "a warning" not in text
    assert text.count("printed by the cell") == sum(cell["cell_type"] == "code" for cell in before.cells)


@pytest.mark.parametrize(
    ("words", "status"), [((NOTEBOOKS / "cifar_resnet.ipynb", "x"), 1), (("no", "x"), 1), (("one",), 2)]
)
def test_a_notebook_without_result_is_refused(words, status, tmp_path):
    done = call(*words)
    assert (done.returncode, done.stderr.count("\n") == 1) == (status, status == 1)
    assert not (tmp_path / "x").exists()
