"""Bar charts with a group of bars for every comparison, and sentences on them."""

import statistics
import textwrap
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .comparisons import gap_text, ok_runs
from .layout import chart_text, extremes_text, panel_rows, shown_in, start_chart, write_gap, write_label
from .report import Bar, Key, Report, Unit
from .section import Section
from .style import BOX, INTERVAL_GREY, PRECISIONS, UNPAIRED_MARK, bar_style, precision_patches
from .verdicts import mark_of
from .words import plain, short, span

Read = Callable[[dict], list[float]]


def pool(report: Report, read: Read, height: Callable = statistics.median) -> dict[Key, Bar]:
    """Return {(comparison number, precision): (height, smallest, largest, n)} of the numbers `read(record)` lists."""
    pooled = {}
    for number, group in report.charted_groups:
        for precision in PRECISIONS:
            values = [value for record in ok_runs(group, precision) for value in read(record)]
            if values:
                pooled[number, precision] = (height(values), min(values), max(values), len(values))
    return pooled


def values_of(field: str, scale: float = 1) -> Read:
    """Return a reader of one field for pool()."""
    return lambda record: [] if record[field] is None else [record[field] / scale]


def draw_bar(axes: Axes, x: float, bar: Bar, width: float, precision: str) -> None:
    """Draw a bar with the range of its values."""
    height, low, high, _ = bar
    axes.bar(x, height, 0.92 * width, **bar_style(precision))
    if low < high:
        axes.vlines(x, low, high, color=INTERVAL_GREY, linewidth=2.5)


def draw_panel(
    report: Report,
    axes: Axes,
    panel: list[int],
    bars: dict[Key, Bar],
    labels: dict[Key, str],
    absent: str,
    inches: float,
) -> dict[Key, tuple[float, float]]:
    """Draw the bars of some comparisons, each `inches` wide, and return {bar: (x, width)}."""
    names = [name for name in PRECISIONS if any(report.runs(number, name) for number in panel)]
    here = [key for key in bars if key[0] in panel]
    longest = max((len(line) for key in here for line in labels[key].split("\n")), default=0)
    crowded = inches / len(names) < max(0.36, 0.068 * longest)
    two_lines = any("\n" in label for label in labels.values())
    upright = {"rotation": 90, "va": "bottom"} if crowded else {}
    width = 0.86 / len(names)
    top = max([bars[key][2] for key in here], default=0.8)
    places = {}
    for position, number in enumerate(panel):
        for slot, precision in enumerate(names):
            x = position + (slot - (len(names) - 1) / 2) * width
            key, runs = (number, precision), report.runs(number, precision)
            if not runs:
                write_gap(axes, x, 0.02 * top, "-", rotation=0)
            elif key not in bars:
                write_gap(axes, x, 0.02 * top, gap_text(runs, absent))
            else:
                draw_bar(axes, x, bars[key], width, precision)
                label = labels[key].replace("\n", " ") if crowded else labels[key]
                if gap_text(runs):
                    label += "*"
                label += mark_of(report, *key)
                if bars[key][3] == 0:
                    label += UNPAIRED_MARK
                write_label(axes, label, x, bars[key][2], (0, 6 if two_lines else 3), bbox=BOX, **upright)
                places[key] = (x, width)
    headroom = 1.2 + (0.2 if two_lines else 0) + (0.25 if crowded else 0)
    axes.set(xlim=(-0.5, len(panel) - 0.5), ylim=(0, top * headroom))
    axes.yaxis.set_major_formatter("{x:,.10g}" if places else "")
    return places


def tick_label(report: Report, number: int, bars: dict[Key, Bar], notes: dict[int, list[str]]) -> str:
    """Return what stands below the bars of a comparison: its lines, notes, and the runs that its bars lack."""
    group = report.comparisons[number]
    lines = [*group["lines"], *notes.get(number, [])]
    for precision, runs in group["runs"].items():
        if (number, precision) in bars and gap_text(runs):
            lines.append(f"* {precision}: {gap_text(runs)}")
    return chart_text("\n".join(lines))


