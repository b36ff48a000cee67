"""The table, chart and sentences at the end of an experiment notebook."""

import math
import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from mixed_precision_study import record as records
from mixed_precision_study.report import results
from mixed_precision_study.report.style import CPU_WARNING

PARAMETERS = {"model": "m", "batch_size": 8, "seed": 0, "execution": "eager", "channels_last": False}
PARTS = ("parameters", "gradients", "optimizer", "masters", "data", "activations", "slack", "context")


def run(precision, seconds=(), status="ok", device="cuda", **facts):
    facts = {"metric_name": "accuracy", "metric": [0.5] if seconds else [], "device_type": device, **facts}
    facts |= {"status": status, "epoch_seconds": list(seconds), "reason": None if status == "ok" else "because"}
    parameters = {**PARAMETERS, "epochs": len(seconds)}
    return records.RunRecord(precision, "n", precision, parameters, gpu_uuid="GPU-1", **facts)


def test_the_table_has_a_row_for_every_precision_its_reason_and_what_explains_it():
    explained = {"gpu_busy_fraction": 0.876, "tensor_core_fraction": 0.5, "joules_per_1000_samples": 12.34}
    fp32 = run("fp32", (2.0, 4.0, 3.0), peak_allocated_mib=7.0, **explained)
    table = results.results_table([fp32, run("tf32", (1.0,)), run("o3_fp16", status="oom")])
    assert list(table.index) == ["fp32", "tf32", "o3_fp16"]
    assert table.loc["fp32", ["s/epoch", "peak MiB", "accuracy"]].tolist() == [3, 7, 0.5]
    assert table.loc["o3_fp16", ["status", "reason"]].tolist() == ["oom", "because"]
    columns = ["GPU busy, %", "on Tensor Cores, %", "J/1000 samples"]
    assert table.loc["fp32", columns].tolist() == [88, 50, 12.3]
    assert table.loc["tf32", columns].isna().all()  # never zero


def test_whole_numbers_stay_whole_beside_a_run_without_them():
    known = {"batch_size_used": 128, "peak_allocated_mib": 7.4, "batch_probes": [[128, "ok", 7.4, 99.6]]}
    runs = [run("fp32", (2.5,), **known), run("tf32", status="unsupported", batch_probes=[[256, "oom", None, None]])]
    table, probes = results.results_table(runs).to_string(), results.probes_table(runs).to_string()
    assert " 128 " in table and " 7 " in table and " 2.5 " in table and "128.0" not in table and " 7.0 " not in table
    assert " 128 " in probes and " 256 " in probes and ".0" not in probes


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
        ([0.0, 0.00001], ["0", "0"]),
        ([67.9, 29.4], ["67.9", "29.4"]),
    ],
)
def test_a_column_has_one_number_of_decimals(numbers, texts):
    table = pd.DataFrame({"column": numbers}).convert_dtypes()
    assert results.as_text(table)["column"].tolist() == texts


def test_the_memory_table_has_a_row_for_every_precision_that_was_measured():
    full = {f"ledger_{part}_mib": 10.04 * number for number, part in enumerate(PARTS)}
    partly = {**full, "ledger_data_mib": None, "ledger_context_mib": None}
    runs = [run("fp32", (2.0,), **full), run("tf32", (2.0,), **partly), run("o3_fp16", status="unsupported")]
    table = results.memory_table(runs)
    assert list(table.index) == ["fp32", "tf32"]
    assert list(table.columns) == [f"{part} MiB" for part in PARTS]
    assert table.loc["fp32"].tolist() == [0, 10, 20, 30, 40, 50, 60, 70]
    assert table.loc["tf32"].isna().tolist() == [part in ("data", "context") for part in PARTS]
    assert results.memory_table([run("fp32", (2.0,), device="cpu")]).empty


def items_of(records):
    """Return what read_results says, an item each, without its line breaks."""
    text = results.read_results(records)
    assert all(len(line) <= results.LINE for line in text.splitlines())
    return text.replace("\n  ", " ").splitlines()


def test_every_precision_is_compared_with_fp32_and_tf32():
    items = items_of(
        [
            run("fp32", (4.0,) * 6),
            run("tf32", (2.0,) * 6),
            run("amp_fp16", (1.9, 2.1) * 3),
            run("amp_bf16", (5.0, 5.0, 5.0, 4.5, 5.0, 5.0)),
            run("o2_fp16", (1.0,), status="failed"),
        ]
    )
    reason = "; what limits it is not known (it was not profiled)."  # said once
    assert items[0] == f"- tf32 is 2.00x as fast as fp32 (one process){reason}"
    second = "amp_fp16 is 1.00x as fast as tf32 (one process)."
    assert items[1] == f"- amp_fp16 is 2.00x as fast as fp32 (one process){reason} {second}"
    assert items[2].startswith("- amp_bf16 is 0.81x as fast as fp32 (one process); ")
    assert items[2].endswith(" amp_bf16 is 0.41x as fast as tf32 (one process).")
    assert items[3:] == ["- o2_fp16 failed: because."]


