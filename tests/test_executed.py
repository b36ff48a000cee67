"""The copy of an executed notebook that people read."""

import subprocess
import sys

import nbformat
import pytest
from conftest import NOTEBOOKS, ROOT


def call(*words):
    command = [sys.executable, ROOT / "docs" / "executed.py", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_result_comes_first_and_nothing_is_lost(tmp_path):
    """The notebook is as papermill leaves it: with its metadata, a printed line and a warning in every cell."""
    before = nbformat.read(NOTEBOOKS / "cifar_resnet.ipynb", as_version=4)
    before.metadata["papermill"] = {"output_path": "/somewhere/out.ipynb"}
    for cell in before.cells:
        cell.metadata["papermill"] = {"start_time": "now"}
        if cell.cell_type == "code":
            streams = (("stdout", "printed by the cell"), ("stderr", "a warning"))
            cell.outputs = [nbformat.v4.new_output("stream", name=name, text=text) for name, text in streams]
    nbformat.write(before, tmp_path / "executed.ipynb")
    done = call(tmp_path / "executed.ipynb", tmp_path / "copy.ipynb")
    assert (done.returncode, done.stderr) == (0, "")
    copy, text = nbformat.read(tmp_path / "copy.ipynb", as_version=4), (tmp_path / "copy.ipynb").read_text()
    nbformat.validate(copy)
    heads = [cell.source.splitlines()[0] for cell in copy.cells[:4]]
    assert heads[0].startswith("# ") and heads[2:] == ["## Result", "show(records)"]
    assert sorted(cell.source for cell in copy.cells if cell.id != "note") == sorted(
        cell.source for cell in before.cells
    )
    assert "papermill" not in copy.metadata and "/somewhere" not in text and "a warning" not in text
    assert text.count("printed by the cell") == sum(cell.cell_type == "code" for cell in before.cells)


@pytest.mark.parametrize("words", [(NOTEBOOKS / "cifar_resnet.ipynb", "x"), ("no", "x")])
def test_a_notebook_without_result_is_refused(words, tmp_path):
    done = call(*words)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert not (tmp_path / "x").exists()
