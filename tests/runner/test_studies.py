"""studies.yaml against the notebooks it names: every entry can be planned as it stands, with and without a GPU."""

import json
import re
from pathlib import Path

import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT

from mixed_precision_study.record import STUDY_ENV, RunRecord, comparison_key, read_records, write_record
from mixed_precision_study.report.study import study_of
from mixed_precision_study.runner import cli
from mixed_precision_study.runner.plan import check_values, notebook_defaults, plan
from mixed_precision_study.runner.studies import load_studies, parse_overrides

STUDIES = load_studies(NOTEBOOKS / "studies.yaml")
ENTRIES = [(name, number, entry) for name, study in STUDIES.items() for number, entry in enumerate(study["runs"], 1)]


@pytest.mark.parametrize("name, number, entry", ENTRIES, ids=[f"{name}-{number}" for name, number, _ in ENTRIES])
def test_entry_names_a_notebook_and_its_parameters(name, number, entry):
    defaults = notebook_defaults(NOTEBOOKS / f"{entry['notebook']}.ipynb")
    for part in ("parameters", "sweep", "cpu"):
        assert set(entry.get(part, ())) <= set(defaults), part
    for on_gpu in (True, False) if "cpu" in entry else (True,):
        comparisons, left_out = plan({"runs": [entry]}, NOTEBOOKS, ROOT / "outputs", {}, on_gpu)
        assert comparisons
        assert not left_out


@pytest.mark.parametrize("name", STUDIES)
def test_what_a_study_shows_is_in_its_runs_and_their_records_say_it(name, tmp_path, monkeypatch):
    comparisons, _ = plan(STUDIES[name], NOTEBOOKS, tmp_path, {}, on_gpu=True)
    runs = [run for comparison in comparisons for run in comparison]
    over = STUDIES[name].get("show", {}).get("over", [])
    for setting in [over] if isinstance(over, str) else over:
        assert len({run.parameters.get(setting) for run in runs}) >= 3, setting
    for step in STUDIES[name].get("show", {}).get("steps", ()):
        setting, value = list(step.items())[1]
        values = {run.precision if setting == "precision" else run.parameters.get(setting) for run in runs}
        assert values >= set(value if isinstance(value, list) else [value]), setting
    monkeypatch.setenv(STUDY_ENV, json.dumps(runs[0].study))  # as launch() does
    record = RunRecord("a-run", "cifar_resnet", "fp32", {"model": "resnet18", "batch_size": 128, "seed": 0})
    write_record(record, tmp_path)
    (record,), left_out = read_records(tmp_path)
    said = {"show": {}, **{key: value for key, value in STUDIES[name].items() if key in ("description", "show")}}
    assert not left_out
    assert study_of(tmp_path, [record])._asdict() == record["study"] == {"name": name, **said}
    assert comparison_key(record) == comparison_key({**record, "study": None})


@pytest.mark.parametrize("on_gpu", [True, False])
def test_quick_compares_four_precisions_in_every_experiment_and_its_repetitions_take_turns(on_gpu):
    overrides = parse_overrides([("repeats", "2")])
    comparisons, left_out = plan(STUDIES["quick"], NOTEBOOKS, ROOT / "outputs", overrides, on_gpu)
    assert not left_out
    assert {runs[0].notebook.stem for runs in comparisons} == set(EXPERIMENTS)
    for runs in comparisons:
        blocks = [[run.precision for run in runs[start : start + 4]] for start in (0, 4)]
        assert [sorted(block) for block in blocks] == [["amp_bf16", "amp_fp16", "fp32", "tf32"]] * 2
        assert blocks[0][0] != blocks[1][0]
        assert [run.parameters["repeat"] for run in runs] == [0] * 4 + [1] * 4
        assert {run.parameters["repeats"] for run in runs} == {1}
    check_values(comparisons)


@pytest.mark.parametrize(
    ("study", "name", "value", "sentence"),
    [
        ("quick", "batch_size", "-1", "batch_size is -1"),
        ("quick", "dataset", "mnist", "dataset is 'mnist'; possible are auto"),
        ("quick", "repeats", "0", "repeats is 0"),
        ("quick", "execution", "fast", "execution is 'fast'; possible are eager"),
        ("layout", "model", "tf_efficientnet_b99", "'tf_efficientnet_b99' is not in timm"),
    ],
)
def test_a_value_that_a_notebook_refuses_stops_all_before_a_run_starts(study, name, value, sentence, capsys):
    assert cli.main([study, "--gpus", "none", "-p", name, value, "--output-dir", "new"]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("words", "notebooks", "value"),
    [
        (["--only", "cifar_resnet"], ["cifar_resnet"], None),
        (["--only", "notebooks/cifar_resnet.ipynb", "-p", "model", "resnet34"], ["cifar_resnet"], "-resnet34-"),
        (["-p", "cifar_resnet.model", "resnet34"], EXPERIMENTS, "cifar_resnet-resnet34-"),
        (["-p", "model", "gru", "--only", "lstm_language_model"], ["lstm_language_model"], "-gru-"),
        (["--only", "efficientnet_regression", "cifar_resnet"], EXPERIMENTS[:2], None),
        (["-p", "lstm_language_model.seed", "7", "-p", "seed", "3"], EXPERIMENTS, "lstm-auto-fp32-b8-s7"),
    ],
)
def test_quick_can_be_limited_to_notebooks_and_a_parameter_to_one(words, notebooks, value, capsys):
    assert cli.main(["quick", "--gpus", "none", "--dry-run", *words]) == 0
    runs = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert {run.split("-")[0] for run in runs} == set(notebooks)
    assert value is None or any(value in run for run in runs)


