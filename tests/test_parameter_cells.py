"""The notebooks as they are committed: no outputs, one cell of flat literals, the declared parameters."""

import ast

import papermill
import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, code_cells, read_notebook

from mixed_precision_study.parameters import EXPERIMENTS as DECLARED
from mixed_precision_study.record import FIELDS

ALL = (*EXPERIMENTS, "summary", "your_model")
CELLS = "finder imports parameters check training-step data model evaluate run results"


@pytest.mark.parametrize("name", ALL)
def test_sources_carry_no_outputs(name):
    cells = read_notebook(name)["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize("name", ALL)
def test_papermill_sees_every_line_of_the_one_parameters_cell(name, capsys):
    (cell,) = [cell for cell in read_notebook(name)["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    lines = ast.parse("".join(cell["source"])).body
    values = {line.targets[0].id: ast.literal_eval(line.value) for line in lines}  # flat literals only
    assert all("  # " in line or line.startswith("#") for line in cell["source"])
    seen = papermill.inspect_notebook(str(NOTEBOOKS / f"{name}.ipynb"))
    assert {key: ast.literal_eval(item["default"]) for key, item in seen.items()} == values


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_parameters_cell_shows_declared_defaults_and_what_run_all_sets_stands_in_none(name):
    values = {}
    exec(code_cells(name)["parameters"], values)
    shown = {key: value for key, value in values.items() if key != "__builtins__"}
    assert len(shown) <= 20 and "repeat" not in shown
    assert {key: DECLARED[name].model_fields[key].default for key in shown} == shown
    assert list(code_cells(name)) == CELLS.split()
    assert code_cells(name)["check"].splitlines()[0] == f'settings = check_parameters("{name}", globals())'


def test_no_parameter_has_the_name_of_a_field_beside_which_it_stands_in_a_record():
    assert [name for declared in DECLARED.values() for name in declared.model_fields if name in FIELDS] == []
