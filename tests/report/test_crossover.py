"""From which width of a model on each precision pays."""

import json

import made_up_records as made_up
import matplotlib.pyplot as plt
import pytest
from drawn_reports import drawn, explore, texts, write_all

from mixed_precision_study.report.answer import kind_of, section
from mixed_precision_study.report.comparisons import timed_runs, width_of
from mixed_precision_study.report.crossover import draw_panel, rows_of
from mixed_precision_study.report.section import Sentence, Table
from mixed_precision_study.report.style import PRECISIONS
from mixed_precision_study.report.widths import (
    LOSS_BAR,
    SIMPLER,
    faster_at,
    find_widths,
    from_width,
    loss_above,
    loss_in_words,
    ratio_of,
    row_of_pair,
    sentence_on,
)
from mixed_precision_study.report.words import plain

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


def markers_of(axes, mode):
    """Return {width: (value, whether its marker is filled)} of a mode in a panel."""
    colour = PRECISIONS[mode].colour
    lines = [line for line in axes.lines if line.get_color() == colour and line.get_marker() != "None"]
    return {
        width: (value, line.get_markerfacecolor() != "white")
        for line in lines
        for width, value in zip(*line.get_data(), strict=True)
    }


def test_the_chart_has_panels_for_time_memory_energy_and_loss_over_fp32_and_over_the_next_simpler_mode(crossover):
    (family,) = find_widths(crossover[0])
    panels = crossover[1]["crossover"].axes
    labels = [axes.get_title(loc="left") for axes in panels]
    figures = ["speed-up", "memory", "energy"]
    assert [label.partition(" ")[0].rstrip(",") for label in labels] == [*figures, *figures, "training"]
    for axes in panels:
        assert [text.get_text() for text in axes.get_xticklabels()] == [str(width) for width in made_up.WIDTHS]
    for axes, base in ((panels[0], "fp32"), (panels[3], "amp_bf16")):
        ratios = {width: ratio_of(family.groups[width], "fp8", base) for width in made_up.WIDTHS[1:]}
        assert markers_of(axes, "fp8") == {width: (ratio, True) for width, ratio in ratios.items()}  # not at 200
        colour = PRECISIONS["fp8"].colour
        of_mode = [line for line in axes.lines if line.get_color() == colour]
        ends = [line for line in of_mode if len(line.get_xdata()) == 2 and len(set(line.get_xdata())) == 1]
        assert len(ends) == 5  # an interval at each width
    assert not markers_of(panels[0], "fp32")
    assert {line.get_ydata()[0] for line in panels[6].lines if line.get_linestyle() == ":"} == {LOSS_BAR}


def test_the_first_table_says_from_which_width_on_a_mode_pays(crossover):
    (family,) = find_widths(crossover[0])
    rows = {row["mode"]: row for row in (row_of_pair(family, *pair) for pair in family.pairs)}
    assert rows["fp8"]["faster"] == "from 2,048 on; unsupported at 200"
    assert rows["fp8"]["less memory"] == "at all widths"
    assert rows["fp8"]["training loss"] == "within the bar"
    assert rows["amp_bf16"]["faster"] == "from 512 on"
    assert rows["tf32"]["faster"] == "at all widths"
    assert rows["tf32"]["less memory"] == "at no width up to 4,096"
    sentence = sentence_on(family)
    assert "amp_bf16 from width 512 on" in sentence and "fp8 from width 2,048 on" in sentence
    assert "loss" not in sentence
    parts = section(crossover[0]).parts
    assert any(plain(sentence) in part.text for part in parts if isinstance(part, Sentence))
    (table,) = (part for part in parts if isinstance(part, Table))
    assert [row["mode"] for row in table.rows] == MODES[1:]


