"""The code cells of a notebook, and which code a run's hash covers."""

import itertools
import json
import os

import pytest

from mixed_precision_study.measure import commit
from mixed_precision_study.measure.commit import code_cells, hash_of


@pytest.fixture
def small(tmp_path):
    """A notebook with a text cell that is tagged like the parameters."""
    cells = [{"cell_type": "markdown", "id": "words", "metadata": {"tags": ["parameters"]}, "source": ["no code"]}]
    for name, tags, source in (("first", ["parameters"], "x = 1\n"), ("second", [], "y = x + 1\nz = y")):
        source = source.splitlines(keepends=True)
        cells.append({"cell_type": "code", "id": name, "metadata": {"tags": tags}, "source": source})
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_code_cells_are_read_whole_and_in_order(small):
    assert list(code_cells(small)) == [("first", "x = 1\n", True), ("second", "y = x + 1\nz = y", False)]


def test_the_hash_covers_the_notebook_without_its_parameters_and_what_measures(small, tmp_path, monkeypatch):
    package, text = tmp_path / "package", small.read_text()
    monkeypatch.setattr(commit, "PACKAGE", package)
    apart = ("runner/plan.py", "report/charts.py", "judge/verdict.py", "diagnosis/waits.py", "notes.txt")
    hashes = []
    for name in ("train/step.py", "measure/nvml.py", *apart, "train/step.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(f"changed = {len(hashes)}")
        os.utime(package / name, ns=(len(hashes), len(hashes)))  # however coarse the clock of the file system is
        hashes.append(hash_of(small))
    (package / "train/step.py").rename(package / "train/learning.py")
    hashes.append(hash_of(small))
    for old, new in (("x = 1", "x = 2"), ("y = x + 1", "y = x + 2")):
        small.write_text(text.replace(old, new))
        hashes.append(hash_of(small))
    assert [len(one) for one in hashes] == [12] * len(hashes)
    assert [a != b for a, b in itertools.pairwise(hashes)] == [True, *[False] * 5, True, True, False, True]
    known = commit.package_hash(commit.package_state())
    monkeypatch.setattr(commit.json, "dumps", None)  # a file that was not written is not read again
    assert commit.package_hash(commit.package_state()) == known


def test_a_record_says_where_the_code_was_edited_while_it_ran(small, monkeypatch):
    monkeypatch.setenv(commit.NOTEBOOK_ENV, str(small))
    began = hash_of(small)
    monkeypatch.setenv(commit.HASH_ENV, began)
    commit.hash_at_import.cache_clear()
    try:
        commit.hash_at_import()
        assert commit.hash_that_ran() == began
        small.write_text(small.read_text().replace("y = x + 1", "y = x + 2"))
        assert commit.hash_that_ran() == f"{began}-edited"
    finally:
        commit.hash_at_import.cache_clear()
