"""The notebooks as they are committed: no outputs, one cell of flat literals, the parameters of the design."""

import ast

import papermill
import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, code_cells, read_notebook

ALL = (*EXPERIMENTS, "summary")


@pytest.mark.parametrize("name", ALL)
def test_sources_carry_no_outputs(name):
    notebook = read_notebook(name)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("name", ALL)
def test_papermill_sees_every_parameter(name, capsys):
    cells = [cell for cell in read_notebook(name)["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    assert len(cells) == 1
    tree = ast.parse("".join(cells[0]["source"]))
    values = {line.targets[0].id: ast.literal_eval(line.value) for line in tree.body}  # flat literals only
    assert all("  # " in line for line in cells[0]["source"])
    seen = papermill.inspect_notebook(str(NOTEBOOKS / f"{name}.ipynb"))
    assert {key: ast.literal_eval(item["default"]) for key, item in seen.items()} == values


COMMON = "dataset model precisions batch_size epochs max_steps lr loss_scale execution repeats seed data_dir output_dir"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_experiments_have_the_parameters_of_the_design(name):
    seen = papermill.inspect_notebook(str(NOTEBOOKS / f"{name}.ipynb"))
    assert set(COMMON.split()) <= set(seen)
    assert ("channels_last" in seen) is (name != "lstm_language_model")
    assert ast.literal_eval(seen["precisions"]["default"]) == ["fp32", "tf32", "amp_fp16", "amp_bf16"]
    tree = ast.parse(code_cells(name)["check"])
    call = next(
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict"
    )
    given = {keyword.arg: keyword.value.id for keyword in call.keywords}
    assert given == {key: key for key in seen}  # the record gets each parameter under its own name
