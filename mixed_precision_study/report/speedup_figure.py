"""Section: the speed-up of every precision, with its time and its memory."""

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from .bars import failed_beside_others
from .comparisons import gap_text
from .epoch_time import pool_times
from .layout import NARROW, chart_text, shown_in, start_chart, wrapped_name
from .report import Bar, Key, Report
from .section import Section
from .speedup_list import draw_list
from .speedup_marks import (
    BASELINES,
    draw_ratio,
    finding_of,
    fit_axis,
    legend_of_ratios,
    ratio_label,
    ratios_of_hosts,
    within_axis,
)
from .style import BOX, CPU_WARNING, DARK_GREY, GAP_GREY, INTERVAL_GREY, UNPAIRED_MARK
from .time_and_memory import draw_time_and_memory
from .verdicts import baselines_of
from .ways import without_baseline
from .words import gibibytes, short

TITLE = "Speed-up, time and memory"
ABOUT = """Training only, without warm-up and evaluation. A ratio compares runs of equal seed on one GPU.
Three processes a side give it a 95% interval. With fewer its marker is hollow. A time is the mean of all epochs."""

ROW = 0.25  # inches
HEADING = 1.3  # rows
SECOND_LINE = 0.65  # rows, of a name's every line but the last
LETTERS = 58  # of a line of a name
MOST_ROWS = 26  # of precisions; with more there is a row for each comparison
COLUMNS = {"over fp32": 0.19, "over tf32": 0.44, "time": 0.7, "memory": 1.0}  # name: right end


def sorted_names(report: Report, number: int) -> list[str]:
    """Return the precisions of a comparison but fp32: the fastest first, at the end those without a ratio."""

    def speed(name: str) -> float:
        found = [report.speedups.get((number, name, base)) for base in baselines_of(name)]
        return next((speedup["ratio"] for speedup in found if speedup), 0)

    return sorted((name for name in shown_in(report, number) if name != "fp32"), key=speed, reverse=True)


def find_times(report: Report) -> dict[Key, Bar]:
    """Return the bars of the time of an epoch, or of a sample where the epochs of an experiment are unequal work."""
    times: dict[Key, Bar] = {}
    for samples in (False, True):
        bars = pool_times(report, per_sample=samples)
        times |= {key: bar for key, bar in bars.items() if samples == is_uneven(report, key[0])}
    return times


def is_uneven(report: Report, number: int) -> bool:
    """Return whether the time of a comparison is given for a sample."""
    return report.comparisons[number]["notebook"] in report.uneven


def figures_of(report: Report, key: Key, times: dict[Key, Bar]) -> tuple[str, str]:
    """Return time and peak of memory of a precision with their units, each empty where it is not known."""
    unit = "µs" if is_uneven(report, key[0]) else "s"
    time = f"{short(times[key][0])} {unit}" if key in times else ""
    memory = f"{gibibytes(report.peaks[key][0])} GiB" if key in report.peaks else ""
    return time, memory


def write_columns(
    axes: Axes, y: float, texts: Iterable[str], columns: dict[str, float] = COLUMNS, **style: Any
) -> None:
    """Write texts into the columns beside a row, each ending where its column ends; `columns` is {name: right end}."""
    for right, text in zip(columns.values(), texts, strict=True):
        axes.text(right, y, text, ha="right", va="center", **{"size": 9, **style})


def draw_precision(report: Report, axes: Axes, y: float, number: int, precision: str) -> None:
    """Draw the speed-ups of a precision: over fp32, and a little lower over tf32; a reason where there is none."""
    group = report.comparisons[number]
    baselines = [base for base in baselines_of(precision) if (number, precision, base) in report.speedups]
    for base in baselines:
        shift = 0.18 * (-1 if base == "fp32" else 1) * (len(baselines) - 1)
        for ratio in ratios_of_hosts(group, precision, base):
            tick: dict[str, Any] = {"marker": "|", "markersize": 10, "markeredgewidth": 1.4, "zorder": 1}
            axes.plot(within_axis(ratio), y + shift, color=INTERVAL_GREY, **tick)
        size = 7 if base == "fp32" else 5
        draw_ratio(axes, y + shift, report.speedups[number, precision, base], precision, BASELINES[base], size)
    if not baselines:
        text = gap_text(report.runs(number, precision)) or "nothing to compare with"
        style: dict[str, Any] = {"color": GAP_GREY, "size": 9, "va": "center", "bbox": BOX}
        axes.text(0.02, y, text, transform=axes.get_yaxis_transform(), **style)


def name_lines(report: Report, number: int) -> list[str]:
    """Return the name of a comparison, with the runs that its rows lack, in lines that fit over the plot."""
    group = report.comparisons[number]
    return wrapped_name("; ".join([group["title"], *failed_beside_others(group)]), LETTERS)


