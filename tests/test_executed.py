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
    path = executed(name, tmp_path)
    done = call(path, tmp_path / "copy.ipynb")
    assert (done.returncode, done.stderr) == (0, "")
    copy = nbformat.read(tmp_path / "copy.ipynb", as_version=4)
    nbformat.validate(copy)
    heads = ["".join(cell["source"]).splitlines()[0] for cell in copy.cells[:4]]
    assert heads[0].startswith("# ") and heads[2:] == ["## Result", "show(records)"]
    before = nbformat.read(path, as_version=4)
    assert sorted(cell["source"] for cell in before.cells) == sorted(
        cell["source"] for cell in copy.cells if cell["id"] != "note"
    )
    text = (tmp_path / "copy.ipynb").read_text()
    assert "papermill" not in copy.metadata and "/somewhere" not in text and "a warning" not in text
    assert text.count("printed by the cell") == sum(cell["cell_type"] == "code" for cell in before.cells)


def test_a_notebook_without_result_is_refused_in_a_sentence(tmp_path):
    done = call(NOTEBOOKS / "cifar_resnet.ipynb", tmp_path / "copy.ipynb")
    assert (done.returncode, done.stderr) == (1, "cifar_resnet.ipynb: this notebook has no result; execute it first\n")
    assert not (tmp_path / "copy.ipynb").exists()
    assert call("one").returncode == 2 and call(tmp_path / "no.ipynb", "x").returncode == 1
