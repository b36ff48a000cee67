"""The code cells of a notebook, and which code a run's hash covers."""

import json
import os

import pytest
from mixed_precision_study.runner.notebook_file import code_cells, hash_of

from mixed_precision_study.runner import notebook_file


@pytest.fixture
def small(tmp_path):
    """A notebook with a text cell that is tagged like the parameters."""
    cells = [{"cell_type": "markdown", "id": "words", "metadata": {"tags": ["parameters"]}, "source": ["no code"]}]
    for name, tags, source in (
        ("first", ["parameters"], "x = 1\n"),
        ("second", [], "y = x + 1\nz = y"),
        ("third", [], "1 / 0"),
    ):
        source = source.splitlines(keepends=True)
        cells.append({"cell_type": "code", "id": name, "metadata": {"tags": tags}, "source": source})
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_code_cells_are_read_whole_and_in_order(small):
    assert [tuple(cell) for cell in code_cells(small)] == [
        ("first", "x = 1\n", True),
        ("second", "y = x + 1\nz = y", False),
        ("third", "1 / 0", False),
    ]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of a few empty files in place of the real one."""
    folder = tmp_path / "package"
    names = ("training.py", "gpu/nvml.py", "runner/plan.py", "report/layout.py", "analysis/verdict.py", "standalone.py")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    monkeypatch.setattr(notebook_file, "PACKAGE", folder)
    return folder


def test_hash_covers_the_notebook_without_its_parameters_and_what_measures(small, package):
    text = small.read_text()
    before = hash_of(text)
    assert len(before) == 12
    assert hash_of(text.replace("x = 1", "x = 2")) == before
    assert hash_of(text.replace("y = x + 1", "y = x + 2")) != before
    for name in ("runner/plan.py", "report/layout.py", "analysis/verdict.py", "standalone.py", "notes.txt"):
        (package / name).write_text("changed = True")
        assert hash_of(text) == before, name
    hashes = {before}
    for name in ("training.py", "gpu/nvml.py", "gpu/new.py"):
        (package / name).write_text("changed = True")
        os.utime(package / name, ns=(len(hashes), len(hashes)))  # however coarse the clock of the file system is
        hashes.add(hash_of(text))
    assert len(hashes) == 4
    (package / "training.py").rename(package / "learning.py")
    assert hash_of(text) not in hashes


def test_hash_reads_a_file_of_the_package_again_only_where_it_was_written(package, monkeypatch):
    state = notebook_file.package_state()
    hashes = [notebook_file.package_hash(state)]
    monkeypatch.setattr(notebook_file.json, "dumps", None)
    hashes.append(notebook_file.package_hash(notebook_file.package_state()))
    assert hashes[0] == hashes[1]
