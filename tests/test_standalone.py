"""Notebooks that hold the package themselves, and a wheel: both are whole, and run where there
is nothing else.
"""

import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from conftest import NOTEBOOKS, ROOT
from notebook_outputs import cell_errors, executed, outputs_of, papermill, printed

from mixed_precision_study import __version__, standalone
from mixed_precision_study.standalone import standalone_notebook
from mixed_precision_study.store.commit import packed_package
from mixed_precision_study.store.record import read_run

NAME = "mixed_precision_study"
KINDS = (".py", ".csv", ".json", ".html", ".css", ".js", ".mplstyle")
FILES = {
    path.relative_to(ROOT).as_posix() for path in (ROOT / NAME).rglob("*") if path.suffix in KINDS
}


def test_the_packed_package_is_whole_and_the_same_each_time(tmp_path, monkeypatch):
    packed = packed_package()
    with zipfile.ZipFile(io.BytesIO(packed)) as opened:
        assert (opened.testzip(), sorted(opened.namelist())) == (None, sorted(FILES))
        # not when it was packed
        assert {info.date_time for info in opened.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    # with other times
    copy = shutil.copytree(ROOT / NAME, tmp_path / NAME, copy_function=shutil.copy)
    (copy / "__pycache__").mkdir(exist_ok=True)
    (copy / "__pycache__/left.py").write_text("")
    monkeypatch.setattr("mixed_precision_study.store.commit.PACKAGE", copy)
    assert packed_package() == packed


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path, capsys):
    (tmp_path / "dist").write_text("")
    assert standalone.main([str(tmp_path / "dist")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("how", ["folder", "link"])
def test_no_notebook_of_a_persons_is_overwritten(tmp_path, capsys, how):
    mine = tmp_path / "your_model.ipynb"
    shutil.copy(NOTEBOOKS / mine.name, mine)
    before = mine.read_bytes()
    folder = tmp_path
    if how == "link":
        folder = tmp_path / "dist"
        folder.mkdir()
        (folder / mine.name).symlink_to(mine)
    assert standalone.main([str(folder)]) == (2 if how == "folder" else 0)
    assert mine.read_bytes() == before
    assert len(list(folder.glob("*.ipynb"))) == (1 if how == "folder" else 6)
    if how == "link":  # what it has written itself it writes anew
        assert standalone.main([str(folder)]) == 0
    assert capsys.readouterr().err.count("\n") == (how == "folder")


@pytest.mark.slow
def test_the_wheel_holds_the_whole_package(tmp_path):
    shutil.copytree(ROOT / NAME, tmp_path / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(tmp_path / "dist"),
        str(tmp_path),
    ]
    subprocess.run(command, check=True)
    (wheel,) = (tmp_path / "dist").glob(f"{NAME}-{__version__}-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        assert opened.testzip() is None
        names = {name for name in opened.namelist() if not name.endswith("/")}
    assert {name for name in names if ".dist-info/" not in name} == FILES
    assert {name.split("/")[0] for name in names} == {NAME, f"{NAME}-{__version__}.dist-info"}


@pytest.mark.slow
def test_a_standalone_notebook_runs_in_an_empty_folder(tmp_path):
    """Its workers are processes that must find the packed code, too."""
    name, parameters = (
        "cifar_resnet",
        {"dataset": "synthetic", "max_steps": 2, "epochs": 1, "batch_size": 4},
    )
    parameters |= {"precisions": ["fp32"], "model": "resnet10t", "loader": "workers"}
    parameters["num_workers"] = 1
    (tmp_path / f"{name}.ipynb").write_text(
        standalone_notebook(NOTEBOOKS / f"{name}.ipynb", packed_package())
    )
    # a worker's socket stands there, whose path has 107 bytes at most
    with tempfile.TemporaryDirectory() as short:
        done = papermill(
            f"{name}.ipynb", tmp_path, {"PYTHONPATH": "", "TMPDIR": short}, **parameters
        )
        left = list(Path(short).glob(f"{NAME}-*"))  # of what the first cell unpacked
    assert done.returncode == 0, done.stderr[-3000:]
    notebook = executed(tmp_path)
    assert cell_errors(notebook) == [] and outputs_of(notebook, "data")
    assert f"{NAME} {__version__} from this notebook" in printed(notebook)
    (path,) = (tmp_path / "outputs").glob("*.json")
    record = read_run(path)
    assert (record["status"], record["settings"]["loader"], record["steps_per_epoch"]) == (
        "ok",
        "workers",
        2,
    )
    assert left == []
