"""The parameters as they are declared: what passes, what a sentence refuses, and which names of a notebook count."""

import pytest
from conftest import EXPERIMENTS

from mixed_precision_study import parameters
from mixed_precision_study.parameters import (
    OwnExperiment,
    UserError,
    check_parameters,
    checked,
    own_parameters,
    parameters_cell,
)

ADDED = "# Parameters\n"  # as papermill begins the cell that it adds
CIFAR = parameters_cell(parameters.EXPERIMENTS["cifar_resnet"], shown_only=True)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_default_passes_its_own_check_and_has_a_help_of_one_line(name):
    declared = parameters.EXPERIMENTS[name]
    defaults = {key: field.default for key, field in declared.model_fields.items()}
    for kind in (declared, OwnExperiment):
        assert kind.model_validate(kind().model_dump()) == kind()
    assert checked(name, defaults).model_dump() == defaults
    assert all(field.description and "\n" not in field.description for field in declared.model_fields.values())
    assert len(parameters_cell(declared, shown_only=True).splitlines()) <= 20
    values = {}
    exec(parameters_cell(declared), values)
    assert {key: values[key] for key in defaults} == defaults


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"lr": 1}, 1.0),
        ({"lr": "1e-3"}, 0.001),  # as YAML reads it
        ({"loss_scale": "128"}, 128.0),
        ({"batch_size": "max"}, "max"),
        ({"precisions": "tf32, fp32,tf32"}, ["tf32", "fp32"]),
        ({"model": "wide_resnet28_10"}, "wide_resnet28_10"),  # the suite's own, which timm does not have
        ({"model": "mobilenetv3_small_050"}, "mobilenetv3_small_050"),
    ],
    ids=str,
)
def test_what_a_person_means_is_converted(given, value):
    (name,) = given
    found = getattr(checked("cifar_resnet", given), name)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"batch_size": -1}, "1"),
        ({"batch_size": 1.5}, "max"),
        ({"epochs": True}, "integer"),
        ({"epochs": 2**63}, "less"),
        ({"lr": 0}, "0"),
        ({"lr": 10**400}, "number"),
        ({"lr": "nan"}, "finite"),
        ({"dropout": 1}, "less"),
        ({"seed": 2**32}, "less"),
        ({"dataset": "cifr10"}, "'cifar10'"),
        ({"precisions": ["amp_fp1"]}, "'amp_fp16'"),
        ({"precisions": []}, "1"),
        ({"precisions": [["fp32"]]}, "bf16_true"),
        ({"data_dir": "a\0"}, "match"),
        ({"data_dir": "\ud800"}, "unicode"),
        ({"data_dir": "x" * 3_000}, "2000"),
        ({"loss_scale": "static"}, "dynamic"),
        ({"channels_last": 1}, "boolean"),
        ({"model": "resnet19"}, "resnet18"),
        ({"model": "resnet19", "image_width": 64}, "resnet18"),
        ({"model": "bert", "layers": 1}, "lstm"),
        ({"batchsize": 4}, "did you mean batch_size?"),
    ],
    ids=lambda given: str(given)[:40].encode("ascii", "replace").decode(),
)
def test_a_wrong_value_is_named_in_one_sentence_with_what_would_do(wrong, hint):
    name = next(iter(wrong))
    owners = [one for one in EXPERIMENTS if wrong.keys() <= parameters.EXPERIMENTS[one].model_fields.keys()]
    with pytest.raises(UserError) as stopped:
        checked((owners or EXPERIMENTS)[0], wrong)
    said = str(stopped.value)
    assert name in said and hint in said and "\n" not in said
    assert len(said) < 600 and len(stopped.value._render_traceback_()) == 1


def test_timm_models_are_timms_own_though_they_are_read_without_loading_it():
    import timm

    assert sorted(parameters.timm_models()) == sorted(timm.list_models())


def test_an_output_folder_is_made_and_one_that_cannot_be_written_stops(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="output_dir"):
        own_parameters("own", {"output_dir": str(tmp_path / "file")})
    own_parameters("own", {"output_dir": str(tmp_path / "new" / "folder")})
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def namespace(*cells):
    """Return a kernel's globals() after these cells."""
    names = {"clip": "another's", "In": ["", "import torch", *cells]}
    for source in cells:
        if not source.startswith("%"):
            exec(source, names)
    return names


@pytest.mark.parametrize(
    ("cells", "changed"),
    [
        ([CIFAR], {}),
        ([CIFAR, f"{ADDED}batch_size = 4\nrepeat = 1\n"], {"batch_size": 4, "repeat": 1}),
        ([f"{CIFAR}\nclip: float = 2\nepochs = 2 + 3 * 1"], {"clip": 2.0, "epochs": 5}),  # hidden ones in the same cell
        ([CIFAR.replace("epochs = 5", "")], {}),  # a line that is gone has its default
        ([CIFAR, "num_workers = 9\nlog = 1", "%matplotlib inline"], {}),  # other cells set other names
        ([f"{CIFAR}\nclip = 2", CIFAR], {}),  # mended and run once more
        ([CIFAR, f"{ADDED}clip = 3"] * 2, {"clip": 3.0}),  # Run All, twice
    ],
)
def test_names_count_that_the_parameters_cell_or_papermills_cell_assigns(cells, changed):
    given = namespace(*cells)
    settings = check_parameters("cifar_resnet", given)
    assert settings.model_dump() == checked("cifar_resnet", changed).model_dump()
    given["In"] += ["settings = ...", "lr = 7"]
    assert check_parameters("cifar_resnet", given) == settings


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ([f"{CIFAR}\nbacth_size = 4"], r"bacth_size; did you mean batch_size\?"),
        ([CIFAR, f"{ADDED}bacth_size = 4"], r"bacth_size; did you mean batch_size\?"),
        ([f"%%time\n{CIFAR}"], "parameters cell"),
    ],
)
def test_a_misspelt_name_or_a_cell_that_is_not_plain_python_stops(cells, says):
    with pytest.raises(UserError, match=says):
        check_parameters("cifar_resnet", namespace(*cells))
