"""The first cell of every notebook: the clone above the notebook or the current folder, else what is installed."""

import json
import shutil
import subprocess
import sys

import pytest
from conftest import ENVIRONMENT, ROOT, code_cells, read_notebook
from notebook_outputs import cell_errors, executed, papermill

NAME = "mixed_precision_study"
FINDER = code_cells("cifar_resnet")["finder"]
USES = "import mixed_precision_study.parameters\nprint(mixed_precision_study.parameters.__file__)"
BARE = {name: value for name, value in ENVIRONMENT.items() if name not in ("PYTHONPATH", "JPY_SESSION_NAME")}


@pytest.fixture(scope="module")
def clones(tmp_path_factory):
    """Two clones with a notebook of two cells, the finder and one that imports the package: [(folder, notebook)]."""
    made = []
    for _ in range(2):
        clone = tmp_path_factory.mktemp("clone")
        shutil.copytree(ROOT / NAME, clone / NAME, ignore=shutil.ignore_patterns("__pycache__"))
        notebook = read_notebook("cifar_resnet")
        cells = [cell for cell in notebook["cells"] if cell["id"] in ("finder", "imports")]
        notebook["cells"] = [cells[0], cells[1] | {"source": [USES]}]
        (clone / "notebooks").mkdir()
        (clone / "notebooks" / "tiny.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
        made.append((clone, clone / "notebooks" / "tiny.ipynb"))
    return made


def find(folder, before="", **environment):
    """Run the cell as a kernel does whose current folder this is; return (exit status, last line printed, stderr)."""
    code = f"import sys\nsys.path[:] = [one for one in sys.path if one]\n{before}\n{FINDER}\n{USES}"
    options = {"env": BARE | environment, "cwd": folder, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, "-c", code], **options)
    return done.returncode, done.stdout.strip(), done.stderr


def test_the_clone_is_found_from_within_and_by_the_notebooks_path_before_what_is_installed(clones, tmp_path):
    (first, notebook), (second, _) = clones
    record = str(first / NAME / "parameters.py")
    assert find(first) == find(notebook.parent) == (0, record, "")
    assert find(tmp_path, JPY_SESSION_NAME=str(notebook)) == (0, record, "")  # as a Jupyter server tells its kernel
    assert find(second, JPY_SESSION_NAME=str(notebook)) == (0, record, "")  # the notebook's clone, not the folder's
    assert find(first, PYTHONPATH=str(second)) == (0, record, "")
    assert find(tmp_path, PYTHONPATH=str(second)) == (0, str(second / NAME / "parameters.py"), "")


def test_it_stops_where_the_code_of_another_clone_is_loaded_and_where_there_is_none(clones, tmp_path):
    (first, _), (second, _) = clones
    loaded = f"sys.path.insert(0, {str(second)!r})\nimport {NAME}"
    for status, said, errors in (find(first, before=loaded), find(tmp_path)):
        assert (status, said, errors.count("\n")) == (1, "", 1)


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_papermill_runs_the_code_of_the_notebooks_clone_or_stops_without_a_traceback(clones, tmp_path, alone):
    (first, notebook), (second, _) = clones
    notebook = shutil.copy(notebook, tmp_path) if alone else notebook
    done = papermill(notebook, tmp_path, {"PYTHONPATH": ""}, options=() if alone else ("--cwd", str(second)))
    result = executed(tmp_path)
    assert (done.returncode != 0) == alone, done.stderr[-2000:]
    if alone:
        (error,) = cell_errors(result)
        assert error["ename"] == "SystemExit"
        assert not any("File " in line or "---->" in line for line in error["traceback"])
    else:
        assert str(first / NAME / "parameters.py") in str(result["cells"][-1]["outputs"])
