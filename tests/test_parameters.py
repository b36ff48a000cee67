"""The parameters as they are declared: what passes, and the sentence for what does not."""

import math

import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, code_cells
from notebook_outputs import cell_errors, executed, papermill

from mixed_precision_study import parameters
from mixed_precision_study.errors import UserError
from mixed_precision_study.parameters import (
    OWN_EXPERIMENT,
    Parameter,
    check_output_dir,
    check_parameters,
    check_values,
    names_set_by_cells,
    parameters_cell,
)
from mixed_precision_study.runner.plan import timm_models

CIFAR = {one.name: one.default for one in parameters.CIFAR_RESNET}
ADDED = "# Parameters\n"  # as papermill begins the cell that it adds


def own_values(name, **changes):
    return {one.name: one.default for one in parameters.EXPERIMENTS[name]} | changes


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_declared_default_passes_its_own_check(name, tmp_path):
    declared = parameters.EXPERIMENTS[name]
    assert check_values(name, own_values(name)) == own_values(name)
    assert all(one.checked(one.default) == one.default for one in (*declared, *OWN_EXPERIMENT))
    assert len({one.name for one in declared}) == len(declared)
    assert all(one.help and "\n" not in one.help for one in declared)


def test_right_parameters_pass_and_a_whole_rate_becomes_a_float():
    checked = check_values("cifar_resnet", CIFAR | {"lr": 1})
    assert checked == CIFAR | {"lr": 1.0}
    assert type(checked["lr"]) is float


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"batch_size": -1}, "batch_size is -1; it must be"),
        ({"batch_size": 1.5}, "batch_size is 1.5"),
        ({"batch_size": "3"}, "batch_size is '3'"),
        ({"epochs": True}, "epochs is True"),
        ({"epochs": "3"}, "epochs is '3'"),
        ({"epochs": 0}, "epochs is 0; it must be a whole number of 1 or more"),
        ({"max_steps": -1}, "0 or more"),
        ({"max_steps": 2.0}, "max_steps is 2.0; it must be a whole number"),
        ({"lr": 0}, "lr is 0; it must be a number above 0"),
        ({"lr": math.inf}, "lr is inf"),
        ({"lr": math.nan}, "lr is nan"),
        ({"lr": -math.inf}, "lr is -inf"),
        ({"lr": True}, "lr is True"),
        ({"lr": "0.1"}, "lr is '0.1'"),
        ({"lr": None}, "lr is None"),
        ({"dropout": 1}, "dropout is 1; it must be a number from 0 up to, but not including, 1"),
        ({"memory_limit_gib": math.inf}, "memory_limit_gib is inf"),
        ({"memory_limit_gib": -1}, "memory_limit_gib is -1"),
        ({"dataset": "mnist"}, "dataset is 'mnist'; possible are auto, cifar10, cifar100, synthetic"),
        ({"more_seeds": [1, 1]}, "more_seeds is [1, 1]; it must be a list of whole numbers of 0 or more, each once"),
        ({"more_seeds": [-1]}, "more_seeds is [-1]"),
        ({"more_seeds": [True]}, "more_seeds is [True]"),
        ({"more_seeds": "[1, 2]"}, "papermill takes a list with -y"),
        ({"more_seeds": [0]}, "more_seeds has 0, which is the seed already; leave it out."),
        ({"precisions": ["fp99"]}, "some of fp32, tf32, amp_fp16, amp_bf16, o2_fp16, o3_fp16"),
        ({"precisions": []}, "precisions is"),
        ({"precisions": "fp32"}, "it must be a list"),
        ({"precisions": ["fp32", "fp32"]}, "each once"),
        ({"precisions": '["fp32"]'}, "papermill takes a list with -y"),
        ({"precisions": [["fp32"]]}, "it must be a list"),
        ({"data_dir": None}, "data_dir is None; it must be text in quotes"),
        ({"model": 18}, "model is 18; it must be text"),
        ({"loss_scale": "static"}, 'it must be "dynamic" or a number above 0'),
        ({"loss_scale": 0}, "loss_scale is 0"),
        ({"loss_scale": math.nan}, "loss_scale is nan"),
        ({"loss_scale": math.inf}, "loss_scale is inf"),
        ({"loss_scale": True}, "loss_scale is True"),
        ({"execution": "graph"}, "possible are eager, compile, cuda_graph, compile_cuda_graph."),
        ({"compile_mode": "fast"}, "possible are default, coordinate-descent, max-autotune-no-cudagraphs."),
        ({"channels_last": 1}, "True or False"),
        ({"batchsize": 4}, "no parameter batchsize; did you mean batch_size?"),
    ],
    ids=str,
)
def test_wrong_parameters_stop_with_one_sentence(wrong, sentence):
    with pytest.raises(UserError) as stopped:
        check_values("cifar_resnet", CIFAR | wrong)
    assert sentence in str(stopped.value)
    assert "\n" not in str(stopped.value)
    assert len(stopped.value._render_traceback_()) == 1


def test_a_parameter_that_is_missing_is_named():
    with pytest.raises(UserError, match="lacks the parameter momentum_of_nothing"):
        check_values("n", {}, [Parameter("momentum_of_nothing", 1, "help", least=0)])


