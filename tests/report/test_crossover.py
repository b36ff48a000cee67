"""From which width of a model on each precision pays."""

import made_up_records as made_up
import pytest
from drawn_reports import drawn, explore, texts, write_all

from mixed_precision_study.report.answer import kind_of
from mixed_precision_study.report.crossover import SIMPLER, find_widths, rows_of, sentence_on, width_of
from mixed_precision_study.report.style import PRECISIONS

MODES = ["fp32", "tf32", "amp_bf16", "bf16_true", "fp8"]


@pytest.fixture(scope="module")
def crossover():
    """(report, charts) of the made-up records of the study."""
    return drawn(made_up.write_crossover, "crossover")


def test_the_widths_of_one_model_are_one_family_whatever_its_heads(crossover):
    (family,) = find_widths(crossover[0])
    assert list(family.groups) == list(made_up.WIDTHS)
    assert family.precisions == MODES
    assert kind_of(crossover[0]) == "crossover"


def test_the_chart_has_a_panel_for_time_memory_energy_and_loss(crossover):
    panels = crossover[1]["crossover"].axes
    labels = [axes.get_title(loc="left") for axes in panels]
    assert [label.partition(" ")[0].rstrip(",") for label in labels] == ["speed-up", "memory", "energy", "training"]
    for axes in panels:
        assert [text.get_text() for text in axes.get_xticklabels()] == [str(width) for width in made_up.WIDTHS]
    colour = PRECISIONS["fp8"].colour
    (line,) = [line for line in panels[0].lines if line.get_color() == colour and line.get_marker() != "None"]
    assert list(line.get_xdata()) == [256, 512, 1024, 2048, 4096]  # unsupported at 200
    ends = [line for line in panels[0].lines if line.get_color() == colour and line.get_marker() == "None"]
    assert len(ends) == 5  # an interval at each width


def test_a_sentence_says_from_which_width_on_a_mode_pays(crossover):
    (family,) = find_widths(crossover[0])
    fp8 = sentence_on(family, "fp8", "amp_bf16")
    assert "faster from width 2,048 on; " in fp8
    assert "less memory at no width" not in fp8
    assert "loss within the bar (at most +0.010 nats)" in fp8
    assert "faster from width 512 on; " in sentence_on(family, "amp_bf16", "tf32")
    assert "faster from width 200 on; " in sentence_on(family, "tf32", "fp32")


def test_the_table_has_each_outcome_and_why_a_mode_is_unsupported(crossover):
    (family,) = find_widths(crossover[0])
    rows = {(row["width"], row["precision"]): row for row in rows_of(crossover[0], family)}
    assert len(rows) == len(made_up.WIDTHS) * 4
    assert (rows[200, "fp8"]["time"], rows[200, "fp8"]["outcome"]) == ("unsupported", "")
    assert "200 is not a multiple of 16" in rows[200, "fp8"]["why"]
    assert rows[256, "fp8"]["outcome"] == "slower" and rows[4096, "fp8"]["outcome"] == "faster"
    assert rows[4096, "fp8"] | {"memory": "90%", "loss, nats": "+0.010", "against": "amp_bf16"} == rows[4096, "fp8"]
    assert rows[4096, "fp8"]["why"] == "100% of the Linear work in fp8"


def test_a_loss_above_the_bar_is_said(crossover):
    (family,) = find_widths(crossover[0])
    for run in family.groups[4096]["runs"]["fp8"]:
        run["train_loss"][-1] += 0.02
    try:
        assert "loss outside the bar (at most +0.030 nats)" in sentence_on(family, "fp8", "amp_bf16")
    finally:
        for run in family.groups[4096]["runs"]["fp8"]:
            run["train_loss"][-1] -= 0.02


def test_one_process_gives_numbers_and_no_outcome(tmp_path):
    made_up.write_crossover(tmp_path, processes=1)
    report, _ = explore(tmp_path, "crossover")
    (family,) = find_widths(report)
    sentence = sentence_on(family, "fp8", "amp_bf16")
    assert "numbers without an interval" in sentence and "faster" not in sentence
    assert {row["outcome"] for row in rows_of(report, family)} == {"", "one process"}


def test_two_widths_are_no_family_and_vits_are_told_by_their_size(tmp_path):
    names = ("tiny", "small", "base")
    for name in names[:2]:
        values = {"model": f"vit_{name}_patch16_224"}
        write_all(tmp_path, *(made_up.make("cifar_resnet", mode, parameters=values) for mode in ("fp32", "tf32")))
    assert find_widths(explore(tmp_path, "crossover")[0]) == []
    values = {"model": "vit_base_patch16_224"}
    write_all(tmp_path, *(made_up.make("cifar_resnet", mode, parameters=values) for mode in ("fp32", "tf32")))
    report, charts = explore(tmp_path, "crossover")
    (family,) = find_widths(report)
    assert list(family.groups) == [192, 384, 768]
    assert family.title.startswith("ViT") and texts(charts["crossover"])
    assert width_of({"model": "resnet18", "settings": {}}) is None


def test_every_mode_is_measured_against_a_simpler_one():
    order = list(PRECISIONS)
    for precision in order[1:]:
        assert SIMPLER[precision][-1] == "fp32"
        assert all(order.index(base) < order.index(precision) for base in SIMPLER[precision])
