"""The commit of a record, and which code its hash covers."""

import itertools
import os

from tiny_suite import write_notebook

from mixed_precision_study.store import commit


def test_the_commit_is_that_of_the_clone_or_the_runners(monkeypatch, tmp_path):
    monkeypatch.setattr("mixed_precision_study.store.commit.ROOT", tmp_path)  # in no clone
    assert commit.suite_commit() is None
    monkeypatch.setenv("MIXED_PRECISION_COMMIT", "abc")  # from the runner
    assert commit.suite_commit() == "abc"


def test_the_hash_covers_the_notebook_and_what_measures(tmp_path, monkeypatch):
    small, package = tmp_path / "small.ipynb", tmp_path / "package"
    monkeypatch.setattr(commit, "PACKAGE", package)
    clock = itertools.count()

    def hash_with(name="train/step.py", cells=("x = 1", "y = x + 1\nz = y")):
        """Change a file of the package, and write the notebook."""
        path, moment = package / name, next(clock)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"changed = {moment}")
        os.utime(path, ns=(moment, moment))  # however coarse the clock of the file system is
        write_notebook(small, *cells)
        return commit.hash_of(small)

    first = hash_with()
    apart = (
        "runner/plan.py",
        "report/charts.py",
        "judge/verdict.py",
        "diagnosis/waits.py",
        "a.txt",
    )
    assert {hash_with(name) for name in apart} == {first}
    # a parameter's value is told by the record itself
    assert hash_with("a.txt", ("x = 2", "y = x + 1\nz = y")) == first
    others = [hash_with(), hash_with("measure/nvml.py"), hash_with("a.txt", ("x = 1", "y = 2"))]
    (package / "train/step.py").rename(package / "train/learning.py")
    others.append(hash_with("a.txt"))
    assert len({first, *others}) == 5 and len(first) == 12
    cells = [(cell.source, cell.sets_parameters) for cell in commit.code_cells(small)]
    assert cells == [("x = 1", True), ("y = x + 1\nz = y", False)]
    known = commit.package_hash(commit.package_state())
    monkeypatch.setattr(commit.json, "dumps", None)  # a file that was not written is not read again
    assert commit.package_hash(commit.package_state()) == known
