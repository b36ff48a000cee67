"""Which runs are compared, and how comparisons are named."""

import itertools

import made_up_records as made_up
from drawn_reports import explore, flat, texts, write_all

from mixed_precision_study.report.comparisons import (
    group_runs,
    label_groups,
    rows_of_comparisons,
    rows_of_failed,
    setting_text,
    sweeps_of,
    usual_settings,
)
from mixed_precision_study.report.layout import MANY, panel_rows, panel_title
from mixed_precision_study.report.report import Report


def labelled(*parameters):
    """Return the labelled comparisons of fp32 runs with these parameters."""
    groups = group_runs([flat(made_up.make("cifar_resnet", "fp32", parameters=one)) for one in parameters])
    label_groups(groups)
    return groups


def test_labels_name_only_the_settings_that_differ():
    values = itertools.product(("eager", "compile"), (True, False))
    groups = labelled(*({"execution": mode, "channels_last": layout, "lr": 0.2} for mode, layout in values))
    assert [group["lines"] for group in groups] == [
        ["resnet18", "cifar10, b128", layout, execution]
        for layout in ("without channels_last", "channels_last")
        for execution in ("compile", "eager")
    ]


def test_a_setting_in_which_only_other_models_differ_is_in_the_table_not_in_the_label():
    groups = labelled({"model": "resnet18", "epochs": 30}, {"model": "dpn92", "epochs": 1})
    assert [group["lines"] for group in groups] == [["dpn92", "cifar10, b128"], ["resnet18", "cifar10, b128"]]
    assert [group["differing"] for group in groups] == [["epochs=1"], ["epochs=30"]]


def test_comparisons_that_only_lack_a_parameter_are_told_apart():
    assert sorted(group["lines"][2:] for group in labelled({}, {"dropout": 0.5})) == [[], ["dropout=0.5"]]


def test_same_data_asked_for_in_two_ways_is_compared():
    (group,) = labelled({"dataset": "auto"}, {"dataset": "cifar10"})
    assert [run["dataset"] for run in group["runs"]["fp32"]] == ["auto", "cifar10"]


def test_every_run_that_did_not_end_well_is_listed_with_its_whole_reason(everything):
    rows = rows_of_failed(everything[0])
    assert len(rows) == 9
    reasons = " ".join(row["reason"] for row in rows)
    for reason in ("CUDA out of memory", "no better than chance", "ended after 30 minutes", "and so on to the end"):
        assert reason in reasons


def test_models_are_ordered_by_their_depth_and_many_comparisons_fit_into_rows(tmp_path):
    made_up.write_many(tmp_path)
    report, charts = explore(tmp_path, "energy")
    assert len(report.comparisons) == 50
    rows = panel_rows(report)
    assert sorted(itertools.chain(*itertools.chain(*rows))) == list(range(50))
    assert max(sum(map(len, row)) for row in rows) <= 6
    assert charts == {}  # the table has so many
    models = [group["model"] for group in report.comparisons[:5]]
    assert models == ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]


def test_of_many_comparisons_each_model_has_its_panel_and_one_epoch_draws_no_curve(pooled):
    report, charts = pooled
    assert len(report.charted) > MANY
    models = [{report.comparisons[number]["model"] for number in panel} for row in panel_rows(report) for panel in row]
    assert {"dpn92"} in models and {"resnet18"} in models and {"wide_resnet28_10"} in models
    assert max(sum(map(len, row)) for row in panel_rows(report)) <= 6
    drawn = [axes.get_title(loc="left") for axes in charts["training_curves"].axes]
    assert not any("dpn92" in title for title in drawn) and any("cuda_graph" in title for title in drawn)


def test_no_line_of_a_title_begins_with_a_dot():
    group = {"notebook": "cifar_resnet", "title": "resnet18 · cifar10, b128 · epochs=3 · eager · dataset=cifar10"}
    lines = panel_title(Report(comparisons=[group]), 0).split("\n")
    assert lines == ["cifar_resnet", "resnet18 · cifar10, b128 · epochs=3 ·", "eager · dataset=cifar10"]


