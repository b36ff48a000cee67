"""How an experiment notebook shows its own results."""

import math
import statistics

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..analysis.bottleneck import find_bottleneck
from ..analysis.conditions import flags_of
from ..analysis.speedup import paired_ratio, paired_runs
from ..analysis.verdict import verdict
from ..record import LEDGER_AT_PEAK, RunRecord, flat_record
from .style import CPU_WARNING, PRECISIONS

COLUMNS = {  # title: (field of the record, digits)
    "batch size": ("batch_size_used", 0),
    "s/epoch": ("epoch_seconds", 3),
    "ms/step": ("step_ms_median", 2),
    "samples/s": ("samples_per_second", 0),
    "GPU busy": ("gpu_busy_fraction", 2),
    "on Tensor Cores": ("tensor_core_fraction", 2),
    "peak MiB": ("peak_allocated_mib", 0),
    "device MiB": ("device_used_mib", 0),
    "J/1000 samples": ("joules_per_1000_samples", 1),
}

SIGNIFICANT_DIGITS = 4  # of the smallest number of a column


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table for people: gaps are empty, a column has one number of decimals, a column of gaps is left out."""
    shown = table.dropna(axis="columns", how="all")
    texts = {name: column_as_text(column) for name, column in shown.items()}
    texts = {name: column for name, column in texts.items() if any(column)}
    return pd.DataFrame(texts, index=table.index)


def column_as_text(column: pd.Series) -> list[str]:
    """Return the cells of a column as texts."""
    known = column.dropna()
    if not pd.api.types.is_numeric_dtype(known) or pd.api.types.is_bool_dtype(known):
        return ["" if pd.isna(value) else str(value) for value in column]
    decimals = decimals_of(known)
    return ["" if pd.isna(value) else f"{value:,.{decimals}f}" for value in column]


def decimals_of(numbers: pd.Series) -> int:
    """Return how many decimals the numbers of a column get: none for whole ones, at most 4."""
    sizes = [abs(number) for number in numbers if number]
    if all(size == int(size) for size in sizes):
        return 0
    return min(4, max(0, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(min(sizes)))))


def show_table(table: pd.DataFrame) -> None:
    """Display a table with every column and the whole text of each cell."""
    with pd.option_context("display.max_colwidth", None, "display.max_columns", None, "display.width", 1000):
        display(as_text(table))


def results_table(records: list[RunRecord]) -> pd.DataFrame:
    """Return one row per precision: times in seconds, memory in MiB; what did not end well has its reason."""
    rows = {}
    for record in records:
        row: dict = {"status": record.status}
        for title, (field, digits) in COLUMNS.items():
            value = getattr(record, field)
            if field == "epoch_seconds":
                value = statistics.median(value) if value else None
            row[title] = None if value is None else round(value, digits)
        row["skipped steps"] = record.skipped_steps
        if record.metric:
            row[record.metric_name or "metric"] = record.metric[-1]
        rows[record.precision] = row | {"reason": record.reason or ""}
    return pd.DataFrame.from_dict(rows, orient="index").convert_dtypes()  # whole numbers stay so beside a gap


def memory_table(records: list[RunRecord]) -> pd.DataFrame:
    """Return what fills the device when memory is at its peak, MiB, one row per precision; empty on the CPU."""
    parts = (*LEDGER_AT_PEAK, "slack", "context")
    rows = {record.precision: [getattr(record, f"ledger_{part}_mib") for part in parts] for record in records}
    measured = {name: row for name, row in rows.items() if any(value is not None for value in row)}
    table = pd.DataFrame.from_dict(measured, orient="index", columns=[f"{part} MiB" for part in parts])
    return table.astype(float).round(1)


def probes_table(records: list[RunRecord]) -> pd.DataFrame:
    """Return every probe of the search for the largest batch, in the order in which they were made."""
    columns = ["batch size", "status", "peak MiB", "samples/s"]
    tables = [pd.DataFrame(record.batch_probes, columns=columns) for record in records]
    return pd.concat(tables, keys=[record.precision for record in records]).infer_objects().round(0).convert_dtypes()


def draw_bar(axes: Axes, x: int, record: RunRecord, height: float | None) -> None:
    """Draw the bar of a run that ended well, or the reason why there is none."""
    if record.status == "ok" and height is not None:
        axes.bar(x, height, color=PRECISIONS[record.precision].colour)
    else:
        text = "not measured on the CPU" if record.status == "ok" else record.status
        axes.text(x, 0.02, text, rotation=90, ha="center", va="bottom", transform=axes.get_xaxis_transform())


def draw_results(records: list[RunRecord]) -> Figure:
    """Draw seconds per epoch (bar: median; line: smallest to largest), peak memory in MiB, and the metric by epoch.

    A run that was throttled or shared its GPU has a star at its name.
    """
    figure, (times, memory, curves) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    names = []
    for x, record in enumerate(records):
        epochs = range(1, len(record.metric) + 1)
        colour = PRECISIONS[record.precision].colour
        curves.plot(epochs, record.metric, color=colour, marker="o", label=record.precision)
        seconds = record.epoch_seconds
        draw_bar(times, x, record, statistics.median(seconds) if seconds else None)
        draw_bar(memory, x, record, record.peak_allocated_mib)
        if record.status == "ok":
            times.vlines(x, min(seconds), max(seconds), color="grey", linewidth=3)
        names.append(f"{record.precision}*" if flags_of(flat_record(record)) else record.precision)
    for axes, label in ((times, "seconds per epoch"), (memory, "peak memory allocated (MiB)")):
        axes.set(ylabel=label, xlim=(-0.6, len(records) - 0.4), ylim=(0, None))
        axes.set_xticks(range(len(records)), names, rotation=20)
        if any(name.endswith("*") for name in names):
            axes.set_xlabel("* throttled or GPU shared: see the verdicts")
    curves.set(xlabel="epoch", ylabel=(records[0].metric_name or "").replace("_", " "))
    curves.xaxis.get_major_locator().set_params(integer=True)
    if any(record.device_type == "cpu" for record in records):
        figure.suptitle(CPU_WARNING, color="firebrick")
    return figure


def read_results(records: list[RunRecord]) -> str:
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
    return "\n".join(sentences) or "No precision ended well, so there is nothing to compare."


def show(records: list[RunRecord]) -> None:
    """Display the results of a notebook: tables, one figure, and a sentence for each precision."""
    show_table(results_table(records))
    memory = memory_table(records)
    if len(memory):
        show_table(memory)
    if any(record.batch_probes for record in records):
        show_table(probes_table(records))
    draw_results(records)
    plt.show()
    print(read_results(records))
