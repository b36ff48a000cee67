"""The commit of a record, and which code its hash covers."""

import itertools
import json
import os

from mixed_precision_study.store import commit


def test_the_commit_is_that_of_the_clone_or_the_runners(monkeypatch, tmp_path):
    monkeypatch.setattr("mixed_precision_study.store.commit.ROOT", tmp_path)  # in no clone
    assert commit.suite_commit() is None
    monkeypatch.setenv("MIXED_PRECISION_COMMIT", "abc")  # from the runner
    assert commit.suite_commit() == "abc"


def test_the_hash_covers_the_notebook_and_what_measures(tmp_path, monkeypatch):
    """A text cell may be tagged like the parameters."""
    cells = [
        {
            "cell_type": "markdown",
            "id": "words",
            "metadata": {"tags": ["parameters"]},
            "source": ["no code"],
        }
    ]
    for name, tags, source in (
        ("first", ["parameters"], ["x = 1\n"]),
        ("second", [], ["y = x + 1\n", "z = y"]),
    ):
        cells.append(
            {"cell_type": "code", "id": name, "metadata": {"tags": tags}, "source": source}
        )
    small = tmp_path / "small.ipynb"
    small.write_text(json.dumps({"cells": cells}))
    assert list(commit.code_cells(small)) == [
        ("first", "x = 1\n", True),
        ("second", "y = x + 1\nz = y", False),
    ]
    package, text = tmp_path / "package", small.read_text()
    monkeypatch.setattr(commit, "PACKAGE", package)
    apart = (
        "runner/plan.py",
        "report/charts.py",
        "judge/verdict.py",
        "diagnosis/waits.py",
        "notes.txt",
    )
    hashes = []
    for name in ("train/step.py", "measure/nvml.py", *apart, "train/step.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(f"changed = {len(hashes)}")
        # however coarse the clock of the file system is
        os.utime(package / name, ns=(len(hashes), len(hashes)))
        hashes.append(commit.hash_of(small))
    (package / "train/step.py").rename(package / "train/learning.py")
    hashes.append(commit.hash_of(small))
    for old, new in (("x = 1", "x = 2"), ("y = x + 1", "y = x + 2")):
        small.write_text(text.replace(old, new))
        hashes.append(commit.hash_of(small))
    assert [len(one) for one in hashes] == [12] * len(hashes)
    assert [a != b for a, b in itertools.pairwise(hashes)] == [
        True,
        *[False] * 5,
        True,
        True,
        False,
        True,
    ]
    known = commit.package_hash(commit.package_state())
    monkeypatch.setattr(commit.json, "dumps", None)  # a file that was not written is not read again
    assert commit.package_hash(commit.package_state()) == known
