"""A setting that grows, the ladder, ways of execution, largest batches and loss scales: values of made-up records."""

import math

import made_up_records as made_up
import pytest
from drawn_reports import charts_in, read_all, rows_in
from matplotlib.colors import to_hex

from mixed_precision_study.judge.verdict import FASTER, SAME
from mixed_precision_study.report import growth, ladder
from mixed_precision_study.report.charts import STATUS
from mixed_precision_study.report.names import COLOURS
from mixed_precision_study.report.tables import read_tables

STEPS = [
    {"label": "fp32", "precision": "fp32"},
    {"label": "TF32", "precision": "tf32"},
    {"label": "AMP", "precision": ["amp_bf16", "amp_fp16"]},
    {"label": "channels_last", "channels_last": True},
    {"label": "compiled", "execution": "compile"},
    {"label": "graph", "execution": "compile_cuda_graph"},
    {"label": "larger batch", "batch_size": [512, 128, 80]},
]


def tables_of(folder, write, **show):
    write(folder)
    return read_all(folder, **show)


@pytest.fixture(scope="module")
def climbed(tmp_path_factory):
    return tables_of(tmp_path_factory.mktemp("ladder"), made_up.write_ladder, steps=STEPS)


def test_steps_have_their_speed_over_the_first_and_over_the_last_that_ran(climbed):
    steps = ladder.steps_of(climbed).set_index("label")
    assert list(steps.index) == [step["label"] for step in STEPS[:-1]]  # a larger batch is another training
    assert steps.ratio.dropna().tolist() == pytest.approx([2, 2.4, 2.4, 4.8])
    assert steps.gain_ratio.dropna().tolist() == pytest.approx([2, 1.2, 1, 2])
    assert steps.gain_outcome.dropna().tolist() == [FASTER, FASTER, SAME, FASTER]
    assert steps.gib["graph"] == pytest.approx((700 - 150) / 1024)
    assert steps.status["compiled"] == "failed" and steps.seconds.isna()["compiled"]


def test_the_ladder_is_drawn_with_its_values_and_colours_and_its_steps_are_in_no_table_of_ways(climbed):
    section, steps = ladder.section(climbed), ladder.steps_of(climbed)
    (figure,) = charts_in(section)["ladder"]
    assert "4.8" in section.title and len(rows_in(section)[0]) == len(steps)
    bars = figure.axes[0].patches
    assert [bar.get_width() for bar in bars] == pytest.approx([1, 2, 2.4, 2.4, 0, 4.8], nan_ok=True)
    assert [to_hex(bar.get_facecolor()) for bar in bars[:3]] == [COLOURS[one] for one in ("fp32", "tf32", "amp_bf16")]
    pairs = set(zip(steps.comparison, steps.precision, strict=True))
    ways = ladder.ways_of(climbed, steps)
    assert not [one for one in ways.itertuples() if {(one.before, one.precision), (one.after, one.precision)} <= pairs]


def test_each_way_is_compared_with_those_to_which_it_adds_something(tmp_path):
    seconds = {"eager": 8.0, "compile": 6.0, "cuda_graph": 4.0, "compile_cuda_graph": 2.0}
    for way, time in seconds.items():
        record = made_up.make("cifar_resnet", "amp_fp16", seconds=[time] * 2, parameters={"execution": way})
        made_up.write_processes(record, tmp_path)
    found = read_tables(tmp_path)
    ways = ladder.ways_of(found, ladder.steps_of(found))
    named = found.comparisons.execution
    ratios = {(named[one.before], named[one.after]): one.ratio for one in ways.itertuples()}
    adding = [("eager", name) for name in list(seconds)[1:]]
    adding += [(name, "compile_cuda_graph") for name in list(seconds)[1:3]]
    assert ratios == pytest.approx({pair: seconds[pair[0]] / seconds[pair[1]] for pair in adding})
    assert set(ways.outcome) == {FASTER} and "4.0" in ladder.section(found).title


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    return tables_of(tmp_path_factory.mktemp("growth"), made_up.write_crossover, over="units", **{"with": ["heads"]})


