"""The first cell of every notebook: the clone above the notebook or the current folder, else
what is installed.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import ENVIRONMENT, ROOT, code_cells, read_notebook
from notebook_outputs import executed, papermill

NAME = "mixed_precision_study"
FINDER = code_cells("cifar_resnet")["finder"]
USES = "import mixed_precision_study.parameters\nprint(mixed_precision_study.parameters.__file__)"
BARE = {
    name: value
    for name, value in ENVIRONMENT.items()
    if name not in ("PYTHONPATH", "JPY_SESSION_NAME")
}


@pytest.fixture(scope="module")
def clones(tmp_path_factory):
    """Two clones with a notebook of two cells, the finder and one that imports the package:
    [(folder, notebook, its module)].
    """
    made = []
    for _ in range(2):
        clone = tmp_path_factory.mktemp("clone")
        shutil.copytree(ROOT / NAME, clone / NAME, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "run_all.py", clone)
        notebook = read_notebook("cifar_resnet")
        cells = [cell for cell in notebook["cells"] if cell["id"] in ("finder", "imports")]
        notebook["cells"] = [cells[0], {**cells[1], "source": [USES]}]
        (clone / "notebooks").mkdir()
        (clone / "notebooks/tiny.ipynb").write_text(json.dumps(notebook))
        made.append((clone, clone / "notebooks/tiny.ipynb", str(clone / NAME / "parameters.py")))
    return made


def find(folder, before="", **environment):
    """Run the cell as a kernel does whose current folder this is; return (exit status, last line
    printed, stderr).
    """
    code = f"import sys\nsys.path[:] = [one for one in sys.path if one]\n{before}\n{FINDER}\n{USES}"
    options = {
        "env": BARE | environment,
        "cwd": folder,
        "capture_output": True,
        "text": True,
        "check": False,
    }
    done = subprocess.run([sys.executable, "-c", code], **options)
    return done.returncode, done.stdout.strip(), done.stderr


def test_the_clone_is_found_before_what_is_installed(clones, tmp_path):
    (first, notebook, record), (second, _, other) = clones
    assert find(first) == find(notebook.parent) == (0, record, "")
    # as a Jupyter server tells its kernel
    assert find(tmp_path, JPY_SESSION_NAME=str(notebook)) == (0, record, "")
    # the notebook's clone, not the folder's
    assert find(second, JPY_SESSION_NAME=str(notebook)) == (0, record, "")
    assert find(first, PYTHONPATH=str(second)) == (0, record, "")
    assert find(tmp_path, PYTHONPATH=str(second)) == (0, other, "")


def test_it_stops_where_another_clone_is_loaded(clones, tmp_path):
    (first, *_), (second, *_) = clones
    loaded = f"sys.path.insert(0, {str(second)!r})\nimport {NAME}"
    for status, said, errors in (find(first, before=loaded), find(tmp_path)):
        assert (status, said, errors.count("\n")) == (1, "", 1)


def open_to_all(folder):
    folder.chmod(0o777)


def of_another_user(folder):
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 65_534, 65_534)


@pytest.mark.parametrize(
    "change, form, below",
    [
        (open_to_all, "package", ""),
        (open_to_all, "module", "user/work"),
        (of_another_user, "clone", "user/work"),
        (of_another_user, "module", ""),
    ],
)
def test_code_that_others_may_write_is_never_run(clones, tmp_path, change, form, below):
    """Neither from the notebook's folder nor from above it; what is installed comes first, else
    a sentence.
    """
    if change is of_another_user and os.getuid():
        pytest.skip("only root can give files away")
    shared, planted = tmp_path / "shared", f"open({str(tmp_path / 'run')!r}, 'w')"
    (shared / "user/work").mkdir(parents=True)
    (shared / NAME).mkdir()
    place = shared / NAME / "__init__.py" if form != "module" else shared / f"{NAME}.py"
    place.write_text(planted)
    if form == "clone":
        (shared / "run_all.py").touch()
    change(shared)
    folder = shared / below
    empty_first = "sys.path.insert(0, '')"  # as a kernel has it
    told = {"JPY_SESSION_NAME": str(folder / "my.ipynb")}
    clone, _, record = clones[0]
    installed = {"PYTHONPATH": str(clone)}
    assert find(folder, before=empty_first, **told, **installed) == (0, record, "")
    status, said, errors = find(folder, before=empty_first, **told)
    assert (status, said, errors.count("\n"), str(shared) in errors) == (1, "", 1, True)
    assert not (tmp_path / "run").exists()


def test_the_first_cells_need_the_standard_library_alone():
    """In an environment without anything, the finder ends well and the packages are named."""
    code = (
        "import sys\nsys.path[:] = [one for one in sys.path if 'site-packages' not in "
        f"one]\n{FINDER}\n"
    )
    code += code_cells("cifar_resnet")["imports"].split("\nimport torch")[0]
    options = {"env": BARE, "cwd": ROOT, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, "-S", "-c", code], **options)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"{NAME}.measure.packages.UserError: these packages are missing"
    )
    for name in ("pydantic", "psutil", "PyYAML", "timm", "torchvision"):
        assert name in done.stderr


@pytest.mark.slow
def test_papermill_runs_the_code_of_the_notebooks_clone(clones, tmp_path):
    (_, notebook, record), (second, *_) = clones
    done = papermill(notebook, tmp_path, {"PYTHONPATH": ""}, options=("--cwd", str(second)))
    assert done.returncode == 0, done.stderr[-2000:]
    assert record in str(executed(tmp_path)["cells"][-1]["outputs"])