def test_the_table_has_each_outcome_and_why_a_mode_is_unsupported(crossover):
    (family,) = find_widths(crossover[0])
    rows = {(row["width"], row["precision"]): row for row in rows_of(crossover[0], family)}
    assert len(rows) == len(made_up.WIDTHS) * 4
    assert (rows[200, "fp8"]["time"], rows[200, "fp8"]["outcome"]) == ("unsupported", "")
    assert "200 is not a multiple of 16" in rows[200, "fp8"]["why"]
    assert rows[256, "fp8"]["outcome"] == "slower" and rows[4096, "fp8"]["outcome"] == "faster"
    assert rows[4096, "fp8"] | {"memory": "90%", "loss, nats": "+0.010", "against": "amp_bf16"} == rows[4096, "fp8"]
    assert rows[4096, "fp8"]["why"] == "100% of the Linear work in fp8"


@pytest.fixture
def altered(crossover, monkeypatch):
    """The family of the made-up records, and a function that sets fields of its runs at a width for one test."""
    (family,) = find_widths(crossover[0])

    def alter(width, mode, **values):
        for number, run in enumerate(family.groups[width]["runs"][mode]):
            for name, value in values.items():
                monkeypatch.setitem(run, name, value[number] if isinstance(value, tuple) else value)

    return family, alter


def test_a_loss_above_the_bar_is_said(altered):
    family, alter = altered
    base = family.groups[4096]["runs"]["amp_bf16"][0]["train_loss"][-1]
    alter(4096, "fp8", train_loss=[base + 0.03])
    said = loss_in_words(family, "fp8", "amp_bf16")
    assert said == "outside the bar at 4,096 (+0.030 nats); within the bar at 256, 512, 1,024 and 2,048"
    assert "the training loss is above the bar for fp8 (1 of 5 widths judged)" in sentence_on(family)


def test_a_loss_closer_to_the_bar_than_equal_runs_to_each_other_is_not_told(altered):
    family, alter = altered
    base = family.groups[4096]["runs"]["amp_bf16"][0]["train_loss"][-1]
    for losses, scatter in (
        ((0, 0.03, 0.05), 0.05),
        ((-0.09, -0.03, -0.02), 0.07),
        ((0.013, 0.019, 0.022), 0.009),
        ((0.018, 0.022, 0.028), 0.010),
    ):
        alter(4096, "fp8", train_loss=tuple([base + loss] for loss in losses))
        said = f"; cannot be told at 4,096 ({losses[1]:+.3f} nats, equal runs differ by {scatter:.3f})"
        assert loss_in_words(family, "fp8", "amp_bf16").endswith(said)
    alter(4096, "fp8", train_loss=([base + 0.009], [base + 0.010], [base + 0.018]))
    assert loss_in_words(family, "fp8", "amp_bf16") == "within the bar"
    alter(4096, "fp8", train_loss=([base + 0.1], [base + 0.12], [base + 0.15]))
    assert loss_in_words(family, "fp8", "amp_bf16").startswith("outside the bar at 4,096 (+0.120 nats)")


def test_a_loss_of_models_that_have_hardly_trained_is_not_judged(altered):
    family, alter = altered
    for mode in ("amp_bf16", "fp8"):
        alter(2048, mode, metric=[family.groups[2048]["runs"][mode][0]["chance_metric"]])
    assert loss_in_words(family, "fp8", "amp_bf16").endswith("; hardly trained at 2,048")


def test_a_width_without_an_outcome_is_not_counted_as_slower(altered, monkeypatch):
    family, _ = altered
    for width in (2048, 4096):
        runs = family.groups[width]["runs"]
        monkeypatch.setitem(runs, "fp8", runs["fp8"][: 1 if width == 4096 else 3])
    assert from_width(faster_at(family, "fp8", "amp_bf16")) == "only at 2,048; not known at 4,096"
    monkeypatch.setitem(family.groups[2048]["runs"], "fp8", family.groups[2048]["runs"]["fp8"][:1])
    assert from_width(faster_at(family, "fp8", "amp_bf16")) == "at no width up to 1,024; not known at 2,048 and 4,096"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({1: True, 2: True, 3: True}, "at all widths"),
        ({1: False, 2: True, 3: None}, "only at 2; not known at 3"),
        ({1: False, 2: True, 3: True, 4: None}, "from 2 on; not known at 4"),
        ({1: True, 2: True, 3: False}, "only at 1 and 2"),
        ({1: False, 2: False}, "at no width up to 2"),
        ({1: None, 2: True, 3: True}, "at 2 and 3; not known at 1"),
        ({1: True, 2: None, 3: True}, "at 1 and 3; not known at 2"),
        ({1: None, 2: False, 3: False}, "not at 2 or 3; not known at 1"),
        ({1: None, 2: False}, "not at 2; not known at 1"),
        ({1: None, 2: None}, "not known"),
    ],
)
def test_what_holds_at_some_widths_in_words(found, said):
    assert from_width(found) == said