def bar_chart(
    report: Report,
    title: str,
    unit: Unit,
    bars: dict[Key, Bar],
    counted: str,
    absent: str = "not measured",
    notes: dict[int, list[str]] | None = None,
    values: dict[Key, str] | None = None,
    extra: Sequence = (),
) -> tuple[Figure, dict[Key, tuple[Axes, float, float]]]:
    """Return (figure, {(number, precision): (axes, x, width)}) with a panel per experiment, device and data.

    `bars` is what pool() returns and `counted` the word for its n. `absent` stands where a run that ended well has no
    bar, `notes` below a comparison, `values` above bars in the place of their heights, and `extra` in the legend.
    """
    rows = panel_rows(report)
    lines = 2 + max((len(group["lines"]) for _, group in report.charted_groups), default=0)
    names = [name for name in PRECISIONS if any(group["runs"][name] for _, group in report.charted_groups)]
    heights = [2.0 + 0.14 * lines] * len(rows)
    figure, bands = start_chart(report, title, heights, [*precision_patches(names), *extra])
    labels = {key: short(bar[0]) for key, bar in bars.items()} | (values or {})
    widest = max([3, *(sum(map(len, row)) + 0.7 * len(row) for row in rows)])
    places: dict[Key, tuple[Axes, float, float]] = {}
    for band, row in zip(bands, rows, strict=True):
        ratios = [len(panel) + 0.7 for panel in row]
        if widest - sum(ratios) > 0.1:
            ratios.append(widest - sum(ratios))
        columns = band.subplots(1, len(ratios), width_ratios=ratios, squeeze=False)[0]
        for axes, panel in zip_longest(columns, row):
            if panel is None:
                axes.set_axis_off()
                continue
            inches = (10 * (len(panel) + 0.7) / widest - 0.6) / len(panel)
            drawn = draw_panel(report, axes, panel, bars, labels, absent, inches)
            axes.set_xticks(range(len(panel)), [tick_label(report, number, bars, notes or {}) for number in panel])
            places |= {key: (axes, *place) for key, place in drawn.items()}
            group = report.comparisons[panel[0]]
            numbers = {bars[key][3] for key in drawn} or {0}
            titles = [group["notebook"], group["device"], f"n = {span(numbers)} ({counted})"]
            if len(report.devices) == 1:  # the chart's title names it
                del titles[1]
            axes.set_title(chart_text("\n".join(titles)), size=9, loc="left")
            axes.set_ylabel(unit(group))
    return figure, places


def gap_lines(text: str) -> str:
    """Return a reason in three lines at most."""
    lines = textwrap.wrap(text, 30)
    return chart_text("\n".join(lines[:3]) + ("..." if len(lines) > 3 else ""))


def name_precisions(axes: Axes, names: list[str]) -> None:
    """Name the precisions below the bars at x = 0, 1, 2, ..."""
    axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
    axes.set_xlim(-0.6, max(4, len(names)) - 0.4)


def draw_stacks(
    report: Report,
    axes: Axes,
    number: int,
    styles: dict[str, tuple[str, str]],
    stacks: dict[Key, dict[str, float]],
    gaps: dict[Key, str],
    labels: dict[Key, str],
    lift: float = 3,
) -> None:
    """Draw a bar of stacked parts for every precision of a comparison, its label above; a gap where there is none."""
    top = max([sum(parts.values()) for key, parts in stacks.items() if key[0] == number], default=1)
    names = shown_in(report, number)
    for x, precision in enumerate(names):
        key = (number, precision)
        if key not in stacks:
            text = gap_text(report.runs(*key)) or gaps.get(key, "not measured")
            write_gap(axes, x, 0.02 * top, gap_lines(text), size=7.5)
            continue
        foot = 0.0
        for part, amount in stacks[key].items():
            colour, hatch = styles[part]
            axes.bar(x, amount, 0.76, foot, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4)
            foot += amount
        write_label(axes, labels[key] + mark_of(report, *key), x, foot, (0, lift))
    name_precisions(axes, names)
    axes.set_ylim(0, 1.2 * top)
    axes.yaxis.set_major_formatter("{x:,.10g}" if any(key[0] == number for key in stacks) else "")


def gap_reasons(report: Report, reason: str) -> dict[Key, str]:
    """Return {(comparison number, precision): why a figure of its runs is missing}, as the records say."""
    return {(number, record["precision"]): record[reason] for number, record in report.timed if record[reason]}


def middle_runs(report: Report, size: Callable[[dict], Any]) -> dict[Key, dict]:
    """Return {(comparison number, precision): the ok run with the median of `size(record)`} where that is known."""
    found = {}
    for number, group in report.charted_groups:
        for precision in PRECISIONS:
            runs = sorted((record for record in ok_runs(group, precision) if size(record)), key=size)
            if runs:
                found[number, precision] = runs[(len(runs) - 1) // 2]
    return found


def say_extremes(section: Section, report: Report, bars: dict[Key, Bar], unit: Unit) -> None:
    """Say, for every experiment, what its smallest and its largest bar are."""
    for notebook in dict.fromkeys(group["notebook"] for _, group in report.charted_groups):
        heights = {key: bar[0] for key, bar in bars.items() if report.comparisons[key[0]]["notebook"] == notebook}
        text = "nothing was measured"
        if heights:
            text = extremes_text(report, heights, short, unit)
        section.say(f"{plain(notebook)}: {text}.")
