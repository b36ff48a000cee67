"""Parameters: what passes, what a sentence refuses, which names of a notebook count, and what
one declares itself.
"""

import json

import pytest
from conftest import CASES, EXPERIMENTS, NOTEBOOKS, code_cells, refuses

from mixed_precision_study import parameters
from mixed_precision_study.parameters import (
    PLANNED_ENV,
    Common,
    OwnExperiment,
    assignments,
    check_parameters,
    checked,
    declared_by,
    own_parameters,
)
from mixed_precision_study.runner.plan import parameters_of

ADDED = "# Parameters\n"  # as papermill begins the cell that it adds
CIFAR = code_cells("cifar_resnet")["parameters"]
DECLARED = {
    name: parameters_of(NOTEBOOKS / f"{name}.ipynb")[0] for name in (*EXPERIMENTS, "your_model")
}


@pytest.mark.parametrize("name", DECLARED)
def test_every_default_passes_its_own_check(name):
    declared, cell = parameters_of(NOTEBOOKS / f"{name}.ipynb")
    defaults = {key: field.default for key, field in declared.model_fields.items()}
    assert checked(name, defaults, declared).model_dump() == defaults
    assert (
        cell.items() <= defaults.items()
        and defaults.keys() == Common.model_fields.keys() | cell.keys()
    )


@pytest.mark.parametrize(
    "given, value",
    CASES["meant"],
    ids=str,
)
def test_what_a_person_means_is_converted(given, value):
    (name,) = given
    found = getattr(checked("cifar_resnet", given, DECLARED["cifar_resnet"]), name)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "wrong, hint",
    [*CASES["wrong values"], ({"lr": 10**400}, "number"), ({"data_dir": "x" * 3_000}, "2000")],
    ids=lambda given: str(given)[:40].encode("ascii", "replace").decode(),
)
def test_a_wrong_value_is_named_in_one_sentence(wrong, hint):
    name = next(iter(wrong))
    owners = [one for one in EXPERIMENTS if wrong.keys() <= DECLARED[one].model_fields.keys()]
    owner = (owners or EXPERIMENTS)[0]
    with refuses() as stopped:
        checked(owner, wrong, DECLARED[owner])
    said = str(stopped.value)
    assert name in said and hint in said
    assert len(said) < 600 and len(stopped.value._render_traceback_()) == 1


def test_timm_models_are_timms_own_without_loading_it():
    import timm

    assert sorted(parameters.timm_models()) == sorted(timm.list_models())


def test_an_output_folder_is_made_or_stops(tmp_path):
    (tmp_path / "file").write_text("")
    with refuses("output_dir"):
        own_parameters("own", {"output_dir": str(tmp_path / "file")})
    own_parameters("own", {"output_dir": str(tmp_path / "new/folder")})
    assert list((tmp_path / "new/folder").iterdir()) == []


def namespace(*cells):
    """Return a kernel's globals() after these cells."""
    names = {**vars(parameters), "scaler": "another's", "In": ["", "import torch", *cells]}
    for source in cells:
        if not source.startswith("%"):
            exec(source, names)
    return names


@pytest.mark.parametrize(
    "cells, changed",
    [
        ([CIFAR], {}),
        ([CIFAR, f"{ADDED}batch_size = 4\nrepeat = 1\n"], {"batch_size": 4, "repeat": 1}),
        # hidden ones in the same cell
        ([f"{CIFAR}\nclip: float = 2\nepochs = 2 + 3 * 1"], {"clip": 2.0, "epochs": 5}),
        # a line that is gone has the common default
        ([CIFAR.replace("epochs: int = 5", "")], {"epochs": 3}),
        ([CIFAR, "repeat = 9\nlog = 1", "%matplotlib inline"], {}),  # other cells set other names
        ([f"{CIFAR}\nclip = 2", CIFAR], {}),  # mended and run once more
        ([CIFAR, f"{ADDED}clip = 3"] * 2, {"clip": 3.0}),  # Run All, twice
    ],
)
def test_names_count_that_either_cell_assigns(cells, changed):
    given = namespace(*cells)
    settings = check_parameters("cifar_resnet", given)
    assert (
        settings.model_dump()
        == checked("cifar_resnet", changed, DECLARED["cifar_resnet"]).model_dump()
    )
    given["In"] += ["settings = ...", "lr = 7"]
    assert check_parameters("cifar_resnet", given).model_dump() == settings.model_dump()


@pytest.mark.parametrize(
    "cells, says",
    [
        ([f"{CIFAR}\nbacth_size = 4"], r"bacth_size; did you mean batch_size\?"),
        ([CIFAR, f"{ADDED}bacth_size = 4"], r"bacth_size; did you mean batch_size\?"),
        ([f"%%time\n{CIFAR}"], "parameters cell"),
    ],
)
def test_a_misspelt_name_or_odd_cell_stops(cells, says):
    with refuses(says):
        check_parameters("cifar_resnet", namespace(*cells))


TYPES = [*CASES["types of a cell"], ("anything = None", {"a": [1]}, object())]


@pytest.mark.parametrize("line, right, wrong", TYPES, ids=[line for line, *_ in TYPES])
def test_a_cell_declares_names_types_and_defaults(line, right, wrong):
    ((name, (value, _)),) = assignments(line).items()
    declared = declared_by("mine", line, {name: parameters.ast.literal_eval(value)})
    assert getattr(checked("mine", {name: right}, declared), name) == right
    with refuses(name):
        checked("mine", {name: wrong}, declared)


@pytest.mark.parametrize("name", ["bacth_size", "precision", "_hidden", "model_fields"])
def test_a_name_that_cannot_be_a_parameter_is_refused(name):
    with refuses(name):
        declared_by("mine", f"{name} = 1", {name: 1})


def plan_of(monkeypatch, **given):
    values = {**OwnExperiment().model_dump(), "model": "mine", **given}
    monkeypatch.setenv(
        PLANNED_ENV, json.dumps({"parameters": values, "given": [*given, "output_dir"]})
    )


def test_under_run_all_what_is_planned_counts(monkeypatch, tmp_path):
    plan_of(monkeypatch, lr=0.5, layers=3, output_dir=str(tmp_path / "planned"))
    settings = own_parameters("mine", {"lr": 0.5, "epochs": 7, "output_dir": "elsewhere"})
    assert (settings.lr, settings.layers, settings.epochs) == (0.5, 3, 7)
    assert settings.output_dir == str(tmp_path / "planned")


def test_a_value_that_contradicts_the_plan_stops(monkeypatch, tmp_path):
    plan_of(monkeypatch, lr=0.5, output_dir=str(tmp_path))
    with refuses("assign lr in the parameters cell"):
        own_parameters("mine", {"lr": 0.1})
