"""The figure of speed-ups in both forms, and the bars of time and memory."""

import made_up_records as made_up
import pytest
from drawn_reports import explore, texts, write_all

from mixed_precision_study.report.layout import NARROW, most_compared
from mixed_precision_study.report.load import load
from mixed_precision_study.report.section import Chart
from mixed_precision_study.report.speedup_figure import section, sorted_names
from mixed_precision_study.report.speedup_list import by_model
from mixed_precision_study.report.speedup_marks import finding_of, ratio_label, ratios_of_hosts
from mixed_precision_study.report.style import INTERVAL_GREY, PRECISIONS
from mixed_precision_study.report.time_and_memory import rows_of

MODES = {"fp32": 4.0, "tf32": 2.0, "amp_fp16": 1.0}  # seconds of an epoch


def timed(precision, seconds, **fields):
    """Return the record of a run with two epochs of these seconds."""
    return made_up.make(
        "cifar_resnet", precision, seconds=[seconds] * 2, block_seconds=made_up.blocks_of([seconds] * 2), **fields
    )


def write_repeats(folder, hosts=("one",), modes=None, seconds_on=None, parameters=None, **fields):
    """Write a run of each mode for every host, one repetition on each; `seconds_on` are factors of the hosts' times."""
    for repeat, host in enumerate(hosts):
        factor = (seconds_on or {}).get(host, 1.0)
        for precision, seconds in (modes or MODES).items():
            slower = seconds * (factor if precision != "fp32" else 1)
            values = {"repeats": len(hosts), "repeat": repeat, **(parameters or {})}
            write_all(folder, timed(precision, slower, parameters=values, host_id=host, **fields))


def lines_at(axes, colour):
    return [line for line in axes.lines if line.get_color() == colour]


def test_a_row_has_a_marker_over_each_baseline_and_its_numbers(tmp_path):
    write_repeats(tmp_path)
    report, charts = explore(tmp_path, "speedup_figure")
    plot, columns = charts["speedup"].axes
    over_fp32, over_tf32 = lines_at(plot, PRECISIONS["amp_fp16"].colour)
    assert over_fp32.get_xdata()[0] == pytest.approx(4) and over_tf32.get_xdata()[0] == pytest.approx(2)
    assert over_fp32.get_marker() != over_tf32.get_marker()
    written = [text.get_text() for text in columns.texts]
    assert written[4:8] == ["1", "", "4.00 s", "3.85 GiB"]
    assert written[8:12] == ["4.00", "2.00", "1.00 s", "3.85 GiB"]  # the fastest comes first
    assert sorted_names(report, 0) == ["amp_fp16", "tf32"]


def test_one_process_is_hollow_and_three_have_an_interval(tmp_path):
    write_repeats(tmp_path / "one")
    write_repeats(tmp_path / "three", hosts=("a", "b", "c"), seconds_on={"a": 0.9, "c": 1.1})
    colour = PRECISIONS["amp_fp16"].colour
    (plot, _), (other, _) = (explore(tmp_path / name, "speedup_figure")[1]["speedup"].axes for name in ("one", "three"))
    assert [line.get_markerfacecolor() for line in lines_at(plot, colour)] == ["white", "white"]
    interval, marker, *_ = lines_at(other, colour)
    low, high = interval.get_xdata()
    assert low < marker.get_xdata()[0] < high and marker.get_markerfacecolor() == colour


def test_hosts_are_ticks_where_there_are_several(tmp_path):
    write_repeats(tmp_path, hosts=("a", "b"), seconds_on={"b": 2.0})
    report, charts = explore(tmp_path, "speedup_figure")
    assert sorted(ratios_of_hosts(report.comparisons[0], "amp_fp16", "fp32")) == pytest.approx([2.0, 4.0])
    ticks = [line.get_xdata()[0] for line in lines_at(charts["speedup"].axes[0], INTERVAL_GREY)]
    assert sorted(ticks) == pytest.approx([1.0, 2.0, 2.0, 2.0, 2.0, 4.0])  # tf32, and amp_fp16 over fp32 and tf32
    assert "one host" in texts(charts["speedup"])
    write_repeats(tmp_path / "alone")
    assert ratios_of_hosts(load(tmp_path / "alone").comparisons[0], "amp_fp16", "fp32") == []


