"""How a chart is laid out: its panels, title and legend."""

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from ..analysis.conditions import flags_of
from .comparisons import runs_of, timed_runs
from .report import Report
from .style import CPU_WARNING, DISTURBED_MARK, GAP_GREY, PRECISIONS, RED
from .words import plain

MANY = 12  # with more comparisons, charts leave out those that show little
WIDTH = 10.0  # inches of a chart with panels side by side
EXAMPLES = 8  # comparisons with stacked bars, where there are more than MANY
NARROW = 8.0  # inches of a chart with rows: at equal width on the screen its texts are larger
TITLE_SIZE = 12
NOTE_SIZE = 9


class HeadLine(NamedTuple):
    """A line of text above a chart."""

    text: str
    size: float
    bold: bool = False
    colour: str = "black"

    @property
    def inches(self) -> float:
        """Its height."""
        return 0.0185 * self.size


def legend_of(groups: Iterable[dict]) -> list[Line2D]:
    """Return the legend of lines: the precisions that any of the comparisons has runs of."""
    seen = {run["precision"] for run in runs_of(groups)}
    handles = []
    for name in (name for name in PRECISIONS if name in seen):
        style: dict[str, Any] = {"linestyle": PRECISIONS[name].line, "marker": PRECISIONS[name].marker}
        handles.append(Line2D([], [], color=PRECISIONS[name].colour, linewidth=0.8, label=name, **style))
    return handles


def split_into_panels(report: Report, most: int) -> list[list[int]]:
    """Return the charted comparisons as panels of one experiment, device and data, each with `most` at most.

    Where they do not fit into one panel, each model gets its own; models with two comparisons or fewer share one.
    """
    panels: list[list[int]] = []
    for _, members in groupby(report.charted, lambda number: list(report.comparisons[number].values())[:3]):
        numbers = list(members)
        by_model = [list(same) for _, same in groupby(numbers, lambda number: report.comparisons[number]["model"])]
        before = len(panels)
        for same in by_model if len(numbers) > most else [numbers]:
            size = math.ceil(len(same) / math.ceil(len(same) / most))
            for part in (same[start : start + size] for start in range(0, len(same), size)):
                last = panels[-1] if len(panels) > before else None
                if last and max(len(last), len(part)) <= 2 and len(last) + len(part) <= most:
                    last.extend(part)
                else:
                    panels.append(part)
    return panels


def panel_rows(report: Report, most: int = 6) -> list[list[list[int]]]:
    """Return the rows of a bar chart: up to three panels each, with `most` comparisons at most."""
    rows: list[list[list[int]]] = []
    for panel in split_into_panels(report, most):
        if not rows or len(rows[-1]) == 3 or sum(map(len, rows[-1])) + len(panel) > most:
            rows.append([])
        rows[-1].append(panel)
    return rows


def legend_lines(labels: list[str], width: float = WIDTH) -> int:
    """Return how many lines a legend needs in a figure of `width` inches; a column is as wide as its longest label."""
    letters = [len(label) + 7 for label in labels]
    for lines in range(1, len(letters)):
        if sum(max(letters[start : start + lines]) for start in range(0, len(letters), lines)) <= 13.5 * width:
            return lines
    return max(1, len(letters))


def head_lines(report: Report, title: str, about: str, numbers: list[int] | None, width: float) -> list[HeadLine]:
    """Return the lines above the legend: the title, what is drawn, and what disturbed runs are marked with.

    With one device its name stands in `about`, or in the title where there is no `about`.
    """
    device = next(iter(report.devices)) if len(report.devices) == 1 else ""
    if about:
        about = "; ".join(filter(None, [about, device]))
    elif device:
        title = f"{title} on {device}"
    shown = report.charted if numbers is None else numbers
    wrapped = [line for text in title.split("\n") for line in textwrap.wrap(text, round(9.6 * width))]
    lines = [HeadLine(line, TITLE_SIZE, bold=True) for line in wrapped]
    if report.on_cpu:
        lines.append(HeadLine(CPU_WARNING, TITLE_SIZE, bold=True, colour=RED))
    lines += [HeadLine(line, NOTE_SIZE) for line in textwrap.wrap(about, round(12.6 * width))]
    groups = [report.comparisons[number] for number in shown]
    counted = [run for group in groups for name in PRECISIONS for run in timed_runs(group, name)]
    if any(map(flags_of, counted)) and not report.on_cpu:
        lines.append(HeadLine(f"{DISTURBED_MARK} throttled or GPU shared", NOTE_SIZE))
    return lines


