"""Cost as the batch size or the depth of the model grows."""

import made_up_records as made_up
import pytest
from conftest import NOTEBOOKS
from drawn_reports import drawn, explore, texts, write_all

from mixed_precision_study.report.scaling import find_growths, rows_of_sizes, sentence_on_costs
from mixed_precision_study.report.style import PRECISIONS
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.runner.studies import load_studies


@pytest.fixture(scope="module")
def scaling():
    """(report, charts) of what grows, on the made-up records of that study."""
    return drawn(made_up.write_scaling, "scaling")


def markers_of(axes, precision):
    """Return {size: (microseconds, whether hollow)} of the markers of a precision."""
    colour = PRECISIONS[precision].colour
    lines = [line for line in axes.lines if line.get_marker() != "None" and line.get_color() == colour]
    return {line.get_xdata()[0]: (line.get_ydata()[0], line.get_markerfacecolor() == "white") for line in lines}


def test_time_per_sample_is_drawn_over_batch_size_and_over_depth(scaling):
    by_batch, by_depth = scaling[1]["scaling"].axes
    drawn_here = {name: markers_of(by_batch, name) for name in ("fp32", "tf32", "amp_bf16")}
    times = {size: time for size, (time, _) in drawn_here["fp32"].items()}
    assert times == pytest.approx({16: 156.25, 64: 39.0625, 128: 20, 256: 20, 1024: 20})
    hollow = {name: [size for size, one in markers.items() if one[1]] for name, markers in drawn_here.items()}
    assert hollow == {"fp32": [16, 64], "tf32": [16, 64, 128], "amp_bf16": [16, 64, 128, 256]}
    assert [size for size, one in markers_of(by_depth, "tf32").items() if one[1]] == [18, 34]
    assert {line.get_color() for line in by_batch.lines} == {PRECISIONS[name].colour for name in drawn_here}
    for axes, label in ((by_batch, "batch size, images per step"), (by_depth, "depth of the model, layers")):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert (axes.get_xlabel(), axes.get_ylabel()) == (label, "µs per image")
    assert [text.get_text() for text in by_batch.get_xticklabels()] == ["16", "64", "128", "256", "1,024", "4,096"]
    titles = [axes.get_title(loc="left") for axes in (by_batch, by_depth)]
    assert titles == ["resnet18 · cifar10", "resnet18 to resnet152 · cifar10, b128"]
    names = ["amp_bf16", "tf32", "fp32"]  # from the lowest line to the highest
    assert [text.get_text() for text in by_batch.texts if text.get_text()] == [*names, "fp32: oom"]


def test_what_grows_is_read_in_a_table_and_in_sentences(scaling):
    by_batch, by_depth = growths = find_growths(scaling[0])
    rows = {row["size"]: row for row in rows_of_sizes(growths)}
    assert len(rows) == 11
    assert rows["batch 4,096"]["fp32"] == "oom"
    assert rows["batch 64"]["tf32"] == "39.1 µs, GPU idle 74%: kernel launches"
    assert rows["resnet50"]["tf32"] == "54.3 µs, GPU idle 15%: arithmetic on Tensor Cores"
    assert list(rows["resnet50"]) == ["comparison", "size", "fp32", "tf32", "amp_bf16"]
    sentences = [sentence_on_costs(by_batch, name) for name in by_batch.costs]
    assert "**156** µs at batch 16 and **20.0** µs at batch 1,024" in sentences[0]
    reach = [sentence.rpartition(" limit it ")[2] for sentence in sentences]
    assert reach == ["up to batch 64.", "up to batch 128.", "up to batch 256."]
    reach = [sentence_on_costs(by_depth, name).rpartition(" limit it ")[2] for name in by_depth.costs]
    assert reach == ["at no size.", "up to resnet34.", "at every size."]


def test_two_sizes_and_names_without_layers_are_no_growth(tmp_path):
    for model in ("resnet18", "resnet34", "densenet121", "wide_resnet28_10", "wide_resnet40_10", "wide_resnet52_10"):
        for size in (64, 128):
            values = {"model": model, "batch_size": size}
            write_all(tmp_path, made_up.make("cifar_resnet", "fp32", parameters=values))
    for kind in range(3):
        values = {"model": f"tf_efficientnet_b{kind}"}
        write_all(tmp_path, made_up.make("efficientnet_regression", "fp32", parameters=values))
    report, charts = explore(tmp_path, "scaling")
    assert find_growths(report) == [] and charts == {}
    write_all(tmp_path, made_up.make("cifar_resnet", "fp32", parameters={"model": "resnet50"}))
    report, charts = explore(tmp_path, "scaling")
    assert [list(growth.groups) for growth in find_growths(report)] == [[18, 34, 50]]
    assert "resnet18 to resnet50 · cifar10, b128" in texts(charts["scaling"])


def test_sizes_that_did_not_end_well_or_were_not_profiled_are_no_markers_of_a_busy_gpu(tmp_path):
    for size in (8, 16, 32):
        values = {"parameters": {"batch_size": size}}
        write_all(
            tmp_path,
            made_up.make("lstm_language_model", "fp32", explained=False, **values),
            made_up.make_failed("lstm_language_model", "tf32", "unsupported", "too old", **values),
        )
    report, charts = explore(tmp_path, "scaling")
    (axes, _) = charts["scaling"].axes
    assert axes.get_title(loc="left") == "lstm · wikitext-2\ntf32: unsupported"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("batch size, columns of text per step", "µs per token")
    assert {line.get_markersize() for line in axes.lines if line.get_marker() != "None"} == {3}
    (growth,) = find_growths(report)
    assert "kernel launches" not in sentence_on_costs(growth, "fp32")
    assert [row["tf32"] for row in rows_of_sizes([growth])] == ["unsupported"] * 3


def test_the_runs_of_the_study_scaling_are_recognised(tmp_path):
    study = load_studies(NOTEBOOKS / "studies.yaml")["scaling"]
    comparisons, _ = plan(study, NOTEBOOKS, tmp_path, {}, True)
    for run in (run for runs in comparisons for run in runs):
        parameters = {**run.parameters, "precisions": [run.precision]}
        write_all(tmp_path, made_up.make(run.notebook.stem, run.precision, parameters=parameters))
    growths = find_growths(explore(tmp_path, "scaling")[0])
    assert [list(growth.groups) for growth in growths] == [[16, 64, 128, 256, 1024, 4096], [18, 34, 50, 101, 152]]
    assert all(list(growth.costs) == ["fp32", "tf32", "amp_bf16"] for growth in growths)