def test_a_run_that_did_not_train_is_grey_and_in_brackets(tmp_path):
    write_repeats(tmp_path, modes={"fp32": 4.0})
    write_all(
        tmp_path, timed("amp_fp16", 1.0, metric=[0.2, 0.25], parameters={"repeats": 1, "repeat": 0}, host_id="one")
    )
    report, charts = explore(tmp_path, "speedup_figure")
    key = (0, "amp_fp16", "fp32")
    assert report.speedups[key]["untrained"] and ratio_label(report, key) == "(4.00)"
    assert lines_at(charts["speedup"].axes[0], PRECISIONS["amp_fp16"].colour) == []
    assert len(lines_at(charts["speedup"].axes[0], INTERVAL_GREY)) == 1
    assert "none" in finding_of(report, [0]) and "4.00x" not in finding_of(report, [0])


def test_the_title_names_all_that_are_equally_fast(tmp_path):
    write_repeats(tmp_path, modes={"fp32": 4.0, "tf32": 2.0, "amp_fp16": 2.02, "amp_bf16": 3.0})
    title = finding_of(load(tmp_path), [0]).replace("\xa0", " ")
    assert "tf32 and amp_fp16 2.00x on resnet18" in title and "amp_bf16" not in title


def test_the_title_leaves_out_what_may_not_be_recommended(tmp_path):
    write_repeats(tmp_path, modes={"fp32": 4.0, "amp_fp16": 2.0, "bf16_true": 1.0})  # one seed shows no equal quality
    title = finding_of(load(tmp_path), [0]).replace("\xa0", " ")
    assert "amp_fp16 2.00x on resnet18" in title and "bf16_true" not in title


def test_of_many_comparisons_the_title_has_medians_of_eager_mode_and_of_graphs_apart(tmp_path):
    for batch_size in (64, 128):
        shared = {"batch_size": batch_size}
        write_repeats(tmp_path, modes={"fp32": 4.0, "tf32": 2.0, "amp_fp16": 4.0}, parameters=shared)
        write_repeats(tmp_path, modes=MODES, parameters={**shared, "execution": "cuda_graph"})
    title = finding_of(load(tmp_path), [0, 1, 2, 3])
    eager, graphs = "tf32 2.00x, amp_fp16 1.00x (median of 2)", "tf32 2.00x, amp_fp16 4.00x (median of 2)"
    assert title == f"Over fp32: eager {eager}; as one graph {graphs}"


def test_medians_leave_out_where_a_precision_loses_quality(tmp_path):
    for batch_size, seconds, shift in ((64, 2.0, 0.0), (128, 1.0, -0.05), (256, 1.0, -0.05), (512, 2.0, 0.0)):
        write_repeats(tmp_path, modes={"fp32": 4.0}, parameters={"batch_size": batch_size})
        parameters = {"batch_size": batch_size, "repeats": 1, "repeat": 0}
        run = timed("bf16_true", seconds, parameters=parameters, shift=shift, host_id="one")
        write_all(tmp_path, run)
    report = load(tmp_path)
    assert {speedup["ratio"] for speedup in report.speedups.values()} == {2.0, 4.0}
    assert finding_of(report, [0, 1, 2, 3]) == "Over fp32: bf16_true 2.00x (median of 2 comparisons)"


