"""The table, chart and sentences at the end of an experiment notebook."""

import math
import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from mixed_precision_study import record as records
from mixed_precision_study.report import results

PARAMETERS = {"model": "m", "batch_size": 8, "seed": 0, "execution": "eager", "channels_last": False}


def run(precision, seconds=(), status="ok", device="cuda", **facts):
    facts = {"metric_name": "accuracy", "metric": [0.5] if seconds else [], "device_type": device, **facts}
    facts |= {"status": status, "epoch_seconds": list(seconds), "reason": None if status == "ok" else "because"}
    parameters = {**PARAMETERS, "epochs": len(seconds)}
    return records.RunRecord(precision, "n", precision, parameters, gpu_uuid="GPU-1", **facts)


def test_the_table_has_a_row_for_every_precision_and_its_reason():
    table = results.results_table([run("fp32", (2.0, 4.0, 3.0), peak_allocated_mib=7.0), run("o3_fp16", status="oom")])
    assert list(table.index) == ["fp32", "o3_fp16"]
    assert table.loc["fp32", "s/epoch"] == 3
    assert table.loc["fp32", "peak MiB"] == 7
    assert table.loc["o3_fp16", "status"] == "oom"
    assert table.loc["o3_fp16", "reason"] == "because"


def test_whole_numbers_stay_whole_beside_a_run_without_them():
    known = {"batch_size_used": 128, "peak_allocated_mib": 7.4, "batch_probes": [[128, "ok", 7.4, 99.6]]}
    runs = [run("fp32", (2.5,), **known), run("tf32", status="unsupported", batch_probes=[[256, "oom", None, None]])]
    table, probes = results.results_table(runs).to_string(), results.probes_table(runs).to_string()
    assert " 128 " in table and " 7 " in table and " 2.5 " in table and "128.0" not in table and " 7.0 " not in table
    assert " 128 " in probes and " 256 " in probes and ".0" not in probes


def test_the_table_has_what_explains_a_run_and_a_gap_where_it_was_not_measured():
    explained = {"gpu_busy_fraction": 0.876, "tensor_core_fraction": 0.5, "joules_per_1000_samples": 12.34}
    table = results.results_table([run("fp32", (2.0,), **explained), run("tf32", (1.0,))])
    columns = ["GPU busy", "on Tensor Cores", "J/1000 samples"]
    assert table.loc["fp32", columns].tolist() == [0.88, 0.5, 12.3]
    assert table.loc["tf32", columns].isna().all()  # never zero


def shown_by(records, monkeypatch, capsys):
    """Return what show() displays: the tables as HTML."""
    tables = []
    monkeypatch.setattr(results, "display", lambda table: tables.append(table._repr_html_()))
    results.show(records)
    plt.close("all")
    capsys.readouterr()
    return tables


REASON = "amp_fp16 needs an NVIDIA GPU; this run is on the CPU, and this reason goes on far beyond fifty letters"


def test_a_reader_sees_neither_gaps_by_name_nor_cut_reasons_nor_an_empty_table(monkeypatch, capsys):
    known = {"batch_size_used": 128, "step_ms_median": 15329.9, "skipped_steps": 0, "metric": [math.nan]}
    refused = run("amp_fp16", status="unsupported", device="cpu")
    refused.reason = REASON
    tables = shown_by([run("fp32", (2.5,), device="cpu", **known), refused], monkeypatch, capsys)
    (table,) = tables  # no second one
    assert REASON in table
    assert not re.search(r"None|&lt;NA&gt;|NaN|nan", table)
    assert "peak MiB" not in table  # nobody has measured it


def test_what_every_search_found_is_shown_without_gaps_by_name(monkeypatch, capsys):
    probes = {"batch_probes": [[128, "ok", 7.4, 99.6], [256, "oom", None, None]]}
    tables = shown_by([run("fp32", (2.5,), **probes), run("tf32", (1.5,))], monkeypatch, capsys)
    assert len(tables) == 2
    assert "<td>7</td>" in tables[1] and "<td>100</td>" in tables[1]
    assert not any(re.search(r"None|&lt;NA&gt;|NaN", table) for table in tables)


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        ([15329.9, 17262.54], ["15,330", "17,263"]),
        ([30.66, 34.525], ["30.66", "34.52"]),
        ([0.1171875, 0.9, None], ["0.1172", "0.9000", ""]),
        ([128, None], ["128", ""]),
        ([2.0, 3.0], ["2", "3"]),
        ([0.0, 0.00001], ["0.0000", "0.0000"]),
    ],
)
def test_a_column_has_one_number_of_decimals(numbers, texts):
    table = pd.DataFrame({"column": numbers}).convert_dtypes()
    assert results.as_text(table)["column"].tolist() == texts


LEDGER = ("parameters", "gradients", "optimizer", "masters", "data", "activations", "slack", "context")
COLUMNS = [f"{part} MiB" for part in LEDGER]


def test_the_ledger_has_a_row_for_every_precision_that_was_measured():
    full = {f"ledger_{part}_mib": 10.04 * number for number, part in enumerate(LEDGER)}
    partly = {**full, "ledger_data_mib": None, "ledger_context_mib": None}
    runs = [run("fp32", (2.0,), **full), run("tf32", (2.0,), **partly), run("o3_fp16", status="unsupported")]
    table = results.ledger_table(runs)
    assert list(table.index) == ["fp32", "tf32"]
    assert list(table.columns) == COLUMNS
    assert table.loc["fp32"].tolist() == [0, 10, 20.1, 30.1, 40.2, 50.2, 60.2, 70.3]
    assert table.loc["tf32"].isna().tolist() == [part in ("data", "context") for part in LEDGER]