@pytest.mark.parametrize(("name", "value"), [("channels_last", "true"), ("csv_path", "my.csv"), ("bptt", "5")])
def test_a_parameter_goes_to_the_notebooks_that_have_it_and_that_is_said(name, value, tmp_path, capsys):
    (tmp_path / "my.csv").touch()
    having = [book for book in EXPERIMENTS if name in notebook_defaults(NOTEBOOKS / f"{book}.ipynb")]
    plans = []
    for words in ([], ["-p", name, value]):
        assert cli.main(["quick", "--gpus", "none", "--dry-run", *words]) == 0
        said = capsys.readouterr().out
        plans.append({line.strip() for line in said.splitlines() if line.startswith("  ")})
    assert {run.split("-")[0] for run in plans[1] - plans[0]} == set(having)
    notice = next(line for line in said.splitlines() if line.startswith(f"-p {name} "))
    assert all(book in notice for book in EXPERIMENTS)


@pytest.mark.parametrize(
    ("words", "hints"),
    [
        (["quik"], ["did you mean quick?"]),
        (["cifar_resnet"], ["--only cifar_resnet"]),
        (["--only", "cifar_resnt"], ["did you mean cifar_resnet?"]),
        (["--only", "cifar_resnet", "quick"], ["before --only"]),
        (["layout", "--only", "lstm_language_model"], ["no such notebook in layout"]),
        (["quick", "layout", "--only", "lstm_language_model"], ["study layout runs none of lstm_language_model"]),
        (["-p", "bacth_size", "64"], ["did you mean batch_size?"]),
        (["-p", "cifar_resnt.model", "resnet18"], ["did you mean cifar_resnet?"]),
        (["-p", "cifar_resnet.modle", "resnet18"], ["notebook cifar_resnet", "did you mean model?"]),
        (["-p", "cifar_resnet.bptt", "5"], ["cifar_resnet has no parameter bptt"]),
        (["-p", "model", "resnet18"], ["possible are lstm", "cifar_resnet", "--only", "-p NOTEBOOK.model"]),
        (["-p", "batch_size", "abc"], ['"max" or a whole number']),
        (["--dryrun"], ["--dryrun", "did you mean --dry-run?"]),
        (["--only"], ["--only", "--help"]),
        (["-p", "batch_size"], ["-p", "a name and a value"]),
        (["--timeout", "x"], ["--timeout", "'x' is no number of minutes"]),
        (["--jobs", "1.5"], ["--jobs", "'1.5' is no whole number"]),
        (["--fresh", "--retry-failed"], ["--retry-failed", "--fresh"]),
    ],
    ids=" ".join,
)
def test_a_wrong_word_is_one_sentence_that_says_what_to_write(words, hints, capsys):
    assert cli.main([*words, "--gpus", "none"]) == 2
    said = capsys.readouterr()
    assert all(hint in said.err for hint in hints)
    assert said.err.count("\n") == 1
    assert "usage:" not in said.err


def test_no_hint_at_other_notebooks_where_none_would_take_the_value(capsys):
    assert cli.main(["quick", "--gpus", "none", "-p", "batch_size", "-1"]) == 2
    assert "--only" not in capsys.readouterr().err


def test_list_shows_the_studies_that_run_a_notebook(capsys):
    assert cli.main(["--list", "--only", "lstm_language_model"]) == 0
    said = capsys.readouterr().out
    assert "\nlayout " not in said
    assert said.startswith("quick ")


def test_every_option_has_a_help_text(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    options = capsys.readouterr().out.partition("\noptions:\n")[2]
    described = re.findall(r"^  (-.+?)(?:  +|\n +)(\w.*)$", options, re.MULTILINE)
    assert len(described) == len(re.findall(r"^  -", options, re.MULTILINE)) > 10
    running = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    for option, _ in described:
        assert f"`{re.match('[a-z-]+', option)[0]}" in running or option.startswith("-h"), option


def test_every_planned_run_of_every_study_is_accepted():
    plans = [plan(study, NOTEBOOKS, Path("new"), {}, on_gpu)[0] for study in STUDIES.values() for on_gpu in (1, 0)]
    assert all(comparisons for comparisons in plans[::2])
    check_values([comparison for comparisons in plans for comparison in comparisons])
