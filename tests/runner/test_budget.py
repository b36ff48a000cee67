"""A limit of memory leaves, of each model, the fastest training that is predicted to fit."""

import pytest
from conftest import NOTEBOOKS, refuses
from made_up_fit import STUDIES, write_fit

from mixed_precision_study.runner import cli
from mixed_precision_study.runner.budget import within_limit
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.train.remedies import check_remedies


def chosen_in(folder, study=STUDIES["fit"], **overrides):
    overrides = {"memory_limit_gib": 5} | overrides
    runs = plan(STUDIES["fit"], NOTEBOOKS, folder, overrides, on_gpu=True)[0]
    return [run for (run,) in within_limit(runs, study, folder, overrides)]


def test_one_training_a_model_is_left_and_said(tmp_path, capsys):
    write_fit(tmp_path, ["fit"])
    runs = chosen_in(tmp_path)
    assert [run.notebook.stem for run in runs] == ["transformer", "transformer", "cifar_resnet"]
    kinds = {(run.parameters["memory_limit_gib"], len(run.trainings)) for run in runs}
    assert kinds == {(5, 1)}
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3 and all("fits into 5 GiB, with a peak of" in line for line in said)
    assert all("compiled" in line and "timed on NVIDIA H200" in line for line in said)
    assert [run.parameters.get("loss_chunks") for run in runs] == [1, 8, None]
    with refuses("predictions need records"):
        chosen_in(tmp_path, batch_size=100_000)
    assert capsys.readouterr().out.count("none fits into 5 GiB") == 3


def test_an_earlier_choice_does_not_hide_the_table(tmp_path):
    write_fit(tmp_path, ["fit"])
    study = STUDIES["fit"] | {"measured": str(tmp_path)}

    def names_in(folder):
        return {name for run in chosen_in(folder, study) for name in run.trainings}

    expected = names_in(tmp_path)
    own = tmp_path / "own"
    write_fit(own, ["fit"], memory_limit_gib=5.0)
    for path in own.glob("*.json"):
        if path.stem not in expected:
            path.unlink()
    assert len(list(own.iterdir())) == 3 and names_in(own) == expected


def test_without_a_table_a_sentence_says_where_it_comes_from(tmp_path):
    study = STUDIES["fit"] | {"measured": "none"}
    with refuses("this study measured, here or in outputs/none"):
        chosen_in(tmp_path, study)


def test_a_list_says_what_a_limit_leaves(capsys):
    assert cli.main(["fit", "--list", "-p", "memory_limit_gib", "12"]) == 0
    said = capsys.readouterr().out
    assert "3 trainings" in said and said.count("fits into 12 GiB") == 3


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
