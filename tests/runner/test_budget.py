"""A limit of memory leaves, of each model, the fastest training that is predicted to fit."""

import pytest
from conftest import NOTEBOOKS, refuses
from made_up_fit import STUDIES, write_fit

from mixed_precision_study.runner.budget import within_limit
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.train.remedies import check_remedies


def planned(folder, **overrides):
    return plan(STUDIES["fit"], NOTEBOOKS, folder, overrides, on_gpu=True)[0]


def test_one_training_a_model_is_left_and_said(tmp_path, capsys):
    write_fit(tmp_path, ["fit"])
    chosen = within_limit(planned(tmp_path, memory_limit_gib=5), STUDIES["fit"], tmp_path, 5)
    runs = [run for (run,) in chosen]
    assert [run.notebook.stem for run in runs] == ["transformer", "transformer", "cifar_resnet"]
    kinds = {(run.parameters["memory_limit_gib"], len(run.trainings)) for run in runs}
    assert kinds == {(5, 1)}
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3 and all("fits into 5 GiB, with a peak of" in line for line in said)
    assert all("compiled" in line and "timed on NVIDIA H200" in line for line in said)
    assert [run.parameters.get("loss_chunks") for run in runs] == [1, 8, None]
    larger = planned(tmp_path, memory_limit_gib=5, batch_size=100_000)
    with refuses("predictions need records"):
        within_limit(larger, STUDIES["fit"], tmp_path, 5)
    assert capsys.readouterr().out.count("nothing is predicted to fit into 5 GiB") == 3


def test_an_earlier_choice_does_not_hide_the_table(tmp_path):
    write_fit(tmp_path, ["fit"])
    study = STUDIES["fit"] | {"measured": str(tmp_path)}

    def chosen_in(folder):
        comparisons = planned(folder, memory_limit_gib=5)
        chosen = within_limit(comparisons, study, folder, 5)
        return {name for (run,) in chosen for name in run.trainings}

    expected = chosen_in(tmp_path)
    own = tmp_path / "own"
    write_fit(own, ["fit"], memory_limit_gib=5.0)
    for path in own.glob("*.json"):
        if path.stem not in expected:
            path.unlink()
    assert len(list(own.iterdir())) == 3 and chosen_in(own) == expected


def test_without_a_table_a_sentence_says_where_it_comes_from(tmp_path):
    study = STUDIES["fit"] | {"measured": "none"}
    with refuses("this study measured, here or in outputs/none"):
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
