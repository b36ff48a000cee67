"""What the tests share: the cells of a notebook as functions, what is prepared once, and which
tests are slow.
"""

import gc
import json
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import notebook_cells
import pytest
import torch
import yaml
from torch.backends import cudnn

from mixed_precision_study import OF_A_RUN
from mixed_precision_study.parameters import UserError, checked
from mixed_precision_study.runner.plan import parameters_of
from mixed_precision_study.store import commit

matplotlib.use("Agg")
# jsonschema would load a grammar, which takes each process of tests more than a second.
sys.modules["rfc3987_syntax"] = None
# in a shell's background, and so in all that the tests start
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
CASES = yaml.safe_load((ROOT / "tests/cases.yaml").read_text(encoding="utf-8"))
EXPERIMENTS = ("cifar_resnet", "efficientnet_regression", "lstm_language_model", "transformer")
SETTINGS = [*OF_A_RUN, "MIXED_PRECISION_COMMIT", "TQDM_DISABLE"]
# CUDA must not see others in mid-run
SETTINGS += ["CUDA_VISIBLE_DEVICES"] * (not torch.cuda.is_available())
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in SETTINGS}
# two processes of tests must not take turns in steps on every core
if not torch.cuda.is_available():
    torch.set_num_threads(1)
    ENVIRONMENT["OMP_NUM_THREADS"] = "1"
# Test files of which every test is slow: they start batches of runs, or train notebooks.
SLOW = {"benchmarks", "cli", "faults", "golden", "notebooks", "ray_cluster", "security", "studies"}
# Rooms whose tests compare numbers, which may change with a package, but not with Python, and their
# files that look into Python's own objects.
NUMBERS, OBJECTS = {"explain", "judge", "report", "tasks", "train"}, {"as_found", "identity"}
# Test files of texts and of tables that are published, which no other version changes.
ONCE = {"benchmarks", "docs", "docs_attention", "docs_tables", "house", "kept_share"}
ONCE |= {"docs_weights", "lines", "notebooks_as_files", "outputs", "style", "style_of_tests"}
# Test files that take longest, in order. They come first, so that two processes of tests end
# together.
LONGEST = (
    *("own_model_on_gpu", "faults", "ray_cluster", "diagnose", "own_model_is_as_given", "golden"),
    *("one_door", "golden_figures", "notebooks", "security", "standalone", "cli", "experiment"),
    "summary",
)


def results(name):
    """Return where committed results lie: a folder in outputs/main or outputs/more, or a zip in
    checks or archive.
    """
    (place,) = [
        path for path in (ROOT / "outputs").glob("*/*") if path.name in (name, f"{name}.zip")
    ]
    return place


def read_json(path):
    return json.loads(path.read_text())


def read_notebook(name):
    return read_json(NOTEBOOKS / f"{name}.ipynb")


@contextmanager
def refuses(words=None):
    """What a person's mistake must get: a UserError of one line with these words."""
    with pytest.raises(UserError, match=words) as stopped:
        yield stopped
    assert "\n" not in str(stopped.value)


def on_request(cases, *rare):
    """Return the cases of a test, of which the rare ones are run where `exhaustive` is asked for."""
    marks = [pytest.mark.exhaustive]
    return [pytest.param(one, marks=marks * (one in rare)) for one in cases]


def seeded(seed):
    """Return a generator of random numbers that are the same each time."""
    return torch.Generator().manual_seed(seed)


def code_cells(name):
    """Return {cell id: source} of a notebook's code cells, in order."""
    return {cell.id: cell.source for cell in commit.code_cells(NOTEBOOKS / f"{name}.ipynb")}


def settings_of(name, given):
    """Return the checked parameters of a notebook of the suite, as its data and models take
    them.
    """
    return checked(name, given, parameters_of(NOTEBOOKS / f"{name}.ipynb")[0])


def run_cells(name, last, **parameters):
    """Run a notebook's code cells up to the one with the id `last`, with parameters replaced,
    and return its names.
    """
    return notebook_cells.run_cells(NOTEBOOKS / f"{name}.ipynb", last, parameters)


def experiment_of(name, **parameters):
    """Run a notebook's cells and return its Experiment, which has trained nothing."""
    return notebook_cells.experiment_of(NOTEBOOKS / f"{name}.ipynb", parameters)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what is slow, skip what cannot run here, and put first what takes longest."""
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    for item in items:
        name = item.path.stem.removeprefix("test_")
        if name in SLOW or any(map(item.get_closest_marker, ("exhaustive", "release"))):
            item.add_marker("slow")
        if name in ONCE:
            item.add_marker("once")
        if item.path.parent.name in NUMBERS and name not in OBJECTS:
            item.add_marker("any_python")
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no GPU"))
        elif item.get_closest_marker("alone") and "PYTEST_XDIST_WORKER" in os.environ:
            item.add_marker(
                pytest.mark.skip(reason="it needs the GPU to itself: python tests/on_gpu.py")
            )
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))
    items.sort(
        key=lambda item: not (item.get_closest_marker("gpu") and item.get_closest_marker("slow"))
    )


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """Spare the many objects of what was imported so far from being looked through whenever
    memory is cleaned up.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    """Every test starts in an empty folder, as a notebook on Colab does, and finds no settings
    of the shell.
    """
    monkeypatch.chdir(tmp_path)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_search(request, monkeypatch):
    """On a GPU cuDNN searches for built cases and tests marked `searches` alone, because that
    takes longest.
    """
    if request.node.get_closest_marker("gpu"):
        cudnn.benchmark = False
        if not request.node.get_closest_marker("searches") and "BUILT_CASES_OUT" not in os.environ:
            switch = vars(type(cudnn))["benchmark"]
            monkeypatch.setattr(switch, "setter", lambda wanted: None)
