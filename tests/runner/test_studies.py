"""studies.yaml against the notebooks it names: every entry can be planned as it stands, with and without a GPU."""

from pathlib import Path

import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT

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


@pytest.mark.parametrize("on_gpu", [True, False])
def test_quick_compares_four_precisions_in_every_experiment_and_its_repetitions_alternate(on_gpu):
    overrides = parse_overrides([("repeats", "2")])
    comparisons, left_out = plan(STUDIES["quick"], NOTEBOOKS, ROOT / "outputs", overrides, on_gpu)
    assert not left_out
    assert {runs[0].notebook.stem for runs in comparisons} == set(EXPERIMENTS)
    forth = ["fp32", "tf32", "amp_fp16", "amp_bf16"]
    for runs in comparisons:
        assert [run.precision for run in runs] == [*forth, *reversed(forth)]
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


def test_every_planned_run_of_every_study_is_accepted():
    plans = [plan(study, NOTEBOOKS, Path("new"), {}, on_gpu)[0] for study in STUDIES.values() for on_gpu in (1, 0)]
    assert all(comparisons for comparisons in plans[::2])
    check_values([comparison for comparisons in plans for comparison in comparisons])
