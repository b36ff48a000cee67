"""The bars of time and of memory, side by side. They are a part of the section on speed-up."""

from collections.abc import Callable
from functools import partial

from matplotlib.axes import Axes

from .bars import draw_panel, pool
from .epoch_time import times_of
from .layout import NARROW, chart_text, most_compared, shown_in, start_chart
from .report import Bar, Key, Report
from .section import Section
from .style import PRECISIONS, precision_patches
from .words import gibibytes, short

IN_A_ROW = 3  # comparisons
MOST_ROWS = 3
INCHES = 1.75  # of a row without the names below it
LINE = 0.14  # inches of a line of these


def rows_of(report: Report) -> list[list[int]]:
    """Return the comparisons in the figure: all in one row, or a row for each of a few experiments.

    Of an experiment with many, those with the most precisions are shown, of different models where there are.
    """
    if len(report.charted) <= IN_A_ROW:
        return [report.charted]
    experiments: dict[str, list[int]] = {}
    for number, group in report.charted_groups:
        experiments.setdefault(group["notebook"], []).append(number)
    rows = []
    for numbers in experiments.values():
        rows.append(most_compared(report, numbers, IN_A_ROW))
    return rows[:MOST_ROWS]


def draw_time_and_memory(section: Section, report: Report) -> None:
    """Draw the time of an epoch on the left and the peak of memory on the right, a group of bars per comparison."""
    rows = rows_of(report)
    numbers = [number for row in rows for number in row]
    names = [name for name in PRECISIONS if any(name in shown_in(report, number) for number in numbers)]
    about = "median time of an epoch (grey: shortest to longest), and peak of PyTorch's memory"
    if len(numbers) < len(report.charted):
        about += f"; {len(numbers)} of {len(report.charted)} comparisons"
    lines = [max(len(report.comparisons[number]["lines"]) for number in row) for row in rows]
    heights = [INCHES + LINE * count for count in lines]
    patches = precision_patches(names)
    figure, (part,) = start_chart(report, "Time and memory", [sum(heights)], patches, about, numbers, NARROW)
    grid = part.subplots(len(rows), 2, height_ratios=heights, squeeze=False)
    texts = []
    for (left, right), row in zip(grid, rows, strict=True):
        samples = report.comparisons[row[0]]["notebook"] in report.uneven
        times = pool(report, partial(times_of, per_sample=samples))
        draw_group(report, left, row, times, short)
        draw_group(report, right, row, report.peaks, gibibytes)
        left.set_ylabel("µs per sample" if samples else "seconds")
        right.set_ylabel("GiB")
        texts += alternative_texts(report, row, times, "µs a sample" if samples else "s")
    section.chart(figure, "time_and_memory", " ".join(texts))


def draw_group(
    report: Report, axes: Axes, numbers: list[int], bars: dict[Key, Bar], form: Callable[[float], str]
) -> None:
    """Draw the bars of a few comparisons, each with its name below."""
    labels = {key: form(bar[0]) for key, bar in bars.items()}
    draw_panel(report, axes, numbers, bars, labels, "not measured", NARROW / 2.3 / IN_A_ROW)
    axes.set_xlim(-0.5, IN_A_ROW - 0.5)
    ticks = [chart_text("\n".join(report.comparisons[number]["lines"])) for number in numbers]
    axes.set_xticks(range(len(numbers)), ticks)


def alternative_texts(report: Report, numbers: list[int], times: dict[Key, Bar], unit: str) -> list[str]:
    """Return time and memory of each comparison as a sentence."""
    texts = []
    for number in numbers:
        figures = []
        for precision in shown_in(report, number):
            key = (number, precision)
            if key in times:
                memory = f", {gibibytes(report.peaks[key][0])} GiB" if key in report.peaks else ""
                figures.append(f"{precision} {short(times[key][0])} {unit}{memory}")
        texts.append(f"{report.comparisons[number]['title']}: {'; '.join(figures) or 'nothing measured'}.")
    return texts
