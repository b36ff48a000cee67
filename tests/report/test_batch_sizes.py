"""Batch sizes: searches for the largest, and the two kinds of speed-up."""

import made_up_records as made_up
import pytest
from drawn_reports import drawn, explore, said_in, tables_of, texts, write_all

from mixed_precision_study.report.batch_sizes import (
    best_speedups,
    failing_above,
    figures_by_batches,
    rows_by_batch,
    start_of_cudnn_search,
)
from mixed_precision_study.report.comparisons import runs_of


def rows_of(report):
    return {row["precision"]: row for row in rows_by_batch(figures_by_batches(report))}


def write_searches(folder, probes, size):
    """Write a search for the largest batch as `largest_batch` makes it: {precision: probes}, which ended at `size`."""
    for precision, made in probes.items():
        known = {"batch_size_used": size[precision], "samples_per_epoch": 49_920, "batch_probes": made}
        write_all(folder, made_up.make("cifar_resnet", precision, parameters={"batch_size": "max"}, **known))


def test_a_probe_that_ran_out_with_cudnns_search_is_not_the_largest_batch(tmp_path):
    probes = [[256, "ok", 1.0, 1.0], [512, "ok", 1.0, 2.0], [512, "oom", 1.0, None]]
    write_searches(tmp_path, {"fp32": probes, "amp_fp16": probes}, {"fp32": 240, "amp_fp16": 480})
    report, _ = explore(tmp_path)  # though no comparison at one batch size is there
    rows = rows_of(report).values()
    assert [(row["largest that trained"], row["out of memory at"]) for row in rows] == [(240, 512), (480, 512)]
    assert all(set(sizes) == {256} for sizes in figures_by_batches(report)[0].probes.values())


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """(report, charts) of the batch sizes with a search for the largest."""
    folder = tmp_path_factory.mktemp("searched")
    plain = [[16, "ok", 1.0, 900.0], [32, "ok", 2.0, 1000.0], [64, "oom", 4.0, None], [40, "ok", 3.0, 1100.0]]
    probes = {"fp32": [*plain[:3], [40, "oom", 3.0, None], [32, "ok", 2.0, 1500.0]]}
    probes["amp_fp16"] = [*plain, [48, "oom", 3.5, None], [40, "oom", 3.0, 1600.0], [32, "ok", 2.0, 1700.0]]
    write_searches(folder, probes, {"fp32": 32, "amp_fp16": 32})
    return explore(folder, "batch_sizes")


def test_probes_with_cudnns_search_are_drawn_apart_from_those_without(searched):
    report, charts = searched
    (family,) = figures_by_batches(report)
    assert family.probes == {name: {16: 900.0, 32: 1000.0} for name in ("fp32", "amp_fp16")}
    assert family.searched == {"fp32": {32: 1500.0}, "amp_fp16": {32: 1700.0}}
    assert [start_of_cudnn_search(run["batch_probes"]) for run in runs_of(family.groups)] == [4, 5]
    assert start_of_cudnn_search([]) == 0 and start_of_cudnn_search([[16, "oom", 1.0, None]]) == 1
    axes = charts["batch_size"].axes[0]
    joined = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert [(line.get_linestyle(), list(line.get_ydata())) for line in joined] == [(":", [900.0, 1000.0])] * 2
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert [list(line.get_ydata()) for line in hollow] == [[1500.0], [1700.0]]


def test_the_largest_batch_has_its_resolution(searched):
    row = rows_of(searched[0])["fp32"]
    assert (row["out of memory at"], row["resolution"]) == (40, "+25%, below 40")
    runs = searched[0].largest[0]["runs"]["amp_fp16"]
    assert (failing_above(40, runs), failing_above(64, runs)) == (48, None)


def test_the_largest_batches_are_not_mixed_with_the_others():
    report, charts = drawn(made_up.write_batches, "speedup_figure", "batch_sizes")
    text = "1.99x as fast as fp32 (one process) per sample, each at its largest batch (512 and 256); "
    (verdicts,) = [table for table in tables_of("batch_sizes", report) if "at the largest batch" in table[0]]
    assert any(text in row["at the largest batch"] for row in verdicts)
    rows = rows_of(report)
    sizes = {name: (row["largest that trained"], row["out of memory at"]) for name, row in rows.items()}
    assert sizes == {"fp32": (256, 512), "amp_fp16": (512, 1024)}
    assert rows["amp_fp16"]["at the largest batch of both"] == "1.50x (one process), b128"
    assert rows["amp_fp16"]["each at its fastest"] == "1.82x, b512 over b256"  # 3.0 s and 2.5 s over 5.0 s
    assert all(group["batch"] != "bmax" for group in report.comparisons)
    assert not any("max" in text for name in ("speedup", "time_and_memory") for text in texts(charts[name]))


def test_a_precision_with_one_size_is_not_compared_at_its_best_with_several():
    speeds = {"fp32": {128: 100.0, 512: 110.0}, "amp_fp16": {128: 150.0, 512: 220.0}, "o2_fp16": {128: 140.0}}
    assert best_speedups(speeds, "fp32") == {"amp_fp16": (2.0, 512, 512)}
    alone = {name: dict([sizes.popitem()]) for name, sizes in speeds.items()}  # as with batch_size="max" alone
    assert set(best_speedups(alone, "fp32")) == {"amp_fp16", "o2_fp16"}


def test_two_speed_ups_are_those_at_the_largest_common_batch_and_at_the_fastest(tmp_path):
    times = {"fp32": {64: 6.0, 128: 6.0, 256: 5.0}, "tf32": {64: 3.5, 128: 3.0}, "amp_fp16": {64: 6.0, 256: 2.0}}
    for precision, sizes in times.items():
        for size, seconds in sizes.items():
            values = {"parameters": {"batch_size": size}, "batch_size_used": size}
            write_all(tmp_path, made_up.make("cifar_resnet", precision, seconds=[seconds] * 6, **values))
    report, charts = explore(tmp_path, "batch_sizes")
    rows = rows_of(report)
    common = {name: row["at the largest batch of both"].split(" ")[0::3] for name, row in rows.items()}
    assert common == {"fp32": ["-"], "tf32": ["2.00x", "b128"], "amp_fp16": ["2.50x", "b256"]}
    assert rows["tf32"]["each at its fastest"] == "1.67x, b128 over b256"
    assert rows["amp_fp16"]["each at its fastest"] == "2.50x, both b256"
    said = texts(charts["batch_size"])
    assert {"2.00x\nb128", "2.50x\nb256", "1.67x\nb128\nover b256", "2.50x\nboth\nb256"} <= set(said)
    assert said_in("batch_sizes", report) == (
        "- resnet18 · cifar10: largest batch that trained: fp32 256, tf32 128, amp\\_fp16 256; each at its fastest"
        " batch, over fp32: tf32 1.67x (b128 over b256), amp\\_fp16 2.50x (both b256)."
    )


def test_one_batch_size_is_no_chart_of_batch_sizes(everything):
    assert figures_by_batches(everything[0]) == []
    assert "batch_size" not in everything[1]


def test_without_a_common_batch_the_chart_says_so(pooled):
    said = texts(pooled[1]["batch_size"])
    assert "no batch size was run\nin both precisions" in said and "not measured" not in said