def start_chart(
    report: Report,
    title: str,
    heights: list[float],
    handles: list,
    about: str = "",
    numbers: list[int] | None = None,
    width: float = WIDTH,
) -> tuple[Figure, list[SubFigure]]:
    """Return (figure, subfigures): title and legend above, then one subfigure for each of `heights` in inches.

    `about` is a second line on what is drawn, and `numbers` are the comparisons in the figure, all by default.
    """
    lines = head_lines(report, title, about, numbers, width)
    rows = legend_lines([handle.get_label() for handle in handles], width) if handles else 0
    head = 0.18 + sum(line.inches for line in lines) + 0.19 * rows
    no_gaps = ConstrainedLayoutEngine(hspace=0)  # they would grow with the figure
    figure = plt.figure(figsize=(width, head + sum(heights)), layout=no_gaps)
    top, *parts = figure.subfigures(1 + len(heights), 1, squeeze=False, height_ratios=[head, *heights]).flat
    depth = 0.06
    for line in lines:
        weight = "bold" if line.bold else "normal"
        text = chart_text(line.text)
        top.text(0.008, 1 - depth / head, text, va="top", size=line.size, weight=weight, color=line.colour)
        depth += line.inches
    if handles:
        corner: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 0), "borderaxespad": 0}
        columns = math.ceil(len(handles) / rows)
        top.legend(handles=handles, ncols=columns, frameon=False, fontsize=9, handletextpad=0.5, **corner)
    return figure, parts


def chart_text(text: str) -> str:
    """Return text from a record as Matplotlib shows it: a dollar sign starts no formula."""
    return text.replace("$", r"\$")


def panel_title(report: Report, number: int, *more: str) -> str:
    """Return the title of a panel: experiment, comparison and `more`, in lines that fit."""
    group = report.comparisons[number]
    lines = [group["notebook"]]
    for text in filter(None, [group["title"], *more]):
        lines += wrapped_name(text, 44)
    return chart_text("\n".join(lines))


def panels(
    report: Report,
    title: str,
    inches: float | Callable[[list[int]], float],
    handles: list,
    numbers: list[int] | None = None,
    rows: int = 1,
    across: int = 3,
) -> tuple[Figure, list[tuple[int, list[Axes]]]]:
    """Return (figure, [(comparison number, its axes from above)]): panels side by side under title and legend.

    `inches` is the height of a band of panels, or a function of the comparisons in it.
    """
    numbers = report.charted if numbers is None else numbers
    bands = [numbers[start : start + across] for start in range(0, len(numbers), across or 1)]
    heights = [inches(band) if callable(inches) else inches for band in bands]
    figure, parts = start_chart(report, title, heights, handles, numbers=numbers)
    placed = []
    for part, band in zip(parts, bands, strict=True):
        columns = part.subplots(rows, across, sharex="col", squeeze=False).T
        for number, column in zip_longest(band, columns):
            if number is None:
                for axes in column:
                    axes.set_axis_off()
                continue
            column[0].set_title(panel_title(report, number), size=8.5, loc="left")
            placed.append((number, list(column)))
    return figure, placed


def write_gap(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """Write a text upright in the place of a missing bar."""
    usual = {"size": 8.5, "color": GAP_GREY, "rotation": 90, "ha": "center", "va": "bottom"}
    axes.text(x, y, text, **{**usual, **style})


def write_label(axes: Axes, text: str, x: float, y: float, offset: tuple[float, float], **style: Any) -> None:
    """Write the label of a bar or point, `offset` points from it."""
    axes.annotate(text, (x, y), offset, textcoords="offset points", **{"size": 8.5, "ha": "center", **style})


def rate_unit(group: dict) -> str:
    """Return "images per second", or whatever the samples are."""
    units = {record["sample_unit"] for record in runs_of([group])} - {None}
    return chart_text(f"{units.pop() if len(units) == 1 else 'samples'} per second")


def name_of(report: Report, number: int, precision: str) -> str:
    """Return the name of a bar in a sentence."""
    return f"{precision}, {plain(report.comparisons[number]['title'])}"


def wrapped_name(text: str, letters: int) -> list[str]:
    """Return a name of several parts in lines that end where a part ends."""
    whole = text.replace(" ", "\xa0").replace("\xa0·\xa0", "\xa0· ")
    return [line.replace("\xa0", " ") for line in textwrap.wrap(whole, letters)]


def most_compared(report: Report, numbers: list[int], most: int) -> list[int]:
    """Return up to `most` of some comparisons: of each model the one with most precisions and ratios, then others."""
    told = Counter(number for (number, _, base), one in report.speedups.items() if base == "fp32" and one["processes"])
    ranked = sorted(numbers, key=lambda number: (-len(shown_in(report, number)), -told[number]))
    first_of = {report.comparisons[number]["model"]: number for number in reversed(ranked)}
    firsts = [number for number in ranked if number in first_of.values()]
    others = [number for number in ranked if number not in firsts]
    return sorted([*firsts, *others][:most], key=numbers.index)


def shown_in(report: Report, number: int) -> list[str]:
    """Return the precisions that a comparison has runs of."""
    return [name for name, runs in report.comparisons[number]["runs"].items() if runs]
