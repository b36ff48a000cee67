"""The code cells of a notebook: what is read, what is run, and that the module goes where it is needed."""

import ast
import json
import sys

import pytest
from conftest import NOTEBOOKS, ROOT

import cluster
from notebook_code import code_cells, run_cells


@pytest.fixture
def small(tmp_path):
    """A notebook whose last cell fails, with words that are tagged like the parameters."""
    cells = [{"cell_type": "markdown", "id": "words", "metadata": {"tags": ["parameters"]}, "source": ["no code"]}]
    for name, tags, source in (
        ("first", ["parameters"], "x = 1\n"),
        ("second", [], "y = x + 1\nz = y"),
        ("third", [], "1 / 0"),
    ):
        source = source.splitlines(keepends=True)
        cells.append({"cell_type": "code", "id": name, "metadata": {"tags": tags}, "source": source})
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_code_cells_are_read_whole_and_in_order(small):
    assert [tuple(cell) for cell in code_cells(small)] == [
        ("first", "x = 1\n", True),
        ("second", "y = x + 1\nz = y", False),
        ("third", "1 / 0", False),
    ]


def test_cells_run_up_to_the_last_one_asked_for_with_parameters_replaced(small):
    names = run_cells(small, "second", {"x": 3})
    assert (names["x"], names["z"], names["__name__"], names["display"]) == (3, 4, "small", print)
    assert vars(sys.modules["small"]) is names  # where torch.compile looks for the names of a function
    with pytest.raises(ZeroDivisionError):
        run_cells(small, "third", {})


def test_a_cell_or_a_parameter_that_a_notebook_lacks_is_named(small):
    with pytest.raises(LookupError, match="small has no cell 'fourth'"):
        run_cells(small, "fourth", {})
    with pytest.raises(LookupError, match="small has no parameter a, b"):
        run_cells(small, "second", {"b": 1, "a": 2, "x": 3})


def test_what_a_node_of_a_cluster_imports_travels_there():
    ours = {path.stem: path for path in (*ROOT.glob("*.py"), *NOTEBOOKS.glob("*.py"))}
    paths = [ROOT / name for name in cluster.NEEDED]
    assert all(path.exists() for path in paths) and "notebook_code.py" in cluster.NEEDED
    for path in paths:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:  # at its import, not within a function
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert {ours[name] for name in names if name in ours} <= set(paths), (path.name, names)
