"""The table, chart and sentences at the end of an experiment notebook."""

import matplotlib.pyplot as plt
import record as records
import results


def run(precision, seconds=(), status="ok", device="cuda", **facts):
    facts = {"metric_name": "accuracy", "metric": [0.5] if seconds else [], "device_type": device, **facts}
    facts |= {"status": status, "epoch_seconds": list(seconds), "reason": None if status == "ok" else "because"}
    return records.RunRecord(precision, "n", precision, {}, **facts)


def test_the_table_has_a_row_for_every_precision_and_its_reason():
    table = results.results_table([run("fp32", (2.0, 4.0, 3.0), peak_allocated_mib=7.0), run("o3_fp16", status="oom")])
    assert list(table.index) == ["fp32", "o3_fp16"]
    assert table.loc["fp32", "s/epoch"] == 3
    assert table.loc["fp32", "peak MiB"] == 7
    assert table.loc["o3_fp16", "status"] == "oom"
    assert table.loc["o3_fp16", "reason"] == "because"


def test_ratios_are_paired_and_a_range_over_1_is_no_difference():
    sentences = results.read_results(
        [
            run("fp32", (4.0, 4.0)),
            run("tf32", (2.0, 2.0)),
            run("amp_fp16", (1.9, 2.1)),
            run("amp_bf16", (5.0, 4.5)),
            run("o2_fp16", (1.0,), status="failed"),
        ]
    ).splitlines()
    assert sentences == [
        "tf32 against fp32: 2.00x (2.00 to 2.00, n = 2): faster.",
        "amp_fp16 against fp32: 2.00x (1.90 to 2.11, n = 2): faster.",
        "amp_bf16 against fp32: 0.84x (0.80 to 0.89, n = 2): slower.",
        "amp_fp16 against tf32: 1.00x (0.95 to 1.05, n = 2): no measurable difference.",
        "amp_bf16 against tf32: 0.42x (0.40 to 0.44, n = 2): slower.",
    ]


def test_one_epoch_has_no_verdict_and_one_precision_no_comparison():
    assert "no spread, so no verdict" in results.read_results([run("fp32", (2.0,)), run("tf32", (1.0,))])
    assert "nothing to compare" in results.read_results([run("fp32", (2.0,)), run("tf32", status="unsupported")])


def test_the_cpu_is_never_judged():
    cpu = [run("fp32", (2.0, 2.0), device="cpu"), run("amp_bf16", (1.0, 1.0), device="cpu")]
    assert "say nothing" in results.read_results(cpu)
    figure = results.draw_results(cpu)
    assert figure.get_suptitle() == "CPU plumbing check: not a measurement"
    plt.close(figure)


def test_bars_have_the_suites_colours_and_failures_are_labelled_gaps():
    shown = [run("fp32", (2.0, 3.0), peak_allocated_mib=8.0), run("amp_fp16", status="oom")]
    figure = results.draw_results(shown)
    time_axis, memory_axis, curves = figure.axes
    assert [list(line.get_ydata()) for line in curves.lines] == [[0.5], []]
    assert (curves.get_xlabel(), curves.get_ylabel()) == ("epoch", "accuracy")
    assert [bar.get_height() for bar in time_axis.patches] == [2.5]
    assert [bar.get_height() for bar in memory_axis.patches] == [8.0]
    assert time_axis.get_ylabel() == "seconds per epoch"
    assert "MiB" in memory_axis.get_ylabel()
    assert [text.get_text() for text in time_axis.texts] == ["oom"]
    assert len(set(results.COLOURS.values())) == 6
    plt.close(figure)
