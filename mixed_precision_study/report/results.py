"""How an experiment notebook shows its own results."""

import math
import statistics
import textwrap

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..analysis.bottleneck import find_bottleneck
from ..analysis.conditions import flags_of
from ..analysis.speedup import paired_ratio, paired_runs
from ..analysis.verdict import verdict
from ..record import LEDGER_AT_PEAK, RunRecord, flat_record
from .style import CPU_WARNING, PRECISIONS, chart_style

COLUMNS = {  # title: (field of the record, digits); a fraction is shown in percent
    "batch size": ("batch_size_used", 0),
    "s/epoch": ("epoch_seconds", 3),
    "ms/step": ("step_ms_median", 2),
    "samples/s": ("samples_per_second", 0),
    "GPU busy, %": ("gpu_busy_fraction", 0),
    "on Tensor Cores, %": ("tensor_core_fraction", 0),
    "peak MiB": ("peak_allocated_mib", 0),
    "device MiB": ("device_used_mib", 0),
    "J/1000 samples": ("joules_per_1000_samples", 1),
}

SIGNIFICANT_DIGITS = 4  # of the smallest number of a column
LINE = 100  # characters of a sentence's line


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
    """Return how many decimals the numbers of a column get: at most 4, and none that is 0 in every one of them."""
    sizes = [abs(number) for number in numbers if number]
    if not sizes:
        return 0
    decimals = min(4, max(0, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(min(sizes)))))
    return next(n for n in range(decimals + 1) if all(round(size, n) == round(size, decimals) for size in sizes))


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
                value = mean_or_none(value)
            if field.endswith("_fraction") and value is not None:
                value *= 100
            row[title] = None if value is None else round(value, digits)
        row["skipped steps"] = record.skipped_steps
        if record.metric:
            row[(record.metric_name or "metric").replace("_", " ")] = record.metric[-1]
        rows[record.precision] = row | {"reason": record.reason or ""}
    return pd.DataFrame.from_dict(rows, orient="index").convert_dtypes()  # whole numbers stay so beside a gap


def memory_table(records: list[RunRecord]) -> pd.DataFrame:
    """Return what fills the device when memory is at its peak, MiB, one row per precision; empty on the CPU."""
    parts = (*LEDGER_AT_PEAK, "slack", "context")
    rows = {record.precision: [getattr(record, f"ledger_{part}_mib") for part in parts] for record in records}
    measured = {name: row for name, row in rows.items() if any(value is not None for value in row)}
    table = pd.DataFrame.from_dict(measured, orient="index", columns=[f"{part} MiB" for part in parts])
    return table.astype(float).round(0)


def probes_table(records: list[RunRecord]) -> pd.DataFrame:
    """Return every probe of the search for the largest batch, in the order in which they were made."""
    columns = ["batch size", "status", "peak MiB", "samples/s"]
    tables = [pd.DataFrame(record.batch_probes, columns=columns) for record in records]
    return pd.concat(tables, keys=[record.precision for record in records]).infer_objects().round(0).convert_dtypes()


ROW = 0.3  # inches of a precision
FEW = 5  # epochs; with fewer a curve would show noise


def draw_bars(axes: Axes, records: list[RunRecord], values: list[float | None], title: str) -> None:
    """Draw a bar with its number for each run, or the reason why there is none."""
    for row, (record, value) in enumerate(zip(records, values, strict=True)):
        text = "not measured on the CPU" if record.status == "ok" else record.status
        if record.status == "ok" and value is not None:
            axes.barh(row, value, 0.75, color=PRECISIONS[record.precision].colour)
            text = f"{value:#.3g}".rstrip(".")
        place: dict = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
        axes.annotate(text, (value if record.status == "ok" and value else 0, row), (4, 0), **place)
    axes.set_title(title, size=9, loc="left")
    axes.set_xlim(0, 1.25 * max((value for value in values if value), default=1))


def draw_quality(axes: Axes, records: list[RunRecord], title: str) -> None:
    """Draw the last metric as a mark in the row of each run."""
    for row, record in enumerate(records):
        last = record.metric[-1] if record.metric else None
        if last is not None and math.isfinite(last):
            axes.plot(last, row, marker="o", color=PRECISIONS[record.precision].colour)
            axes.annotate(f"{last:.4g}", (last, row), (6, 0), textcoords="offset points", va="center")
    axes.set_title(title, size=9, loc="left")
    axes.margins(x=0.35)


