"""The answer on what does not fit, and the score of the predictions, from made-up records."""

import json

import does_not_fit
import fit_budget
import pandas as pd
import pytest
from drawn_reports import cells_of
from fit_budget import Arm, budgets_of, judged, passes
from made_up_fit import write_fit

from mixed_precision_study.report.section import Chart
from mixed_precision_study.report.sections import first_screen
from mixed_precision_study.report.tables import read_tables

AMP = "amp_bf16, eager, as_weights, nearest, 1, 1, 0, 0, false, 1, false, 0"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    (folder / does_not_fit.FOLDER).mkdir(parents=True)
    write_fit(folder / does_not_fit.FOLDER)
    study = "axis: [precision, execution, moments, rounding, clip, loss_chunks, checkpointing, "
    study += "memory_budget, offload, micro_batches, optimizer_in_backward, adapters]\n"
    study += "base: [tf32, eager, as_weights, nearest, 1.0, 1, 0, 0.0, false, 1, false, 0]\n"
    (folder / does_not_fit.FOLDER / "study.yaml").write_text(study)
    return folder


def test_choices_are_right_slow_or_too_large():
    arms = {"base": Arm(10, 50, None), "a": Arm(8, 40, None), "b": Arm(4, 41, None)}
    arms |= {"c": Arm(2, 90, None), "d": Arm(12, 10, None)}
    budgets = budgets_of(arms, "base")
    assert budgets == [3, 6, 9]
    found = [judged(arms, budgets, lambda _, name=name: name) for name in "bcx"]
    assert found[:2] == [["too large", "right", "right"], ["right", "slow", "slow"]]
    assert found[2] == ["missing"] * 3
    rules = {"always": ["slow", "right"], "other": ["slow", "slow"]}
    assert passes({"predicted": ["right", "right"], **rules})
    assert not passes({"predicted": ["right", "slow"], **rules})
    assert not passes({"predicted": ["too large"] * 2 + ["right"] * 9, **rules})


def test_exact_predictions_pass(outputs, capsys):
    assert fit_budget.main([str(outputs / does_not_fit.FOLDER)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "the prediction passes"
    assert "too large" not in next(line for line in lines if line.startswith("predicted"))
    measured, guess, _, *arm = next(one for one in lines if one.endswith(AMP)).split()
    assert measured == guess and arm[0] == "amp_bf16,"


def test_without_the_held_out_model_there_is_no_score(tmp_path, capsys):
    write_fit(tmp_path, ["fit", "fit-time"])
    assert fit_budget.main([str(tmp_path)]) == 1
    assert "was not measured" in capsys.readouterr().out


def small_gpt(outputs):
    table = does_not_fit.measured(outputs)
    return table[table.model.str.contains("12 × 768, context 1,024")].set_index("name")


def test_each_arm_has_its_memory_time_and_place(outputs):
    table = does_not_fit.measured(outputs)
    assert len(table.model.unique()) == 4 and (table.peaks == 1).all()
    usual = table[table.arm == AMP].set_index("model")
    assert (usual.less == 0).all() and (usual.more == 0).all()
    small = small_gpt(outputs)
    again = small.loc["every block again"]
    assert [again.more, again.low] == pytest.approx([0.3, 0.3])
    assert again.processes == 3 and again.fills == "activations"
    assert list(small.frontier[["LoRA", "TF32 instead", "compiled"]]) == [False, False, True]


def test_tables_are_those_of_the_arms(outputs):
    small = small_gpt(outputs)
    again = small.loc["every block again"]
    cells = cells_of(does_not_fit.table_of(outputs))
    head, *_ = cells.values()
    assert head == ["GPT, context 1,024", "GPT, context 8,192", "ViT-B/16"]
    less = f"{again.less:.1f}"
    assert cells["= every block again"][0] == f"−{less}, +30% (30–30)"
    assert cells["≈ compiled"][0].endswith(", −50% (−50 to −50)")
    assert "(" not in cells["= offload"][0] and cells["≠ TF32 instead"][0].startswith("+")
    sizes = small.loc["compiled", ["gib", "reserved", "card"]]
    line = f"|{again.model}|{'{:.2f}, {:.1f}, {:.1f}'.format(*sizes)}|−50% (−50 to −50)|compiled|"
    assert line in does_not_fit.frontier_of(outputs).splitlines()


def test_what_did_nothing_and_the_picture_are_those_of_the_arms(outputs):
    compiled = small_gpt(outputs).gib["compiled"]
    idle = does_not_fit.nothing_of(outputs).splitlines()
    assert len(idle) == 3 and all("optimizer in backward" in one for one in idle)
    assert "(79% activations)" in idle[0] and "bf16 moments" not in idle[0]
    assert [len(does_not_fit.figures(one)) for one in (outputs, outputs / "none")] == [3, 0]
    (foot,) = (one.get_text() for one in does_not_fit.figures(outputs)[0].texts[2:])
    assert foot.startswith(f"1 compiled: {compiled:.1f} GiB, −50%")


def test_what_is_not_measured_yet_says_what_it_takes(tmp_path, outputs):
    write_fit(tmp_path / does_not_fit.FOLDER, ["fit"])
    assert "22 trainings of `fit-held-out`" in does_not_fit.score_of(tmp_path)
    assert "six seeds of `fit-quality`" in does_not_fit.quality_of(tmp_path)
    # each model has one comparison, so its row has no name
    screen = first_screen(read_tables(tmp_path / does_not_fit.FOLDER))
    (chart,) = (part for part in screen.parts if isinstance(part, Chart))
    assert (chart.name, len(chart.figures)) == ("ratios", 3)
    assert "and too large in 0." in does_not_fit.score_of(outputs)


def test_a_frontier_has_one_of_two_alike_and_a_time():
    names = ["a", "a + b", "c", "untimed"]
    rows = {"model": "m", "other": False, "arm": names, "name": names}
    table = pd.DataFrame(rows | {"gib": [2, 2, 3, 1], "more": [0.1, 0.1, 0.2, float("nan")]})
    found = [does_not_fit.is_on_frontier(table, row) for row in table.itertuples()]
    assert found == [True, False, False, False]


def test_a_model_without_its_base_is_left_out(tmp_path):
    folder = tmp_path / does_not_fit.FOLDER
    write_fit(folder, ["fit"])
    for path in folder.glob("cifar_resnet*.json"):
        if json.loads(path.read_text())["run"]["precision"] == "amp_bf16":
            path.unlink()
    assert len(does_not_fit.measured(tmp_path).model.unique()) == 2