def test_without_a_gpu_the_ledger_is_empty():
    table = results.ledger_table([run("fp32", (2.0,), device="cpu")])
    assert table.empty
    assert list(table.columns) == COLUMNS


NOT_KNOWN = "what limits it is not known (it was not profiled)"


def test_ratios_are_paired_and_a_range_over_1_is_no_difference():
    sentences = results.read_results(
        [
            run("fp32", (4.0,) * 6),
            run("tf32", (2.0,) * 6),
            run("amp_fp16", (1.9, 2.1) * 3),
            run("amp_bf16", (5.0, 5.0, 5.0, 4.5, 5.0, 5.0)),
            run("o2_fp16", (1.0,), status="failed"),
        ]
    ).splitlines()
    starts = [
        "tf32 is 2.00x as fast as fp32 (2.00 to 2.00): faster; ",
        "amp_fp16 is 2.01x as fast as fp32 (1.89 to 2.12): faster; ",
        "amp_bf16 is 0.80x as fast as fp32 (0.",
        "o2_fp16 failed: because.",
        "amp_fp16 is 1.00x as fast as tf32 (0.95 to 1.06): no measurable difference; ",
        "amp_bf16 is 0.40x as fast as tf32 (0.",
        "o2_fp16 failed: because.",
    ]
    assert len(sentences) == len(starts)
    for sentence, start in zip(sentences, starts, strict=True):
        assert sentence.startswith(start)
        assert (NOT_KNOWN in sentence) is ("failed" not in start)
    assert ": slower; " in sentences[2]
    assert ": slower; " in sentences[5]


def test_blocks_of_one_epoch_give_an_interval():
    blocks = {"block_seconds": [0.5] * 8}
    sentence = results.read_results([run("fp32", (4.0,), **blocks), run("tf32", (4.0,), **blocks)])
    assert sentence == f"tf32 is 1.00x as fast as fp32 (1.00 to 1.00): no measurable difference; {NOT_KNOWN}."


def test_a_sentence_says_why_and_what_disturbed_it():
    families = [["elementwise", 0.4], ["normalisation", 0.35], ["convolution", 0.25]]
    profiled = {"gpu_busy_fraction": 0.9, "kernel_family_fractions": families, "bandwidth_limit_fraction": 0.62}
    disturbed = {"throttled": True, "throttle_fractions": [["power cap", 0.25]], "gpu_shared": True}
    sentence = results.read_results([run("fp32", (4.0,) * 6, **disturbed), run("amp_fp16", (2.0,) * 6, **profiled)])
    assert sentence == (
        "MIND: fp32 throttled (power cap 25% of the time); fp32 GPU shared with another process. amp_fp16 is 2.00x as "
        "fast as fp32 (2.00 to 2.00): faster; 75% of kernel time moves memory (elementwise 40%, normalisation 35%), at "
        "62% of this card's copying speed (memory-bound): try channels_last or torch.compile."
    )


def test_one_epoch_has_no_verdict_and_a_refused_mode_its_reason():
    assert "2.00x as fast as fp32: too short to tell; " in results.read_results(
        [run("fp32", (20.0,)), run("tf32", (10.0,))]
    )
    refused = results.read_results([run("fp32", (2.0,)), run("tf32", status="unsupported")])
    assert refused == "tf32 cannot run here: because."


def test_where_there_is_nothing_to_compare_each_run_says_what_limits_it():
    assert results.read_results([run("fp32", (2.0,))]) == f"fp32: {NOT_KNOWN}."
    idle = {"gpu_busy_fraction": 0.4, "kernel_family_fractions": [["matmul", 1.0]]}
    text = results.read_results(
        [run("amp_fp16", (2.0,), **idle), run("amp_bf16", (2.0,)), run("o3_fp16", status="oom")]
    )
    limit = "the GPU is idle 60% of the time between kernel launches"
    assert text.splitlines() == [f"amp_fp16: {limit}.", f"amp_bf16: {NOT_KNOWN}."]
    assert results.read_results([run("fp32", status="oom")]) == "No precision ended well, so there is nothing to read."


def test_the_cpu_is_never_judged():
    cpu = [run("fp32", (2.0, 2.0), device="cpu"), run("amp_bf16", (1.0, 1.0), device="cpu")]
    assert "say nothing" in results.read_results(cpu)
    figure = results.draw_results(cpu)
    assert figure.get_suptitle() == "CPU smoke test: not a measurement"
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


def test_a_run_that_was_disturbed_has_a_star_and_a_note():
    hot = {"throttled": True, "throttle_fractions": [["power cap", 0.4]]}
    shown = [run("fp32", (2.0,), **hot), run("tf32", (1.0,)), run("amp_fp16", (1.0,), gpu_shared=True)]
    figure = results.draw_results(shown)
    for axis in figure.axes[:2]:
        assert [label.get_text() for label in axis.get_xticklabels()] == ["fp32*", "tf32", "amp_fp16*"]
        assert axis.get_xlabel() == "* throttled or GPU shared: see the verdicts"
    plt.close(figure)
    figure = results.draw_results(shown[1:2])
    assert figure.axes[0].get_xlabel() == ""
    plt.close(figure)
