"""The studies files against the notebooks they name, and what is asked for on the command line."""

import json
import re

import pytest
import yaml
from conftest import CASES, NOTEBOOKS, ROOT, refuses

from mixed_precision_study.report.files import study_of
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.runner.status import shown
from mixed_precision_study.runner.studies import (
    chosen_studies,
    expanded,
    load_studies,
    notebooks_for,
    parse_overrides,
)
from mixed_precision_study.store.reading import read_records
from mixed_precision_study.store.record import comparison_key, new_record, write_record
from mixed_precision_study.store.variables import STUDY_ENV

OWN, ARTICLES = (load_studies(NOTEBOOKS / f"{name}.yaml") for name in ("studies", "articles"))
STUDIES = OWN | ARTICLES


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_of_a_study_is_accepted(name, tmp_path, monkeypatch):
    plan(STUDIES[name], NOTEBOOKS, tmp_path, {}, on_gpu=False)
    comparisons, left_out = plan(STUDIES[name], NOTEBOOKS, tmp_path, {}, on_gpu=True)
    runs = [run for comparison in comparisons for run in comparison]
    assert runs and not left_out
    show = STUDIES[name].get("show", {})
    for setting in [show["over"]] if isinstance(show.get("over"), str) else show.get("over", []):
        assert len({run.parameters.get(setting) for run in runs}) >= 3, setting
    for step in show.get("steps", ()):
        setting, value = list(step.items())[1]
        found = {run.parameters.get(setting) for run in runs} | {
            name for run in runs for _, name in run.trainings.values()
        }
        assert found >= set(value if isinstance(value, list) else [value]), setting
    monkeypatch.setenv(STUDY_ENV, json.dumps(runs[0].study))  # as a run gets it
    record = new_record("cifar_resnet", runs[0].parameters, "fp32", {})
    write_record(record, tmp_path)
    ((record,), left_out) = read_records(tmp_path)
    assert study_of(tmp_path, [record]).model_dump() == record["study"]
    assert record["study"] == {
        "axis": STUDIES[name].get("axis", "precision"),
        "base": STUDIES[name].get("base"),
        "name": name,
        "description": STUDIES[name]["description"],
        "show": show,
    }
    assert comparison_key(record) == comparison_key({**record, "study": None})


ENTRY = {"notebook": "cifar_resnet"}


@pytest.mark.parametrize(
    "study, where",
    CASES["wrong studies"],
)
def test_a_study_of_a_wrong_form_is_named_with_the_place(study, where, tmp_path):
    (tmp_path / "s.yaml").write_text(f"mine: {study}")
    with refuses() as stopped:
        load_studies(tmp_path / "s.yaml")
    assert where in str(stopped.value) and "mine" in str(stopped.value)


@pytest.mark.parametrize(
    "text", ["", "[1]", "a: [", "\0", "one: !!python/object/apply:os.mkdir [made]"]
)
def test_a_file_that_holds_no_studies_stops(text, tmp_path):
    (tmp_path / "s.yaml").write_text(text)
    with refuses(r"s\.yaml"):
        load_studies(tmp_path / "s.yaml")
    assert not (tmp_path / "made").exists()  # no text makes objects
    for name in ("none.yaml", ".", "/dev/zero"):
        with refuses("cannot be read"):
            load_studies(tmp_path / name)


def test_the_study_of_an_output_folder_runs(tmp_path):
    said = {"name": "once", "description": "one-off", "show": {"quality": True}}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**said, "runs": [ENTRY]}))
    (tmp_path / "summary.ipynb").touch()  # the report of that folder
    studies = load_studies(path)
    about = study_of(tmp_path, []).model_dump()
    assert studies["once"]["about"] == said | {"axis": "precision", "base": None} == about
    assert list(chosen_studies(studies, [])) == ["once"]
    assert notebooks_for(path, studies) == NOTEBOOKS
    (tmp_path / "cifar_resnet.ipynb").touch()  # a stranger's notebook in an output folder
    assert notebooks_for(path, studies) == NOTEBOOKS
    assert notebooks_for(tmp_path / "studies.yaml", studies) == tmp_path


def test_without_a_word_it_is_quick_or_all():
    assert list(chosen_studies(OWN, [])) == ["quick"]
    # the GPT comes last, so that the three others are there as early as without it
    assert OWN["quick"]["runs"][-1]["notebook"] == "transformer"
    assert chosen_studies(ARTICLES, []) == ARTICLES
    (study,) = chosen_studies(
        OWN, ["quick/lstm_language_model.ipynb", "quick/cifar_resnet"]
    ).values()
    assert [entry["notebook"] for entry in study["runs"]] == ["cifar_resnet", "lstm_language_model"]


@pytest.mark.parametrize(
    "word, hint",
    {
        "quik": "did you mean quick?",
        "cifar_resnet": "quick",
        "quick/cifar_resnt": "cifar_resnet?",
    }.items(),
)
def test_a_wrong_word_is_answered_with_the_right_one(word, hint):
    with refuses(re.escape(hint)):
        chosen_studies(OWN, [word])


def test_values_are_yaml_and_paths_of_the_current_folder(tmp_path):
    given = [("lr", "1e-3"), ("precisions", "[fp32]"), ("n.csv_path", "a.csv"), ("csv_path", "")]
    # a number that YAML reads otherwise stays text, which no parameter takes
    found = parse_overrides([*given, ("data_dir", str(ROOT / "data")), ("epochs", "0100")])
    assert found == {
        **{
            "lr": "1e-3",
            "precisions": ["fp32"],
            "data_dir": "data",
            "csv_path": "",
            "epochs": "0100",
        },
        "n.csv_path": (tmp_path / "a.csv").as_posix(),
    }
    assert (shown("mine"), shown(ROOT / "outputs")) == ("mine", str(ROOT / "outputs"))


@pytest.mark.parametrize("name", ["[x]", "{a: b}"])
def test_a_study_whose_name_is_no_text_is_one_sentence(tmp_path, name):
    (tmp_path / "s.yaml").write_text(f"name: {name}\nruns: [{{notebook: cifar_resnet}}]\n")
    with refuses("name"):
        load_studies(tmp_path / "s.yaml")


@pytest.mark.parametrize(
    "pair", [("output_dir", "x"), ("lr", "[" * 400), ("lr", "x: 1: 2"), ("data_dir", "~no/x")]
)
def test_an_option_that_cannot_be_is_one_sentence(pair):
    with refuses(pair[0]):
        parse_overrides([pair])
    with refuses("--report"):
        expanded("\udcff", "--report")


def own_study(folder, said):
    """Return a study of two values of a parameter, which says this of its axis."""
    swept = "{notebook: cifar_resnet, sweep: {checkpointing: [none, blocks]}}"
    (folder / "studies.yaml").write_text(f"own: {{runs: [{swept}], {said}}}")
    return load_studies(folder / "studies.yaml")["own"]


@pytest.mark.parametrize(
    "said, base, interleaved",
    CASES["axes of studies"],
)
def test_a_study_says_its_axis_and_base(tmp_path, said, base, interleaved):
    study = own_study(tmp_path, said)
    assert (study["about"]["base"], study.get("interleaved")) == (base, interleaved)


@pytest.mark.parametrize(
    "said",
    [
        "axis: checkpointing, base: nones",
        "axis: remedy",  # which no entry sweeps
        "axis: [precision, checkpointing]",
        "axis: 3",
        "axis: []",
        "base: [tf32, fp32]",
    ],
)
def test_an_axis_that_compares_nothing_is_refused(tmp_path, said):
    with refuses("own"):
        own_study(tmp_path, said)