def draw_curves(axes: Axes, records: list[RunRecord], title: str) -> None:
    """Draw the metric by epoch, a line for each run."""
    for record in records:
        style = PRECISIONS[record.precision]
        epochs = range(1, len(record.metric) + 1)
        axes.plot(epochs, record.metric, color=style.colour, linestyle=style.line, label=record.precision)
    axes.set_title(title, size=9, loc="left")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=8.5)


@chart_style()
def draw_results(records: list[RunRecord]) -> Figure | None:
    """Draw seconds per epoch (the mean), peak memory and quality, a row for each precision; None for one alone.

    A run that was throttled or shared its GPU has a star at its name.
    """
    if len(records) < 2:
        return None
    long = max(len(record.metric) for record in records) >= FEW
    figure = plt.figure(figsize=(9, 0.9 + max(ROW * len(records), 1.4 if long else 0)), layout="constrained")
    times, memory, quality = figure.subplots(1, 3)
    draw_bars(times, records, [mean_or_none(record.epoch_seconds) for record in records], "seconds per epoch")
    peaks = [record.peak_allocated_mib for record in records]
    draw_bars(memory, records, [peak and peak / 1024 for peak in peaks], "peak of PyTorch's memory, GiB")
    name = (records[0].metric_name or "metric").replace("_", " ")
    better = f" ({records[0].metric_better} is better)" if records[0].metric_better else ""
    if long:
        draw_curves(quality, records, f"{name}{better}")
    else:
        draw_quality(quality, records, f"last {name}{better}")
    rows = (times, memory) if long else (times, memory, quality)
    disturbed = [bool(flags_of(flat_record(record))) for record in records]
    names = [record.precision + "*" * star for record, star in zip(records, disturbed, strict=True)]
    for axes in rows:
        axes.set_ylim(len(records) - 0.5, -0.5)
        axes.set_yticks(range(len(records)), names if axes is times else [""] * len(records))
        axes.grid(visible=False, axis="y")
    if any(disturbed):
        times.set_xlabel("* throttled or GPU shared: see the verdicts")
    if any(record.device_type == "cpu" for record in records):
        figure.suptitle(CPU_WARNING, color="firebrick")
    return figure


def mean_or_none(numbers: list[float]) -> float | None:
    """Return the mean, or None of nothing."""
    return statistics.fmean(numbers) if numbers else None


def read_results(records: list[RunRecord]) -> str:
    """Return an item per precision: how much faster than fp32 and tf32, whether that can be measured, and why."""
    if any(record.device_type == "cpu" for record in records):
        return "These runs were a smoke test on the CPU: they say nothing about what a precision buys."
    flat = {record.precision: flat_record(record) for record in records}
    order = order_in_process(flat)
    if order:  # said once, not in every sentence
        flat = {name: one | {"runs_before_in_process": None} for name, one in flat.items()}
    found = [compared(flat, name) for name in flat if name != "fp32"]
    sentences = [" ".join(texts) for texts in found if texts]
    if not sentences:  # one precision in a kernel of its own, as under run_all.py: summary.ipynb compares
        sentences = [f"{name}: {find_bottleneck(one)[1]}." for name, one in flat.items() if one["status"] == "ok"]
    if not sentences:
        return "No precision ended well, so there is nothing to compare."
    items = [textwrap.fill(text, LINE, initial_indent="- ", subsequent_indent="  ") for text in sentences]
    first = [f"In one process, in this order: {', '.join(order)}."] if order else []
    return "\n".join([*first, *items])


def order_in_process(flat: dict[str, dict]) -> list[str]:
    """Return the precisions in the order in which one process ran them, or nothing where that is not known."""
    places = {name: one["runs_before_in_process"] for name, one in flat.items() if one["status"] == "ok"}
    if None in places.values() or len(set(places.values())) < max(2, len(places)):
        return []
    return sorted(places, key=places.__getitem__)


def compared(flat: dict[str, dict], name: str) -> list[str]:
    """Return what a precision is against fp32, with its reason, and then against tf32."""
    bases = [base for base in ("fp32", "tf32") if base in flat and base != name]
    if flat[name]["status"] != "ok":
        bases = bases[:1]
    sentences: list[str] = []
    for base in bases:
        ratio = paired_ratio(paired_runs([flat[name]], [flat[base]]))
        sentences.append(verdict(flat[name], flat[base], ratio, with_reason=not sentences))
    return sentences


def show(records: list[RunRecord]) -> None:
    """Display the results of a notebook: tables, one figure, and an item for each precision."""
    show_table(results_table(records))
    memory = memory_table(records)
    if len(memory):
        show_table(memory)
    if any(record.batch_probes for record in records):
        show_table(probes_table(records))
    if draw_results(records):
        plt.show()
    print(read_results(records))
