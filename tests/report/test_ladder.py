"""Steps of a ladder, and the same training in another way."""

import itertools

import made_up_records as made_up
import pytest
import yaml

from mixed_precision_study.report import ladder
from mixed_precision_study.report.section import Chart
from mixed_precision_study.report.tables import read_tables

STEPS = [
    {"label": "fp32", "precision": "fp32"},
    {"label": "TF32", "precision": "tf32"},
    {"label": "AMP", "precision": ["amp_fp16", "amp_bf16"]},
    {"label": "layout", "channels_last": True},
    {"label": "compile", "execution": "compile"},
    {"label": "graph", "execution": "compile_cuda_graph"},
    {"label": "batch", "batch_size": [512, 128]},
]
SECONDS = {"eager": 8.0, "compile": 6.0, "cuda_graph": 4.0, "compile_cuda_graph": 2.0}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ladder")
    made_up.write_ladder(folder)
    (folder / "study.yaml").write_text(yaml.safe_dump({"name": "made up", "show": {"steps": STEPS}}))
    return read_tables(str(folder))


def test_each_step_is_beside_the_first_and_the_one_before(tables):
    steps = ladder.steps_of(tables)
    image = steps[steps.model == "ResNet-18"].set_index("label")
    assert list(image.index) == ["fp32", "TF32", "AMP", "layout", "compile", "graph"]
    assert list(image.ratio[1:]) == pytest.approx([2, 2.4, 2.4, 3, 4.8])
    assert list(image.gain_ratio[1:]) == pytest.approx([2, 1.2, 1, 1.25, 1.6])
    words = steps[steps.model.str.startswith("LSTM")]
    assert "layout" not in set(words.label) and "batch" not in set(words.label)


def test_a_bar_is_as_long_as_its_ratio_and_says_its_own_gain(tables):
    steps = ladder.steps_of(tables)
    chart = next(part for part in ladder.section(tables).parts if isinstance(part, Chart))
    for figure, (_, one) in zip(chart.figures, steps.groupby("ladder"), strict=True):
        (axes,) = figure.axes
        bars = {bar.get_gid(): bar.get_width() for bar in axes.patches}
        known = one[one.ratio.notna()]
        assert {f"step {name}": bars[f"step {name}"] for name in known.label} == {
            f"step {name}": ratio for name, ratio in zip(known.label, known.ratio, strict=True)
        }
        labels = dict(zip(one.label, [text.get_text() for text in axes.texts], strict=True))
        assert labels[one.label.iloc[0]] == ""
        for step in known.itertuples():
            assert f"×{step.gain_ratio:.1f}" in labels[step.label]
        assert labels[known.label.iloc[-1]].endswith(f"= {known.ratio.iloc[-1]:.1f}×")


def test_a_step_that_failed_has_no_bar_and_the_next_is_beside_the_last_that_ran(tables):
    steps = ladder.steps_of(tables)
    failed = steps[steps.status != "ok"]
    assert len(failed) and failed.ratio.isna().all()
    after = steps.loc[failed.index[0] + 1]
    assert after.gain_ratio > 0


def test_each_execution_is_compared_with_those_to_which_it_adds_something(tmp_path):
    for name, seconds in SECONDS.items():
        record = made_up.make("cifar_resnet", "amp_fp16", seconds=(seconds,) * 2, parameters={"execution": name})
        made_up.write_processes(record, tmp_path)
    tables = read_tables(str(tmp_path))
    ways = ladder.ways_of(tables, ladder.steps_of(tables))
    names = tables.comparisons.execution
    found = {(names[one.before], names[one.after]): one.ratio for one in ways.itertuples()}
    adding = [("eager", "compile"), ("eager", "cuda_graph"), ("eager", "compile_cuda_graph")]
    adding += [("compile", "compile_cuda_graph"), ("cuda_graph", "compile_cuda_graph")]
    assert found == {pair: pytest.approx(SECONDS[pair[0]] / SECONDS[pair[1]]) for pair in adding}


def test_a_ratio_of_ways_has_one_changed_setting(tmp_path):
    for scaler, loader in itertools.product(("pytorch", "device"), ("gpu", "workers")):
        values = {"scaler": scaler, "loader": loader}
        made_up.write_processes(made_up.make("cifar_resnet", "amp_fp16", parameters=values), tmp_path)
    tables = read_tables(str(tmp_path))
    settings = tables.comparisons.settings
    for one in ladder.ways_of(tables, ladder.steps_of(tables)).itertuples():
        before, after = settings[one.before], settings[one.after]
        assert len([name for name in before if before[name] != after[name]]) == 1