def test_one_process_gives_numbers_and_no_outcome(tmp_path):
    made_up.write_crossover(tmp_path, processes=1)
    report, _ = explore(tmp_path, "crossover")
    (family,) = find_widths(report)
    row = row_of_pair(family, "fp8", "amp_bf16")
    ratios = [ratio_of(family.groups[width], "fp8", "amp_bf16") for width in made_up.WIDTHS[1:]]
    assert row["times as fast"] == f"{min(ratios):.2f}x to {max(ratios):.2f}x"
    assert row["faster"] == "not known; unsupported at 200"
    assert "nothing can be said of tf32, amp_bf16, bf16_true and fp8" in sentence_on(family)
    assert {row["outcome"] for row in rows_of(report, family)} == {"", "one process"}


def test_energy_and_loss_are_from_longer_trainings_where_the_short_ones_have_none(tmp_path):
    made_up.write_crossover(tmp_path)
    short = find_widths(explore(tmp_path, "crossover")[0])[0]
    assert short.for_energy == short.for_loss("tf32", "fp32") == short.groups
    for path in tmp_path.glob("*-fp8-*.json"):
        record = json.loads(path.read_text()) | {"joules_per_1000_samples": None}
        path.write_text(json.dumps(record))
    for path in tmp_path.glob("*.json"):
        record = json.loads(path.read_text())
        if record["units"] == 4096:
            path.write_text(json.dumps(record | {"metric": [record["chance_metric"]] * len(record["metric"])}))
    made_up.write_crossover(tmp_path, processes=1, epochs=9)
    (family,) = find_widths(explore(tmp_path, "crossover")[0])
    assert len(family.members) == 2 * len(made_up.WIDTHS)

    def epochs(groups):
        return {width: len(group["runs"]["tf32"][0]["epoch_seconds"]) for width, group in groups.items()}

    assert all(len(group["runs"]["tf32"]) == 3 for group in family.groups.values())
    assert epochs(family.for_energy) == dict.fromkeys(made_up.WIDTHS, 9)
    assert epochs(family.for_loss("fp8", "amp_bf16")) == {256: 1, 512: 1, 1024: 1, 2048: 1, 4096: 9}
    assert loss_in_words(family, "fp8", "amp_bf16").endswith("; fewer than three runs at 4,096")


def test_of_two_trainings_the_loss_is_from_the_one_whose_equal_runs_differ_least(tmp_path):
    made_up.write_crossover(tmp_path, epochs=9)
    for path in tmp_path.glob("*.json"):
        record = json.loads(path.read_text())
        if record["train_loss"]:
            path.write_text(json.dumps(record | {"train_loss": [record["train_loss"][-1] + 0.1 * record["repeat"]]}))
    noisy = set(tmp_path.glob("*.json"))
    made_up.write_crossover(tmp_path, epochs=2)
    for path in set(tmp_path.glob("*.json")) - noisy:  # the whole text at another rate, without fp32
        record = json.loads(path.read_text())
        if record["precision"] == "fp32" or record["units"] < 2048:
            path.unlink()
        else:
            path.write_text(json.dumps(record | {"lr": record["lr"] / 2}))
    (family,) = find_widths(explore(tmp_path, "crossover")[0])
    assert all(len(timed_runs(group, "fp32")) == 3 for group in family.groups.values())
    lengths = [len(group["runs"]["fp8"][0]["epoch_seconds"]) for group in family.for_loss("fp8", "amp_bf16").values()]
    assert lengths == [9, 9, 9, 2, 2]
    assert "cannot be told at 256, 512 and 1,024" in loss_in_words(family, "fp8", "amp_bf16")
    assert set(family.for_loss("tf32", "fp32")) == set(made_up.WIDTHS)