def test_a_model_of_timm_is_looked_up_and_the_nearest_ones_are_named():
    names = own_values("cifar_resnet", model="resnet19")
    assert check_values("cifar_resnet", names)["model"] == "resnet19"  # which does not load timm
    with pytest.raises(UserError, match=r"'resnet19' is not in timm; the nearest names: .*resnet18"):
        check_parameters("cifar_resnet", names)
    assert check_parameters("cifar_resnet", names | {"model": "mobilenetv3_small_050"}).model == "mobilenetv3_small_050"


def test_the_models_that_run_all_reads_from_timms_source_are_timms_own():
    import timm

    assert timm_models() == sorted(timm.list_models())


def test_a_wrong_list_is_not_sent_to_papermill():
    with pytest.raises(UserError) as stopped:
        check_values("cifar_resnet", CIFAR | {"precisions": ["fp99"]})
    assert "papermill" not in str(stopped.value)


def test_an_output_folder_that_cannot_be_written_stops_with_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written .*choose another folder"):
        check_output_dir(str(tmp_path / "file"))
    check_output_dir(str(tmp_path / "new" / "folder"))
    assert list((tmp_path / "new" / "folder").iterdir()) == []


# Misspelt names


def namespace(name, *added, cell=None, later=(), **values):
    """Return a kernel's globals() as they are when the check cell runs: papermill's cell comes after the parameters."""
    cell = parameters_cell(parameters.EXPERIMENTS[name]) if cell is None else cell
    cells = ["", "import torch", cell, *added, "settings = check_parameters(...)", *later]
    names = own_values(name) | values
    for source in (cell, *added, *later):
        exec(source, names)
    return names | {"In": cells}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_notebook_as_it_is_passes(name):
    checked = check_parameters(name, namespace(name, f"{ADDED}batch_size = 4\n"))
    assert vars(checked) == own_values(name, batch_size=4)


def test_a_misspelt_name_that_papermill_was_given_stops_with_the_right_one():
    given = namespace("lstm_language_model", f"{ADDED}bacth_size = 4\n")
    with pytest.raises(UserError, match="has no parameter bacth_size; did you mean batch_size") as stopped:
        check_parameters("lstm_language_model", given)
    assert "\n" not in str(stopped.value)


def test_a_misspelt_name_in_the_parameters_cell_stops_with_the_right_one():
    cell = parameters_cell(parameters.CIFAR_RESNET) + "\nepoch = 3"
    with pytest.raises(UserError, match="has no parameter epoch; did you mean epochs"):
        check_parameters("cifar_resnet", namespace("cifar_resnet", cell=cell))


def test_a_line_that_is_gone_from_the_parameters_cell_is_asked_for():
    given = namespace("cifar_resnet")
    del given["batch_size"]
    with pytest.raises(UserError, match="batch_size"):
        check_parameters("cifar_resnet", given)


def test_the_check_may_run_again_after_later_cells_have_set_other_names():
    later = ("log = 1", "data = 2\nrecords = []", "%matplotlib inline", "def f(:", "written = {}", "model_name = 'x'")
    given = namespace("cifar_resnet", f"{ADDED}batch_size = 4\n", later=later[:2])
    given["In"] += [*later, "settings = check_parameters(...)"]
    assert check_parameters("cifar_resnet", given).batch_size == 4


def test_a_mended_parameters_cell_that_runs_again_forgets_the_misspelt_one():
    wrong, right = (parameters_cell(parameters.CIFAR_RESNET) + more for more in ("\nepoch = 3", ""))
    assert "epoch" in names_set_by_cells(["", wrong])
    assert "epoch" not in names_set_by_cells(["", wrong, "settings = ...", right])
    assert names_set_by_cells(["", right, f"{ADDED}lr = 1\nbeta = 2\n"])[-2:] == ["lr", "beta"]


@pytest.mark.parametrize("wrong", [{"lr": math.nan}, {"lr": math.inf}, {"epochs": True}, {"batch_size": "3"}])
def test_a_wrong_value_from_papermill_stops(wrong):
    (name,) = wrong
    with pytest.raises(UserError, match=f"^{name} is "):
        check_parameters("cifar_resnet", own_values("cifar_resnet", **wrong))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_parameters_cell_of_the_notebook_is_the_declared_one(name):
    source = code_cells(name)["parameters"]
    assert source == parameters_cell(parameters.EXPERIMENTS[name])
    names = {}
    exec(source, names)
    assert {key: names[key] for key in own_values(name)} == own_values(name)
    assert all(type(names[key]) is type(value) for key, value in own_values(name).items())


@pytest.fixture(scope="module")
def misspelt(tmp_path_factory):
    """(folder, process) of papermill with a parameter that the notebook does not have."""
    folder = tmp_path_factory.mktemp("misspelt")
    asked = {"dataset": "synthetic", "max_steps": 1, "generate_words": 0, "bacth_size": 4}
    return folder, papermill(NOTEBOOKS / "lstm_language_model.ipynb", folder, **asked)


def test_papermill_with_a_misspelt_name_ends_with_one_sentence_and_measures_nothing(misspelt):
    folder, done = misspelt
    assert done.returncode != 0
    (error,) = cell_errors(executed(folder))
    assert "notebook lstm_language_model has no parameter bacth_size; did you mean batch_size?" in error["evalue"]
    assert error["traceback"] == [f"Stopped: {error['evalue']}"]
    assert not list(folder.rglob("*.json"))
