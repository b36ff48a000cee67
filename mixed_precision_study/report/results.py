"""How an experiment notebook shows its own results."""

import math
import statistics

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display

from ..analysis.bottleneck import find_bottleneck
from ..analysis.speedup import paired_ratio, paired_runs
from ..analysis.verdict import flags_of, verdict
from ..record import LEDGER_AT_PEAK, flat_record
from .style import PRECISIONS

SIGNIFICANT_DIGITS = 4  # of the smallest number of a column


def as_text(table):
    """Return a table for people: gaps are empty, a column has one number of decimals, a column of gaps is left out."""
    shown = table.dropna(axis="columns", how="all")
    texts = {name: column_as_text(column) for name, column in shown.items()}
    texts = {name: column for name, column in texts.items() if any(column)}
    return pd.DataFrame(texts, index=table.index)


def column_as_text(column):
    """Return the cells of a column as texts."""
    known = column.dropna()
    if not pd.api.types.is_numeric_dtype(known) or pd.api.types.is_bool_dtype(known):
        return ["" if pd.isna(value) else str(value) for value in column]
    decimals = decimals_of(known)
    return ["" if pd.isna(value) else f"{value:,.{decimals}f}" for value in column]


def decimals_of(numbers):
    """Return how many decimals the numbers of a column get: none for whole ones, at most 4."""
    sizes = [abs(number) for number in numbers if number]
    if all(size == int(size) for size in sizes):
        return 0
    return min(4, max(0, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(min(sizes)))))


def show_table(table):
    """Display a table with every column and the whole text of each cell."""
    with pd.option_context("display.max_colwidth", None, "display.max_columns", None, "display.width", 1000):
        display(as_text(table))


def results_table(records):
    """Return one row per precision: times in seconds, memory in MiB; what did not end well has its reason."""
    rows = {}
    for record in records:
        last = {record.metric_name: record.metric[-1]} if record.metric else {}
        numbers = {
            "batch size": (record.batch_size_used, 0),
            "s/epoch": (statistics.median(record.epoch_seconds) if record.epoch_seconds else None, 3),
            "ms/step": (record.step_ms_median, 2),
            "samples/s": (record.samples_per_second, 0),
            "GPU busy": (record.gpu_busy_fraction, 2),
            "on Tensor Cores": (record.tensor_core_fraction, 2),
            "peak MiB": (record.peak_allocated_mib, 0),
            "device MiB": (record.device_used_mib, 0),
            "J/1000 samples": (record.joules_per_1000_samples, 1),
        }
        numbers = {name: None if value is None else round(value, digits) for name, (value, digits) in numbers.items()}
        rest = {"skipped steps": record.skipped_steps, **last, "reason": record.reason or ""}
        rows[record.precision] = {"status": record.status, **numbers, **rest}
    return pd.DataFrame.from_dict(rows, orient="index").convert_dtypes()  # whole numbers stay so beside a gap


def ledger_table(records):
    """Return what fills the device when memory stands highest, MiB, one row per precision; empty on the CPU."""
    parts = (*LEDGER_AT_PEAK, "slack", "context")
    rows = {record.precision: [getattr(record, f"ledger_{part}_mib") for part in parts] for record in records}
    measured = {name: row for name, row in rows.items() if any(value is not None for value in row)}
    return (
        pd.DataFrame.from_dict(measured, orient="index", columns=[f"{part} MiB" for part in parts])
        .astype(float)
        .round(1)
    )


def probes_table(records):
    """Return every probe of the search for the largest batch, in the order in which they were made."""
    columns = ["batch size", "status", "peak MiB", "samples/s"]
    tables = [pd.DataFrame(record.batch_probes, columns=columns) for record in records]
    return pd.concat(tables, keys=[record.precision for record in records]).infer_objects().round(0).convert_dtypes()


COLOURS = {name: style[0] for name, style in PRECISIONS.items()}


def draw_results(records):
    """Draw seconds per epoch (bar: median; line: smallest to largest), peak memory in MiB, and the metric by epoch.

    A run that was throttled or shared its GPU has a star at its name.
    """
    figure, (*axes, curves) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for place, record in enumerate(records):
        seconds, colour = record.epoch_seconds, COLOURS[record.precision]
        curves.plot(range(1, len(record.metric) + 1), record.metric, color=colour, marker="o", label=record.precision)
        heights = (statistics.median(seconds) if seconds else None, record.peak_allocated_mib)
        for axis, height in zip(axes, heights, strict=True):
            if record.status == "ok" and height is not None:
                axis.bar(place, height, color=colour)
            else:
                text = record.status if record.status != "ok" else "not measured on the CPU"
                axis.text(
                    place, 0.02, text, rotation=90, ha="center", va="bottom", transform=axis.get_xaxis_transform()
                )
        if record.status == "ok":
            axes[0].vlines(place, min(seconds), max(seconds), color="grey", linewidth=3)
    for axis, label in zip(axes, ("seconds per epoch", "peak memory allocated (MiB)"), strict=True):
        axis.set(ylabel=label, xlim=(-0.6, len(records) - 0.4), ylim=(0, None))
        names = [record.precision + "*" * bool(flags_of(flat_record(record))) for record in records]
        axis.set_xticks(range(len(records)), names, rotation=20)
        if any(name.endswith("*") for name in names):
            axis.set_xlabel("* throttled or GPU shared: see the verdicts")
    curves.set(xlabel="epoch", ylabel=records[0].metric_name.replace("_", " "))
    curves.xaxis.get_major_locator().set_params(integer=True)
    if any(record.device_type == "cpu" for record in records):
        figure.suptitle("CPU smoke test: not a measurement", color="firebrick")
    return figure


def read_results(records):
    """Return one sentence per precision and baseline: how much faster, whether that can be measured, and why."""
    if any(record.device_type == "cpu" for record in records):
        return "These runs were a smoke test on the CPU: they say nothing about what a precision buys."
    flat = {record.precision: flat_record(record) for record in records}
    sentences = [
        verdict(flat[name], flat[base], paired_ratio(paired_runs([flat[name]], [flat[base]])))
        for base in ("fp32", "tf32")
        for name in flat
        if base in flat and name not in ("fp32", base)
    ]
    if not sentences:  # one precision in a kernel of its own, as under run_all.py: summary.ipynb compares
        sentences = [f"{name}: {find_bottleneck(one)[1]}." for name, one in flat.items() if one["status"] == "ok"]
    return "\n".join(sentences) or "No precision ended well, so there is nothing to read."


def show(records):
    """Display the results of a notebook: one table, one figure, and a sentence for each precision."""
    show_table(results_table(records))
    ledger = ledger_table(records)
    if len(ledger):
        show_table(ledger)
    if any(record.batch_probes for record in records):
        show_table(probes_table(records))
    draw_results(records)
    plt.show()
    print(read_results(records))
