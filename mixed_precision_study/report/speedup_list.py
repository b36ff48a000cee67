"""The figure of speed-ups where there are many comparisons: a row for each, grouped by experiment and model."""

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from .layout import NARROW, chart_text, start_chart, wrapped_name
from .report import Report
from .section import Section
from .speedup_marks import BASELINES, draw_ratio, finding_of, fit_axis, legend_of_ratios, ratio_label
from .style import PRECISIONS

LINE = 0.185  # inches of a row
LETTERS = 55  # of a line of a name
INCHES_OF_LETTER = 0.061
PLOT_INCHES = 2.4
COLUMN_INCHES = 0.45
SECOND_LINE = 0.75  # rows
HEADING = 1.2  # rows
APART = 0.3  # rows between ratios of one comparison, so that equal ones are both seen
SPREAD = 0.7  # rows that all of them take at most
TICKS_ABOVE = 20  # from so many rows on the axis is written above as well


def baseline_of(report: Report, number: int) -> str | None:
    """Return fp32, or tf32 where nothing was compared with fp32, or None."""
    found = {key[2] for key in report.speedups if key[0] == number}
    return next((base for base in BASELINES if base in found), None)


def label_of(report: Report, number: int) -> list[str]:
    """Return the lines of the name of a comparison without its model; a baseline other than fp32 is named."""
    group = report.comparisons[number]
    base = baseline_of(report, number)
    words = [*group["lines"][1:], *([group["device"]] if len(report.devices) > 1 else [])]
    return wrapped_name(" · ".join([*words, *([f"over {base}"] if base != "fp32" else [])]), LETTERS)


def heading_of(kind: tuple[str, str]) -> list[str]:
    """Return the line above the comparisons of an experiment and a model."""
    return [f"{kind[1]} · {kind[0]}"]


def height_of(lines: list[str]) -> float:
    """Return the height of a name in rows."""
    return 1 + SECOND_LINE * (len(lines) - 1)


def by_model(report: Report) -> dict[tuple[str, str], list[int]]:
    """Return {(experiment, model): the comparisons that have a ratio}."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for number, group in report.charted_groups:
        if baseline_of(report, number):
            kinds.setdefault((group["notebook"], group["model"]), []).append(number)
    return dict(sorted(kinds.items(), key=lambda item: item[0][0]))


def draw_list(section: Section, report: Report) -> None:
    """Draw the ratios of every comparison in a row, with their numbers in columns at the right."""
    kinds = by_model(report)
    numbers = [number for members in kinds.values() for number in members]
    found = {key: speedup for key, speedup in report.speedups.items() if key[0] in numbers}
    shown = [name for name in PRECISIONS if any(key[1] == name for key in found)]
    names = {number: label_of(report, number) for number in numbers}
    rows = sum(map(height_of, names.values())) + HEADING * len(kinds)
    handles = legend_of_precisions(shown) + legend_of_ratios(found.values())
    title = finding_of(report, numbers)
    about = "times as fast as fp32 in training"
    if len(numbers) < len(report.charted):
        about += f"; {len(numbers)} of {len(report.charted)} comparisons have a ratio"
    figure, (part,) = start_chart(report, title, [0.75 + LINE * rows], handles, about, numbers, NARROW)
    longest = max(len(line) for lines in [*names.values(), *map(heading_of, kinds)] for line in lines)
    widths = [INCHES_OF_LETTER * longest, PLOT_INCHES, COLUMN_INCHES * len(shown)]
    labels, plot, columns = part.subplots(1, 3, width_ratios=widths, sharey=True)
    for axes in (labels, columns):
        axes.set_axis_off()
        axes.set_xlim(0, 1)
    ends = {name: (place + 1) / len(shown) for place, name in enumerate(shown)}
    for name, right in ends.items():
        columns.text(right, -1.1, name.replace("_", "\n"), ha="right", va="center", size=8.5)
    y = 0.0
    for kind, members in kinds.items():
        labels.text(0, y, chart_text(heading_of(kind)[0]), va="center", size=8.5, weight="bold")
        y += 0.5
        for number in members:
            height = height_of(names[number])
            y += height / 2
            labels.text(0.03, y, chart_text("\n".join(names[number])), va="center", size=8.5, linespacing=1)
            draw_comparison(report, plot, columns, y, number, ends)
            y += height / 2
        y += HEADING - 0.5
    plot.set_ylim(y - 0.5, -2.0)
    plot.set_yticks([])
    fit_axis(plot, found.values())
    plot.tick_params(labeltop=rows > TICKS_ABOVE)
    section.chart(figure, "speedup", f"{title}; {about}.")


def legend_of_precisions(names: list[str]) -> list[Line2D]:
    """Return the legend of the markers of some precisions."""
    styles = [(name, PRECISIONS[name]) for name in names]
    return [
        Line2D([], [], color=style.colour, marker=style.marker, linestyle="none", markersize=6, label=name)
        for name, style in styles
    ]


def draw_comparison(report: Report, plot: Axes, columns: Axes, y: float, number: int, ends: dict[str, float]) -> None:
    """Draw the ratios of a comparison in one row, and write them into the columns that end at `ends`."""
    base = baseline_of(report, number) or ""
    found = {name: report.speedups[number, name, base] for name in ends if (number, name, base) in report.speedups}
    for place, (name, speedup) in enumerate(found.items()):
        shift = min(APART, SPREAD / len(found)) * (place - (len(found) - 1) / 2)
        draw_ratio(plot, y + shift, speedup, name, PRECISIONS[name].marker, 5)
        text = ratio_label(report, (number, name, base))
        columns.text(ends[name], y, text, ha="right", va="center", size=8.5)
    plot.axhline(y, color="#e8e8e8", linewidth=0.6, zorder=0.4)
