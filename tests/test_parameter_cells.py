"""The notebooks as they are committed: no outputs, one cell of flat literals, the parameters of the design."""

import ast

import papermill
import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, code_cells, experiment_of, read_notebook

from mixed_precision_study.parameters import EXPERIMENTS as DECLARED
from mixed_precision_study.record import flat_record, new_record

ALL = (*EXPERIMENTS, "summary", "your_model")


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
    assert list(seen) == [one.name for one in DECLARED[name]]
    assert code_cells(name)["check"].splitlines()[0] == f'settings = check_parameters("{name}", globals())'


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_record_gets_each_parameter_under_its_own_name(name, tmp_path):
    options = {"dataset": "synthetic", "epochs": 1, "max_steps": 1, "precisions": ["tf32"]}  # no training on a CPU
    experiment = experiment_of(name, **options, output_dir=str(tmp_path))
    record = new_record(name, vars(experiment.parameters), "fp32", experiment.facts())
    assert {one.name for one in DECLARED[name]} <= set(flat_record(record))


CELLS = "finder imports parameters check training-step data model evaluate run results"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_experiments_have_the_same_cells_in_the_same_order(name):
    assert list(code_cells(name)) == CELLS.split()


def test_the_finder_is_the_same_in_every_notebook():
    cells = {name: next(one for one in read_notebook(name)["cells"] if one["id"] == "finder") for name in ALL}
    texts = {name: "".join(cell["source"]) for name, cell in cells.items()}
    report = texts.pop("summary")
    assert len({str(cell["metadata"]) for cell in cells.values()}) == len(set(texts.values())) == 1
    text = next(iter(texts.values()))
    assert report == text[: text.rindex("\nprint(")]  # its first output is the title of the report
    assert all(read_notebook(name)["cells"][0]["cell_type"] == "markdown" for name in ALL)