def test_the_order_in_one_process_is_said_once():
    order = {"tf32": 0, "fp32": 1, "amp_fp16": 2}
    records = [run(name, (4.0,), runs_before_in_process=place) for name, place in order.items()]
    items = items_of(records)
    assert items[0] == "In one process, in this order: tf32, fp32, amp_fp16."
    assert len(items) == 3 and not any("MIND" in item for item in items)
    records[0].runs_before_in_process = None  # unknown: no order can be told
    assert "MIND: amp_fp16 was run 3 of its process, fp32 run 2." in " ".join(items_of(records))


def test_without_fp32_that_ended_well_tf32_still_is_a_baseline():
    records = [run("fp32", (4.0,), status="oom"), run("tf32", (2.0,)), run("amp_fp16", (1.0,))]
    (tf32, amp) = items_of(records)
    assert tf32.startswith("- tf32 has no fp32 to be compared with (oom); ")
    assert amp.startswith("- amp_fp16 has no fp32 to be compared with (oom); ")
    assert amp.endswith(" amp_fp16 is 2.00x as fast as tf32 (one process).")


def test_one_notebook_is_one_process_whatever_its_blocks_show():
    for fields in ({"block_seconds": [0.5] * 8}, {}):
        (sentence,) = items_of([run("fp32", (4.0,), **fields), run("tf32", (2.0,), **fields)])
        assert sentence.startswith("- tf32 is 2.00x as fast as fp32 (one process); ")
        assert "faster" not in sentence


def test_a_run_that_did_not_train_is_no_speed_up():
    learned = {"metric": [0.9], "metric_better": "higher", "chance_metric": 0.1}
    runs = [run("fp32", (4.0,), **learned), run("amp_fp16", (2.0,), **{**learned, "metric": [0.3]})]
    assert results.read_results(runs).startswith("- amp_fp16 did not train as fp32 did: ")


def test_a_sentence_says_why_and_what_disturbed_it():
    families = [["elementwise", 0.4], ["normalisation", 0.35], ["convolution", 0.25]]
    profiled = {"gpu_busy_fraction": 0.9, "kernel_family_fractions": families}
    disturbed = {"throttled": True, "throttle_fractions": [["power cap", 0.25]], "gpu_shared": True}
    (sentence,) = items_of([run("fp32", (4.0,) * 6, **disturbed), run("amp_fp16", (2.0,) * 6, **profiled)])
    for part in ("fp32 at its power limit 25% of the time", "fp32 GPU shared", "75% of kernel time"):
        assert part in sentence


def test_where_there_is_nothing_to_compare_each_run_says_what_limits_it():
    idle = {"gpu_busy_fraction": 0.4, "kernel_family_fractions": [["matmul", 1.0]]}
    runs = [run("amp_fp16", (2.0,), **idle), run("amp_bf16", (2.0,)), run("o3_fp16", status="oom")]
    known, unknown = items_of(runs)
    assert known.startswith("- amp_fp16: the GPU is idle 60% of the time")
    assert unknown.startswith("- amp_bf16: what limits it is not known")
    assert len(results.read_results([run("fp32", status="oom")]).splitlines()) == 1


def test_the_cpu_is_never_judged():
    cpu = [run("fp32", (2.0, 2.0), device="cpu"), run("amp_bf16", (1.0, 1.0), device="cpu")]
    assert "2.00x" not in results.read_results(cpu)
    figure = results.draw_results(cpu)
    assert figure.get_suptitle() == CPU_WARNING
    plt.close(figure)


def rows_of(axes):
    return [text.get_text() for text in axes.texts]


def test_failures_are_labelled_gaps_and_disturbed_runs_have_a_star():
    hot = {"throttled": True, "throttle_fractions": [["heat", 0.4]]}
    shown = [run("fp32", (2.0, 3.0), peak_allocated_mib=8192.0, **hot), run("amp_fp16", status="oom")]
    figure = results.draw_results(shown)
    times, memory, quality = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "seconds per epoch",
        "peak of PyTorch's memory, GiB",
        "last accuracy",
    ]
    assert [bar.get_width() for bar in times.patches] == [2.5]
    assert [bar.get_width() for bar in memory.patches] == [8.0]
    assert rows_of(times) == ["2.50", "oom"] and rows_of(memory) == ["8.00", "oom"] and rows_of(quality) == ["0.5"]
    assert [label.get_text() for label in times.get_yticklabels()] == ["fp32*", "amp_fp16"]
    assert times.get_xlabel().startswith("*")
    plt.close(figure)
    figure = results.draw_results([shown[1], shown[1]])
    assert figure.axes[0].get_xlabel() == ""
    plt.close(figure)


def test_from_five_epochs_on_quality_is_a_curve():
    long = [run(name, (2.0,) * 5, metric=[0.1, 0.2, 0.3, 0.4, 0.5]) for name in ("fp32", "tf32")]
    figure = results.draw_results(long)
    curves = figure.axes[2]
    assert [list(line.get_ydata()) for line in curves.lines] == [[0.1, 0.2, 0.3, 0.4, 0.5]] * 2
    assert curves.get_xlabel() == "epoch"
    plt.close(figure)


def test_one_precision_needs_no_chart():
    assert results.draw_results([run("fp32", (2.0,))]) is None
