"""A limit of memory leaves, of each model, the fastest training that is predicted to fit."""

import json

import pytest
from conftest import NOTEBOOKS, refuses

from mixed_precision_study.runner.budget import within_limit
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.runner.studies import load_studies
from mixed_precision_study.store.record import new_record, write_json
from mixed_precision_study.train.remedies import check_remedies

STUDIES = load_studies(NOTEBOOKS / "studies.yaml")


def write(folder, run, peak_mib, step_ms):
    """Write the record of a run with one training, all of whose peak are activations."""
    ((settings, precision),) = run.trainings.values()
    record = new_record(run.notebook.stem, settings, precision, {})
    record.fill(status="ok", batch_size_used=settings["batch_size"], epoch_seconds=[1.0])
    record.fill(ledger_activations_mib=peak_mib, saved_activations_mib=peak_mib)
    record.fill(peak_allocated_mib=peak_mib, step_ms_median=step_ms)
    write_json(json.loads(record.model_dump_json()), folder / f"{record.run_id}.json")


def planned(folder, **overrides):
    return plan(STUDIES["fit"], NOTEBOOKS, folder, overrides, on_gpu=True)[0]


def test_one_training_a_model_is_left_and_said(tmp_path, capsys):
    for comparison in planned(tmp_path):
        for place, run in enumerate(comparison):
            write(tmp_path, run, 20_000 - 1_000 * place, 30.0 + place)
    limited = planned(tmp_path, memory_limit_gib=17)
    chosen = within_limit(limited, STUDIES["fit"], tmp_path, 17)
    runs = [run for (run,) in chosen]
    assert [run.notebook.stem for run in runs] == ["transformer", "transformer", "cifar_resnet"]
    assert {run.parameters["memory_limit_gib"] for run in runs} == {17}
    assert all(len(run.trainings) == 1 for run in runs)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3 and all("17 GiB, with a peak of 15.6" in line for line in said)
    larger = planned(tmp_path, memory_limit_gib=17, batch_size=4096)
    with refuses("nothing is predicted to fit into 17 GiB"):
        within_limit(larger, STUDIES["fit"], tmp_path, 17)


def test_without_a_table_a_sentence_says_where_it_comes_from(tmp_path):
    study = STUDIES["fit"] | {"measured": "none"}
    with refuses("measured without a limit"):
        within_limit(planned(tmp_path), study, tmp_path, 12)


@pytest.mark.parametrize("name", ["fit", "fit-held-out", "fit-time"])
def test_no_remedies_of_a_study_exclude_each_other(name, tmp_path):
    arms = set()
    axis = STUDIES[name]["axis"]
    for comparison in plan(STUDIES[name], NOTEBOOKS, tmp_path, {}, on_gpu=True)[0]:
        assert all(len(run.trainings) == 1 for run in comparison)
        for run in comparison:
            check_remedies(run.parameters)
            arms.add(str([run.parameters.get(one, run.parameters["precisions"]) for one in axis]))
    assert len(arms) >= 12