def test_of_each_experiment_the_comparison_with_most_ratios_is_drawn(tmp_path):
    for rate, gpu in enumerate(("GPU-2", "GPU-2", "GPU-1", "GPU-2", "GPU-2", "GPU-2", "GPU-2")):
        parameters = {"lr": 0.1 * (rate + 1)}
        write_all(tmp_path, timed("fp32", 4.0, parameters=parameters, gpu_uuid="GPU-1"))
        write_all(tmp_path, timed("amp_fp16", 2.0, parameters=parameters, gpu_uuid=gpu))
    report = load(tmp_path)
    chosen = most_compared(report, list(range(7)), 1)
    assert [report.comparisons[number]["settings"]["lr"][:3] for number in chosen] == ["0.3"]


def test_figures_of_two_gpus_are_marked_as_not_paired(tmp_path):
    for precision, seconds, gpu in (("fp32", 4.0, "GPU-1"), ("tf32", 2.0, "GPU-2"), ("amp_fp16", 1.0, "GPU-1")):
        write_all(tmp_path, timed(precision, seconds, gpu_uuid=gpu))
    _, charts = explore(tmp_path, "speedup_figure")
    said = texts(charts["speedup"])
    assert {"2.00‡", "4.00"} <= set(said) and any("not paired ‡" in text for text in said)


def test_gaps_say_why_and_some_failed_runs_are_named(everything):
    report, charts = everything
    said = texts(charts["speedup"])
    assert {"diverged", "unsupported", "timeout", "failed", "killed"} <= set(said)
    assert any("o2_fp16: oom (2 of 3)" in text for text in said)
    assert any(text.startswith("resnet18") and "* o2_fp16:" in text for text in texts(charts["time_and_memory"]))
    number = [group["title"] for group in report.comparisons].index("resnet50 · cifar10, b512 · H200")
    assert ratio_label(report, (number, "amp_fp16", "fp32")) == "" != ratio_label(report, (number, "amp_fp16", "tf32"))


def test_many_comparisons_become_a_list_by_model(tmp_path):
    made_up.write_many(tmp_path)
    report, charts = explore(tmp_path, "speedup_figure")
    kinds = by_model(report)
    assert len(kinds) == 5 and sorted(number for numbers in kinds.values() for number in numbers) == report.charted
    figure = charts["speedup"]
    labels, _, columns = figure.axes
    assert len(labels.texts) == 50 + 5
    assert len(columns.texts) == 3 + 3 * 50
    screens = figure.get_figheight() / figure.get_figwidth() * 800 / 900
    assert screens < 50 / 113 * 3 + 0.2  # 113 comparisons take three screens


def test_a_list_names_the_baseline_where_it_is_not_fp32(tmp_path):
    for size in range(1, 10):
        modes = {name: seconds for name, seconds in MODES.items() if name != "fp32" or size > 1}
        write_repeats(tmp_path, modes=modes | {"amp_bf16": 3.0}, parameters={"batch_size": size})
    _, charts = explore(tmp_path, "speedup_figure")
    said = [text for text in texts(charts["speedup"]) if text.startswith("cifar10")]
    assert [text for text in said if "tf32" in text] == ["cifar10, b1 · over tf32"] and len(said) == 9


@pytest.mark.parametrize("made", ["everything", "pooled"])
def test_every_text_has_nine_pixels_where_the_picture_is_800_wide(made, request):
    _, charts = request.getfixturevalue(made)
    for name in ("speedup", "time_and_memory", "step_time", "memory_breakdown"):
        assert charts[name].get_figwidth() == NARROW
        sizes = {text.get_fontsize() for text in charts[name].findobj(lambda part: hasattr(part, "get_fontsize"))}
        assert min(sizes) / 72 * 800 / NARROW >= 9, name


def test_bars_of_time_are_means_and_reach_from_shortest_to_longest(everything):
    report, _ = everything
    number = [group["title"] for group in report.comparisons].index("resnet18 · cifar10, b128 · H200")
    assert report.epoch_times[number, "fp32"] == pytest.approx((6.2995, 6.0, 6.6, 9), rel=1e-5)
    assert report.peaks[number, "fp32"][0] == 4 - 150 / 1024 and report.whole[number, "fp32"][0] == (4096 + 1500) / 1024


