"""Bars, speed-up charts, marks of disturbed runs, and that no text lies on another."""

import made_up_records as made_up
import pytest
from drawn_reports import drawn, explore, overlapping, said_in, texts, write_all

from mixed_precision_study.analysis.verdict import flags_of
from mixed_precision_study.report.bars import pool
from mixed_precision_study.report.epoch_time import scaled_times
from mixed_precision_study.report.load import load
from mixed_precision_study.report.memory_use import rates
from mixed_precision_study.report.style import CPU_WARNING
from mixed_precision_study.report.table import table_rows
from mixed_precision_study.report.verdicts import mark_of

ALWAYS = {"epoch_time", "scaled_time", "peak_memory", "throughput", "training_curves"}
H200 = "resnet18 · cifar10, b128 · H200"


def test_bars_are_medians_and_reach_from_smallest_to_largest(everything):
    report, _ = everything
    number = [group["title"] for group in report.comparisons].index(H200)
    assert report.epoch_times[number, "fp32"] == pytest.approx((6.3, 6.0, 6.6, 9))
    assert scaled_times(report)[0][number, "amp_fp16"] == pytest.approx((0.5, 0.5, 0.5, 3))
    assert report.peaks[number, "fp32"][0] == 4.0 and report.whole[number, "fp32"][0] == (4096 + 1500) / 1024
    assert pool(report, rates)[number, "fp32"][1:3] == pytest.approx((50_000 / 6.6, 50_000 / 6.0))


def test_epochs_of_unequal_work_are_shown_as_time_per_sample(tmp_path):
    for notebook, size, steps in (("cifar_resnet", 128, 0), ("cifar_resnet", 128, 5), ("lstm_language_model", 20, 0)):
        for precision in ("fp32", "amp_fp16"):
            known = {"samples_per_epoch": steps * size, "seconds": [0.064] * 3} if steps else {}
            values = {"batch_size": size, "max_steps": steps}
            write_all(tmp_path, made_up.make(notebook, precision, parameters=values, **known))
    report, charts = explore(tmp_path, "epoch_time")
    assert report.uneven == {"cifar_resnet"}
    images, words = charts["epoch_time"].axes[:2]
    assert (images.get_ylabel(), words.get_ylabel()) == ("µs per image", "seconds per epoch")
    assert {round(bar.get_height(), 6) for bar in images.patches} == {122, 100}  # 6.1 s for 50,000 images
    assert {bar.get_height() for bar in words.patches} == {6.1}
    assert sorted({bar[0] for bar in report.epoch_times.values()}) == [0.064, 6.1]  # the articles give seconds


def test_a_scaled_time_of_two_gpus_is_marked(tmp_path):
    for precision, seconds, gpu in (("fp32", 4.0, "GPU-1"), ("tf32", 2.0, "GPU-2"), ("amp_fp16", 1.0, "GPU-1")):
        values = {"seconds": [seconds] * 2, "block_seconds": made_up.blocks_of([seconds] * 2), "gpu_uuid": gpu}
        write_all(tmp_path, made_up.make("cifar_resnet", precision, **values))
    _, charts = explore(tmp_path, "epoch_time")
    assert {"1.00", "0.500‡", "0.250"} <= set(texts(charts["scaled_time"]))
    assert not any("‡" in text for text in texts(charts["epoch_time"]))


def test_disturbed_runs_are_marked_in_every_chart(everything):
    report, charts = everything
    curves = {"training_curves", "loss_scale"}
    for name in set(charts) - curves - {name for name in charts if name.startswith(("published", "similar"))}:
        marked = [text for text in texts(charts[name]) if text.removesuffix(" (one process)").endswith("†")]
        assert len(marked) == (4 if name == "limit_reached" else 2), name
    for name in curves:
        assert sum("† amp_fp16" in text for text in texts(charts[name])) == 2
    assert all(any(text.startswith("† throttled") for text in texts(figure)) for figure in charts.values())
    assert [flags_of(record) for _, record in report.disturbed] == [
        ["throttled (power cap 30% of the time)"],
        ["GPU shared with another process"],
    ]
    flags = {row["flags"] for row in table_rows(report)}
    assert flags == {None, "amp_fp16 throttled (power cap 30% of the time)", "amp_fp16 GPU shared with another process"}
    number = [group["title"] for group in report.comparisons].index(H200)
    assert mark_of(report, number, "fp32") == ""


@pytest.mark.parametrize("made", ["everything", "pooled"])
def test_no_text_lies_on_another_and_legends_fit(made, request):
    for name, figure in request.getfixturevalue(made)[1].items():
        assert overlapping(figure) == [], name
        width = figure.get_figwidth() * figure.dpi
        assert all(legend.get_window_extent().x1 <= width for part in figure.subfigs for legend in part.legends), name


def test_the_cpu_is_charted_under_a_warning_and_not_judged():
    report, charts = drawn(made_up.write_cpu)
    assert report.on_cpu and set(charts) == ALWAYS | {"speed_up"}
    assert all(CPU_WARNING in texts(figure) for figure in charts.values())
    assert "not measured" in texts(charts["peak_memory"])
    (row,) = table_rows(report)
    assert (row["verdict"], row["quality_verdict"], row["limit"]) == ("not judged: CPU", "not judged: CPU", None)
    assert row["verdict_text"].startswith("amp_bf16 ran on the CPU")
    said = "\n".join(said_in(name, report) for name in ("verdicts", "epoch_time", "bottlenecks", "table"))
    for word in ("faster", "slower", "the same within", "takes **", "2.50x", "kernel launches"):
        assert word not in said


def test_all_runs_failed_still_gives_a_report(tmp_path):
    for status in ("oom", "timeout"):
        reason = "<i>$x$ and $y$</i>"
        write_all(tmp_path, made_up.make_failed("cifar_resnet", "fp32", status, reason, parameters={"model": status}))
    report, charts = explore(tmp_path)
    assert {"oom", "timeout"} <= set(texts(charts["epoch_time"])) and set(charts) == ALWAYS
    assert [key[1:] for key in report.sentences] == [("fp32", "fp32")] * 2
    assert all(reason in sentence for sentence in report.sentences.values())
    assert table_rows(report) == []  # fp32 alone has nothing to be compared with


def test_the_peak_of_the_warm_up_is_compared_with_that_of_training(tmp_path):
    for precision, mib in (("fp32", 4096.0), ("tf32", 1024.0)):
        write_all(tmp_path, made_up.make("cifar_resnet", precision, peak=1024.0, peak_allocated_with_warmup_mib=mib))
    assert "up to 4.0 times the peak of training: 4.00 GiB (fp32, resnet18" in said_in("memory_use", load(tmp_path))


def test_bars_are_read_in_sentences(everything):
    report = everything[0]
    said = said_in("epoch_time", report)
    start = (
        r"efficientnet\_regression: from **4.10** (fp32, tf\_efficientnet\_b0 · elpv, b32 · no channels\_last · H200)"
    )
    assert f"{start} to **5.10** seconds per epoch (amp_fp16, " in said
    assert "amp_bf16 takes **0.50** of fp32's time in 1 comparison: faster in 1." in said
    assert "Over fp32: one process 6, faster 3; from **1.99x** (amp_bf16, " in said
    assert "**0.80x**" not in said  # one process is not singled out
    said = said_in("memory_use", report)
    assert "amp_fp16 saves **20% to 52%**" in said and " 1.46 GiB " in said
    assert r"lstm\_language\_model: from **130,539**" in said and "** tokens per second" in said
