"""The first cell of every notebook: it finds the clone, the installed package or a wheel, or says what to do."""

import json
import shutil
import subprocess
import sys

import pytest
from conftest import ENVIRONMENT, NOTEBOOKS, ROOT, code_cells, read_notebook
from notebook_outputs import cell_errors, executed, papermill, printed

from mixed_precision_study import __version__

NAME = "mixed_precision_study"
FINDER = code_cells("cifar_resnet")["finder"]
USES = "import mixed_precision_study.record, sys\nprint('the record is at', mixed_precision_study.record.__file__)"
BARE = {name: value for name, value in ENVIRONMENT.items() if name not in ("PYTHONPATH", "JPY_SESSION_NAME")}


def write_tiny(path):
    """Write a notebook of two cells: the finder, and one that imports the package."""
    notebook = read_notebook("cifar_resnet")
    finder = next(cell for cell in notebook["cells"] if cell["id"] == "finder")
    other = {
        "cell_type": "code",
        "id": "uses",
        "metadata": {},
        "source": [USES],
        "outputs": [],
        "execution_count": None,
    }
    notebook["cells"] = [finder, other]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def write_clone(folder):
    """Write a clone with the tiny notebook in its folder of notebooks, and return the notebook's path."""
    shutil.copytree(ROOT / NAME, folder / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    return write_tiny(folder / "notebooks" / "tiny.ipynb")


def find(folder, **environment):
    """Run the cell as a kernel does whose current folder this is; return (exit status, what was printed, stderr)."""
    command = [sys.executable, "-P", "-c", f"{FINDER}\n{USES}"] if sys.version_info >= (3, 11) else None
    command = command or [sys.executable, "-c", f"import sys; sys.path.remove('')\n{FINDER}\n{USES}"]
    options = {"env": BARE | environment, "cwd": folder, "capture_output": True, "text": True, "check": False}
    done = subprocess.run(command, **options)
    return done.returncode, done.stdout, done.stderr


def test_the_clone_is_found_from_within_and_by_the_notebooks_path(tmp_path):
    notebook, other = write_clone(tmp_path / "clone"), tmp_path / "other"
    other.mkdir()
    for folder, environment in (
        (tmp_path / "clone", {}),
        (notebook.parent, {}),
        (other, {"JPY_SESSION_NAME": str(notebook)}),  # as a Jupyter server tells its kernel
    ):
        status, said, errors = find(folder, **environment)
        assert (status, errors) == (0, "")
        assert f"{NAME} {__version__} from the clone at " in said
        assert f"the record is at {tmp_path / 'clone' / NAME / 'record.py'}" in said


def test_a_clone_is_taken_before_what_is_installed(tmp_path):
    write_clone(tmp_path / "clone")
    status, said, _ = find(tmp_path / "clone", PYTHONPATH=str(ROOT))
    assert status == 0
    assert "from the clone at" in said
    assert str(tmp_path) in said


def test_what_is_installed_is_taken_before_a_wheel(tmp_path, wheel):
    shutil.copy(wheel, tmp_path)
    status, said, _ = find(tmp_path, PYTHONPATH=str(ROOT))
    assert status == 0
    assert f"{NAME} {__version__} from the installed package" in said


def test_a_wheel_beside_the_notebook_is_enough(tmp_path, wheel):
    notebook = tmp_path / "notebook" / "alone.ipynb"
    notebook.parent.mkdir()
    shutil.copy(wheel, notebook.parent)
    for folder, environment in ((notebook.parent, {}), (tmp_path, {"JPY_SESSION_NAME": str(notebook)})):
        status, said, errors = find(folder, **environment)
        assert (status, errors) == (0, "")
        assert f"{NAME} {__version__} from {wheel.name}" in said
        assert f"{wheel.name}/{NAME}/record.py" in said


def test_the_newest_of_several_wheels_is_taken(tmp_path, wheel):
    shutil.copy(wheel, tmp_path)
    (tmp_path / f"{NAME}-0.0.1-py3-none-any.whl").write_bytes(b"an old one")
    assert f"from {wheel.name}" in find(tmp_path)[1]


def test_without_any_of_them_one_sentence_says_what_to_do(tmp_path):
    status, said, errors = find(tmp_path)
    assert (status, said) == (1, "")
    assert errors.count("\n") == 1
    assert f"put the wheel {NAME}-*.whl beside this notebook." in errors


# By papermill


@pytest.fixture(scope="module", params=["clone", "nothing"])
def tiny(request, tmp_path_factory):
    """(what is there, folder, process) of the tiny notebook by papermill, from a folder of its own."""
    there = request.param
    folder = tmp_path_factory.mktemp(there)
    work = folder / "work"
    work.mkdir()
    notebook = write_clone(folder / "clone") if there == "clone" else write_tiny(work / "tiny.ipynb")
    return there, work, papermill(notebook, work, {"PYTHONPATH": ""})


def test_papermill_finds_the_clone_of_the_notebook_or_says_what_to_do(tiny):
    there, folder, done = tiny
    notebook = executed(folder)
    if there == "clone":
        assert done.returncode == 0, done.stderr[-2000:]
        assert f"{NAME} {__version__} from the clone at ../clone\n" in printed(notebook)
        return
    assert done.returncode != 0
    (error,) = cell_errors(notebook)
    assert error["ename"] == "SystemExit"
    assert f"put the wheel {NAME}-*.whl beside this notebook." in error["evalue"]
    assert "Traceback" not in "".join(error["traceback"])
    assert not any("File " in line or "---->" in line for line in error["traceback"])


def test_papermill_needs_no_more_than_a_wheel_beside_the_notebook(tmp_path, wheel):
    shutil.copy(wheel, tmp_path)
    done = papermill(write_tiny(tmp_path / "tiny.ipynb"), tmp_path, {"PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{NAME} {__version__} from {wheel.name}\n" in printed(executed(tmp_path))


def test_the_notebook_of_this_clone_runs_from_an_unrelated_folder(tmp_path):
    status, said, _ = find(tmp_path, JPY_SESSION_NAME=str(NOTEBOOKS / "cifar_resnet.ipynb"))
    assert status == 0
    assert f"the record is at {ROOT / NAME / 'record.py'}" in said