def test_a_loss_that_is_not_judged_is_drawn_hollow(altered):
    family, alter = altered
    for mode in MODES:
        alter(4096, mode, metric=[family.groups[4096]["runs"][mode][0]["chance_metric"]])
    figure, axes = plt.subplots()
    draw_panel(axes, family, family.pairs, "loss", loss_above)
    for mode in MODES[1:]:
        filled = {width: fill for width, (_, fill) in markers_of(axes, mode).items()}
        assert filled == {width: width < 4096 for width in filled} and 4096 in filled
    plt.close(figure)


def test_losses_far_apart_have_an_axis_on_which_the_bar_and_every_marker_can_be_seen(altered):
    family, alter = altered
    base = family.groups[4096]["runs"]["amp_bf16"][0]["train_loss"][-1]
    for above, scale in ((0.05, "linear"), (0.6, "symlog"), (-0.6, "symlog")):
        alter(4096, "bf16_true", train_loss=[base + above])
        figure, axes = plt.subplots()
        draw_panel(axes, family, family.pairs, "loss", loss_above)
        assert axes.get_yscale() == scale
        low, high = axes.get_ylim()
        assert low < above < high
        assert (LOSS_BAR in axes.get_yticks()) == (scale == "symlog") == ("beyond 0.02" in "".join(texts(figure)))
        plt.close(figure)


def test_a_line_joins_no_losses_of_different_trainings_and_equal_runs_have_theirs(tmp_path):
    made_up.write_crossover(tmp_path)
    for path in tmp_path.glob("*.json"):
        record = json.loads(path.read_text())
        if record["units"] >= 2048:
            record |= {"lr": record["lr"] / 2}
        if record["precision"] == "fp8" and record["train_loss"]:
            record["train_loss"] = [record["train_loss"][-1] + 0.001 * record["repeat"]]
        path.write_text(json.dumps(record))
    (family,) = find_widths(explore(tmp_path, "crossover")[0])
    figure, axes = plt.subplots()
    draw_panel(axes, family, [("fp8", "amp_bf16")], "loss", loss_above)
    lines = [list(line.get_xdata()) for line in axes.lines if line.get_color() == PRECISIONS["fp8"].colour]
    assert [256, 512, 1024] in lines and [2048, 4096] in lines
    ends = {line.get_xdata()[0]: line.get_ydata() for line in axes.lines if list(line.get_xdata()) == [512, 512]}
    assert ends[512][1] - ends[512][0] == pytest.approx(2 * 0.002)
    plt.close(figure)


def test_other_models_beside_the_widths_have_an_answer_of_their_own(tmp_path):
    made_up.write_crossover(tmp_path)
    write_all(tmp_path, *(made_up.make("cifar_resnet", mode) for mode in ("fp32", "tf32")))
    report, _ = explore(tmp_path, "crossover")
    assert kind_of(report) == "crossover"
    parts = section(report).parts
    said = "\n".join(part.text for part in parts if isinstance(part, Sentence))
    assert "Each mode is set beside the next simpler one (1 seed, power limit 700 W). For resnet18 in eager" in said
    widths, models = (part for part in parts if isinstance(part, Table))
    assert len(widths.rows) == 4 and len(models.rows) == 1
    assert models.rows[0]["model"].startswith("resnet18")


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


def test_widths_on_two_cards_are_two_families_that_name_their_card(tmp_path):
    made_up.write_crossover(tmp_path)
    for path in list(tmp_path.glob("*.json")):
        record = json.loads(path.read_text())
        other = {"gpu_name": "NVIDIA H100", "gpu_uuid": "GPU-9", "run_id": record["run_id"] + "-other"}
        (tmp_path / f"{record['run_id']}-other.json").write_text(json.dumps(record | other))
    families = find_widths(explore(tmp_path, "crossover")[0])
    assert [family.title.rpartition(", ")[2] for family in families] == ["H100", "H200"]
    for family in families:
        assert len(family.members) == len(made_up.WIDTHS)
        assert {group["device"] for group in family.members} == {family.title.rpartition(", ")[2]}