def test_epochs_of_unequal_work_are_shown_as_time_per_sample(tmp_path):
    for notebook, size, steps in (("cifar_resnet", 128, 0), ("cifar_resnet", 128, 5), ("lstm_language_model", 20, 0)):
        for precision in ("fp32", "amp_fp16"):
            known = {"samples_per_epoch": steps * size, "seconds": [0.064] * 3} if steps else {}
            values = {"batch_size": size, "max_steps": steps}
            write_all(tmp_path, made_up.make(notebook, precision, parameters=values, **known))
    report, charts = explore(tmp_path, "speedup_figure")
    assert report.uneven == {"cifar_resnet"}
    assert {"122 µs", "100 µs", "6.10 s"} <= set(texts(charts["speedup"]))  # 6.1 s for 50,000 images
    left, right = charts["time_and_memory"].axes
    assert (left.get_ylabel(), right.get_ylabel()) == ("µs per sample", "GiB")
    assert {122, 100} <= {round(bar.get_height(), 6) for bar in left.patches}
    found = {round(bar[0], 9) for bar in report.epoch_times.values()}
    assert found == {0.064, 6.1}  # the articles give seconds


def test_of_many_comparisons_three_have_bars(tmp_path):
    made_up.write_many(tmp_path)
    report = load(tmp_path)
    (row,) = rows_of(report)
    assert len({report.comparisons[number]["model"] for number in row}) == 3
    few = load(made_up_few(tmp_path / "few"))
    assert rows_of(few) == [few.charted[:3], few.charted[3:]]


def made_up_few(folder):
    """Write four comparisons and return their folder."""
    for size in range(1, 5):
        write_repeats(folder, parameters={"batch_size": size})
    return folder


def test_models_that_come_twice_have_a_row_each(tmp_path):
    for model in ("resnet18", "resnet50"):
        for execution in ("eager", "cuda_graph"):
            write_repeats(tmp_path, parameters={"model": model, "execution": execution})
    report = load(tmp_path)
    models = [[report.comparisons[number]["model"] for number in row] for row in rows_of(report)]
    assert models == [["resnet18"] * 2, ["resnet50"] * 2]


def test_the_alternative_texts_hold_the_numbers(tmp_path):
    write_repeats(tmp_path)
    speedup, bars = [part for part in section(load(tmp_path)) if isinstance(part, Chart)]
    assert "amp_fp16 4.00, tf32 2.00" in speedup.alt
    assert "tf32 2.00 s, 3.85 GiB" in bars.alt


@pytest.mark.parametrize("modes", [MODES, {"fp32": 4.0, "amp_fp16": 1.0}])
def test_a_column_over_tf32_is_named_only_where_something_was_compared_with_it(tmp_path, modes):
    write_repeats(tmp_path, modes=modes)
    columns = explore(tmp_path, "speedup_figure")[1]["speedup"].axes[1]
    assert [text.get_text() for text in columns.texts][:2] == ["over fp32", "over tf32" if "tf32" in modes else ""]


def test_a_long_name_has_lines_of_its_own_and_does_not_narrow_the_chart(tmp_path):
    write_repeats(tmp_path / "short")
    write_repeats(tmp_path / "long")
    far = {"optimizer": "adamw", "rounding": "stochastic", "lr": 0.001, "execution": "compile_cuda_graph"}
    write_repeats(tmp_path / "long", parameters=far)
    short, long = (explore(tmp_path / name, "speedup_figure")[1]["speedup"] for name in ("short", "long"))
    names = [text for text in long.axes[0].texts if text.get_weight() == "bold"]
    assert len(names) > 2
    for figure in (short, long):
        figure.canvas.draw()
    assert long.axes[1].get_position().width == pytest.approx(short.axes[1].get_position().width, rel=0.05)