def draw_heading(plot: Axes, y: float, lines: list[str]) -> None:
    """Write the name of a comparison, its last line at y."""
    style: dict[str, Any] = {"va": "center", "weight": "bold", "size": 9, "bbox": BOX}
    style |= {"transform": plot.get_yaxis_transform(), "in_layout": False}  # else a long name narrows the columns
    for above, line in enumerate(reversed(lines)):
        plot.text(0.01, y - SECOND_LINE * above, chart_text(line), **style)


def write_baseline(report: Report, columns: Axes, y: float, number: int, times: dict[Key, Bar]) -> None:
    """Write the time and the memory of fp32 beside the name of a comparison."""
    group = report.comparisons[number]
    if group["runs"]["fp32"]:
        time, memory = figures_of(report, (number, "fp32"), times)
        time = gap_text(group["runs"]["fp32"]) or time
        write_columns(columns, y, ("1", "", time, memory), color=GAP_GREY)


def legend_of_rows(report: Report) -> list[Line2D]:
    """Return the legend: baselines, and all signs that occur."""
    style: dict[str, Any] = {"linestyle": "none", "markersize": 6}
    handles = []
    for base in (base for base in BASELINES if any(key[2] == base for key in report.speedups)):
        handles.append(Line2D([], [], **style, color=DARK_GREY, marker=BASELINES[base], label=f"over {base}"))
    handles += legend_of_ratios(report.speedups.values())
    if any(ratios_of_hosts(report.comparisons[key[0]], *key[1:]) for key in report.speedups):
        handles.append(Line2D([], [], **style, color=INTERVAL_GREY, marker="|", label="one host"))
    return handles


def alternative_text(report: Report) -> str:
    """Return the ratios over fp32 as a sentence for each comparison."""
    texts = []
    for number, group in report.charted_groups:
        found = []
        for name in sorted_names(report, number):
            if label := ratio_label(report, (number, name, "fp32")):
                found.append(f"{name} {label}")
        texts.append(f"{group['title']}, times as fast as fp32: {', '.join(found) or 'no ratio'}.")
    return " ".join(texts)


def draw_rows(section: Section, report: Report) -> None:
    """Draw a row for every precision of the comparisons, with its numbers in columns at the right."""
    names = {number: sorted_names(report, number) for number in report.charted}
    titles = {number: name_lines(report, number) for number in report.charted}
    above = {number: SECOND_LINE * (len(lines) - 1) for number, lines in titles.items()}
    rows = sum(HEADING + above[number] + len(found) for number, found in names.items())
    title = finding_of(report, report.charted)
    uneven = any(is_uneven(report, number) for number in report.charted)
    time = "time of an epoch, or of a sample where epochs differ" if uneven else "time of an epoch"
    about = f"times as fast in training; {time}; peak of memory without the data set"
    figure, (part,) = start_chart(report, title, [0.62 + ROW * rows], legend_of_rows(report), about, width=NARROW)
    plot, columns = part.subplots(1, 2, width_ratios=[1, 0.72], sharey=True)
    columns.set_axis_off()
    columns.set_xlim(0, 1)
    compared = {f"over {key[2]}" for key in report.speedups}
    heads = [name if name in compared or not name.startswith("over") else "" for name in COLUMNS]
    write_columns(columns, -0.95, heads, color=GAP_GREY)
    times = find_times(report)
    ticks = {}
    y = 0.0
    for number in report.charted:
        y += above[number]
        draw_heading(plot, y, titles[number])
        write_baseline(report, columns, y, number, times)
        if report.runs(number, "fp32"):
            ticks[y] = "fp32"
        for precision in names[number]:
            y += 1
            ticks[y] = precision
            draw_precision(report, plot, y, number, precision)
            ratios = [ratio_label(report, (number, precision, base)) for base in BASELINES]
            write_columns(columns, y, (*ratios, *figures_of(report, (number, precision), times)))
        y += HEADING
    plot.set_ylim(y - 0.6, -1.3)
    plot.set_yticks(list(ticks), list(ticks.values()))
    fit_axis(plot, [speedup for key, speedup in report.speedups.items() if key[0] in names])
    section.chart(figure, "speedup", alternative_text(report))


def section(report: Report) -> Section:
    """Return the chart of the speed-ups, and the bars of time and memory."""
    section = Section(TITLE, ABOUT)
    if not report.charted:
        return section
    if report.on_cpu:
        section.say(f"**{CPU_WARNING}.** Nothing follows from these ratios.")
    rows = sum(len(shown_in(report, number)) for number in report.charted)
    if without_baseline(report):
        section.say("Nothing to compare with: no run in fp32 or tf32.")
    elif rows <= MOST_ROWS or not report.speedups:
        draw_rows(section, report)
    else:
        draw_list(section, report)
    if any(not speedup["processes"] for speedup in report.speedups.values()) and not without_baseline(report):
        section.say(f"{UNPAIRED_MARK}: the runs differ in card, seed or repetition, so this is no comparison of times.")
    draw_time_and_memory(section, report)
    return section