def test_a_memory_limit_is_always_named_in_words(pooled):
    titles = [group["title"] for group in pooled[0].every_group]
    assert "dpn92 · cifar10, b640 · at most 24 GiB" in titles and "dpn92 · cifar10, b640 · whole card" in titles
    assert "resnet50 · cifar100, bmax · at most 11 GiB" in titles  # though no other comparison of it has another
    assert setting_text("loss_scale", "1048576.0") == "loss_scale=1048576"
    assert setting_text("memory_limit_gib", "0.0") == "whole card"
    assert setting_text("memory_limit_gib", "null") == "memory_limit_gib unknown"
    assert setting_text("data_fingerprint", "null") == "data not recorded"


def test_what_is_usual_is_said_once(pooled):
    report = pooled[0]
    assert {"epochs=1", "loader=gpu"} <= set(usual_settings(report)["cifar_resnet"])
    assert usual_settings(report)["efficientnet_regression"] == []
    rows = [row for row in rows_of_comparisons(report) if "resnet101" in row["comparison"]]
    assert [row["not the same in all"] for row in rows] == ["max_steps=60"]


def test_two_loss_scales_are_no_sweep():
    group = {"settings": {"loss_scale": "1.0", "model": '"m"'}, "runs": {"amp_fp16": [{"loss_scale": 1.0}]}}
    other = {"settings": {"loss_scale": "2.0", "model": '"m"'}, "runs": {"amp_fp16": [{"loss_scale": 2.0}]}}
    assert sweeps_of([group, other]) == {}


def test_a_sweep_of_loss_scales_is_in_no_other_chart_and_in_no_other_label(pooled):
    report, charts = pooled
    titles = [report.comparisons[number]["title"] for number in report.charted]
    assert [title for title in titles if "loss_scale" in title] == ["dpn92 · cifar10, b512 · loss_scale=128"]
    assert "resnet18 · cifar10, b128 · epochs=4 · eager" in titles
    assert len(report.comparisons) - len(titles) == 6 and len(report.sweeps) == 2
    assert {"loss_scale_sweep_1", "loss_scale_sweep_2"} <= set(charts)
    assert {key[0] for key in report.sentences} <= set(report.charted)


def test_two_gpu_models_stand_side_by_side(tmp_path):
    other = {**made_up.H200, "gpu_name": "NVIDIA L4"}
    for folder, device in enumerate((made_up.H200, made_up.H200, other)):
        gpu = {**device, "gpu_uuid": f"GPU-{folder}"}
        records = [made_up.make("lstm_language_model", name, device=gpu) for name in ("fp32", "amp_fp16")]
        write_all(tmp_path / str(folder), *records)
    report, charts = explore(tmp_path, "several_gpus")
    assert len(report.used) == 6 and not report.left_out
    for axes in charts["several_gpus"].axes[-2:]:  # time and memory
        ticks = [tick.get_text().split("\n")[-1] for tick in axes.get_xticklabels()]
        assert sorted(ticks) == ["H200", "L4"]
        heights = [bar.get_height() for bar in axes.patches]
        assert len(heights) == 4 and min(heights) > 0


def test_gaps_are_labelled_and_devices_kept_apart(everything):
    report, charts = everything
    said = texts(charts["energy"])
    assert {"oom", "diverged", "unsupported", "timeout", "failed", "killed", "-"} <= set(said)
    assert any("* o2_fp16: oom (2 of 3)" in text for text in said)
    titles = [text for text in said if text.startswith("cifar_resnet")]
    assert [title.split("\n")[1] for title in titles] == ["H200", "RTX 2080 Ti"]
    assert any("(synthetic), b20" in text for text in said)
    assert {group["device"] for group in report.comparisons} == {"H200", "RTX 2080 Ti"}