def test_each_width_is_compared_with_the_next_simpler_precision_and_drawn_in_its_colour(grown):
    (family,) = growth.families_of(grown)
    assert family["size"].tolist() == list(made_up.WIDTHS) and set(family.axis) == {"width"}
    pairs = growth.pairs_of(grown, family).set_index(["precision", "size"])
    section = growth.section(grown)
    axes = charts_in(section)["growth"][0].axes[0]
    drawn = {line.get_gid().split()[1]: line for line in axes.lines if str(line.get_gid()).startswith("line ")}
    for name, base in (("tf32", "fp32"), ("amp_bf16", "tf32"), ("fp8", "amp_bf16")):
        assert set(pairs.base[name]) == {base}
        for width, *seconds in zip(made_up.WIDTHS, *(made_up.WIDTH_SECONDS[one] for one in (base, name)), strict=True):
            ratio = seconds[0] / seconds[1] if seconds[1] else math.nan
            assert pairs.ratio[name, width] == pytest.approx(ratio, nan_ok=True)
    lines = growth.lines_of(grown, family).groupby("precision").ratio.apply(list)
    assert set(drawn) >= {"amp_bf16", "fp8"}
    for name, line in drawn.items():
        assert line.get_color() == COLOURS[name] and list(line.get_ydata()) == pytest.approx(lines[name])
    outcomes = [STATUS["unsupported"], "slower", "faster"]
    assert [pairs.outcome["fp8", width] for width in made_up.WIDTHS] == outcomes and "2,048" in section.title
    assert [pairs[name]["fp8", 2048] for name in ("memory", "energy", "above")] == pytest.approx([0.9, 0.9, 0.01])
    assert len(rows_in(section)[0]) == 3 * len(made_up.WIDTHS)


@pytest.mark.parametrize(
    ("own", "base", "outcome"),
    [
        ([4.0] * 3, [4.0] * 3, "within"),
        ([4.03] * 3, [4.0] * 3, "outside"),
        ([4.03, 4.03, 4.05], [4.0] * 3, "inconclusive"),  # equal runs differ by more than the distance from the bar
        ([4.0] * 2, [4.0] * 3, "fewer than three runs"),
        ([], [4.0], None),
    ],
)
def test_a_loss_is_judged_beside_the_bar_and_its_scatter(own, base, outcome):
    def runs_of(losses):
        return [vars(made_up.make("lstm_language_model", "fp32", train_loss=[one])) for one in losses]

    found = growth.judge_loss(runs_of(own), runs_of(base))
    assert (found and found["loss_outcome"]) == outcome


def test_the_largest_batches_are_those_that_trained_and_the_smallest_that_did_not_fit(tmp_path):
    found = tables_of(tmp_path, made_up.write_batches)
    rows = growth.largest_of(found).set_index("precision")
    assert rows[["batch", "too_large", "base_batch"]].to_dict("index") == {
        "fp32": {"batch": 256, "too_large": 512, "base_batch": 256},
        "amp_fp16": {"batch": 512, "too_large": 1024, "base_batch": 256},
    }
    speed = (50_000 // 512 * 512 / 2.5) / (50_000 // 256 * 256 / 5)  # per sample
    assert rows.ratio["amp_fp16"] == pytest.approx(speed)
    assert "2.0" in growth.section(found).title


def test_a_sweep_of_loss_scales_has_a_row_for_each_and_two_scales_are_none(tmp_path):
    (rows,) = rows_in(growth.section(tables_of(tmp_path, made_up.write_sweep, over="loss_scale")))
    cells = {row["loss scale"]: (row["skipped steps"], row["ended"]) for row in rows}
    assert list(cells) == ["1", "256", "65,536", "1,048,576", "dynamic"]
    assert (cells["65,536"], cells["1,048,576"][1]) == (("9.97%", "well"), STATUS["diverged"])
    two = [made_up.make("cifar_resnet", "amp_fp16", parameters={"loss_scale": one}) for one in (1.0, 2.0)]
    assert not growth.section(read_all(tmp_path / "two", *two, over="loss_scale")).parts


def test_without_anything_to_show_both_are_absent(tmp_path):
    runs = [made_up.make("cifar_resnet", name) for name in ("fp32", "tf32")]
    found = read_all(tmp_path, *runs, over="units", steps=STEPS)
    assert not growth.section(found).parts and len(ladder.steps_of(found)) == 2
