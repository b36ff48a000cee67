"""What the tests share: the shared sections as modules, and the cells of a notebook as functions."""

import gc
import json
import signal
import sys
from pathlib import Path

import matplotlib
import pytest
import torch

matplotlib.use("Agg")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a shell's background, and so in all that the tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)
ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
EXPERIMENTS = ("cifar_resnet", "efficientnet_regression", "lstm_language_model")
sys.path[:0] = [str(ROOT), str(NOTEBOOKS)]
import notebook_code  # noqa: E402


def read_notebook(name):
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))


def code_cells(name):
    """Return {cell id: source} of a notebook's code cells, in order."""
    return {cell.id: cell.source for cell in notebook_code.code_cells(NOTEBOOKS / f"{name}.ipynb")}


def run_cells(name, last, **parameters):
    """Run a notebook's code cells up to the one with the id `last`, with parameters replaced, and return its names."""
    return notebook_code.run_cells(NOTEBOOKS / f"{name}.ipynb", last, parameters)


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
    settings = ["COMMIT", "CODE_HASH", "STUDY", "PROGRESS"]
    settings = [*(f"MIXED_PRECISION_{name}" for name in settings), "TQDM_DISABLE"]
    settings += ["CUDA_VISIBLE_DEVICES"] * (not torch.cuda.is_available())  # CUDA must not see others in mid-run
    for name in settings:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def pooled(tmp_path_factory):
    """(names, charts) of the summary, on records as all studies of published experiments bring them into one folder."""
    import made_up_records
    from test_summary import explore

    folder = tmp_path_factory.mktemp("pooled")
    made_up_records.write_pool(folder)
    return explore(folder)
