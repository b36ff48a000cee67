"""What the tests share: the cells of a notebook as functions, and what is prepared beside other tests."""

import gc
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib
import notebook_cells
import pytest
import torch

from mixed_precision_study.runner import notebook_file

matplotlib.use("Agg")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a shell's background, and so in all that the tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)
ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
EXPERIMENTS = ("cifar_resnet", "efficientnet_regression", "lstm_language_model")
SETTINGS = [f"MIXED_PRECISION_{name}" for name in ("COMMIT", "CODE_HASH", "ORDER", "STUDY", "PROGRESS")]
SETTINGS += ["TQDM_DISABLE"]
SETTINGS += ["CUDA_VISIBLE_DEVICES"] * (not torch.cuda.is_available())  # CUDA must not see others in mid-run
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in SETTINGS}
if not torch.cuda.is_available():  # what runs beside the tests does not take turns with them in steps on every core
    torch.set_num_threads(1)
    ENVIRONMENT["OMP_NUM_THREADS"] = "1"
# Test files that depend on the clock, so that nothing runs beside them.
TIMED = {"built_cases", "cli", "energy", "faults", "gpu", "load", "preflight", "process", "ray_cluster", "sampler"}
# Test files that wait for what runs beside the others.
WAITING = {"finder", "golden", "notebooks", "parameters", "published", "security", "standalone", "summary"}
# Test files of which every test is slow: they start batches of runs, train notebooks or draw whole reports.
SLOW = {"benchmarks", "cli", "faults", "golden", "notebooks", "process", "ray_cluster", "security", "studies"}
BESIDE = {}  # {name of a fixture: what prepares it}
sys.path.insert(0, str(ROOT))
from made_up_nvml import sampler  # noqa: E402, F401

from mixed_precision_study.standalone import build_wheel  # noqa: E402


def read_notebook(name):
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))


def code_cells(name):
    """Return {cell id: source} of a notebook's code cells, in order."""
    return {cell.id: cell.source for cell in notebook_file.code_cells(NOTEBOOKS / f"{name}.ipynb")}


def run_cells(name, last, **parameters):
    """Run a notebook's code cells up to the one with the id `last`, with parameters replaced, and return its names."""
    return notebook_cells.run_cells(NOTEBOOKS / f"{name}.ipynb", last, parameters)


def experiment_of(name, **parameters):
    """Run a notebook's cells and return its Experiment, which has trained nothing."""
    return notebook_cells.experiment_of(NOTEBOOKS / f"{name}.ipynb", parameters)


def beside(*params):
    """Make a session's fixture, for each of `params` if there are any, of what runs beside other tests.

    The function prepares an empty folder and returns what is then called on another thread. That must start processes
    with ENVIRONMENT, because the environment and the current folder of this process change with every test.
    """

    def decorate(prepare):
        @pytest.fixture(scope="session", name=prepare.__name__, params=params or None)
        def made(request, begun):
            return begun[prepare.__name__, getattr(request, "param", None)].result()

        BESIDE[prepare.__name__] = prepare
        return made

    return decorate


@pytest.fixture(scope="session")
def begun(request, tmp_path_factory):
    """{(fixture, param): future} of all that the chosen tests need of BESIDE, in their order, two at a time."""
    wanted = {}  # as a set that keeps its order
    for item in request.session.items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        wanted |= dict.fromkeys((name, params.get(name)) for name in item.fixturenames if name in BESIDE)
    pool, futures = ThreadPoolExecutor(2), {}
    for name, param in wanted:
        words = [tmp_path_factory.mktemp(name)] + [param] * (param is not None)
        futures[name, param] = pool.submit(BESIDE[name](*words))
    yield futures
    pool.shutdown(cancel_futures=True)


@pytest.fixture(autouse=True)
def long_ones_begin(request):
    """What runs beside the tests begins with the first of those that it does not disturb."""
    if subject(request.node) not in TIMED:
        request.getfixturevalue("begun")


def subject(item):
    """Return what a test's file is about: its name without test_."""
    return item.path.stem.removeprefix("test_")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what is slow. First comes what depends on the clock, with nothing beside it; what waits comes last."""
    for item in items:
        prepared = BESIDE.keys() | {"pooled"}
        drawn = item.path.parent.name == "report"
        if drawn or subject(item) in SLOW or prepared & set(item.fixturenames) or item.get_closest_marker("exhaustive"):
            item.add_marker("slow")
    items.sort(key=lambda item: (subject(item) not in TIMED) + (subject(item) in WAITING))


def pytest_collection_finish():
    """Spare the many objects of the imported packages from being looked through whenever memory is cleaned up."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    """Every test starts in an empty folder, as a notebook on Colab does, and finds no settings of the shell."""
    monkeypatch.chdir(tmp_path)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)


@beside()
def wheel(folder):
    """The package's wheel, built once for all tests."""
    return lambda: build_wheel(folder)


@pytest.fixture(scope="session")
def everything():
    """(report, charts) of records with every status; see made_up_records.py."""
    import made_up_records
    from drawn_reports import drawn

    return drawn(made_up_records.write_everything)


@pytest.fixture(scope="session")
def pooled():
    """(report, charts), on records as all studies of published experiments bring them into one folder."""
    import made_up_records
    from drawn_reports import drawn

    return drawn(made_up_records.write_pool)
