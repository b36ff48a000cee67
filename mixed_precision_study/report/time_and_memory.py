"""The bars of time and of memory, side by side. They are a part of the section on speed-up."""

import textwrap
from collections.abc import Callable

from matplotlib.axes import Axes

from .bars import draw_panel, failed_beside_others
from .epoch_time import pool_times
from .layout import NARROW, chart_text, most_compared, shown_in, start_chart
from .report import Bar, Key, Report
from .section import Section
from .style import PRECISIONS, precision_patches
from .words import gibibytes, short

IN_A_ROW = 3  # comparisons
IN_TWO_ROWS = 6
INCHES = 1.6  # of a row without the names below it
LINE = 0.13  # inches of a line of these
NAME_SIZE = 7.5  # 10 pixels of 800
LETTERS = 19  # of a line of a name


def rows_of(report: Report) -> list[list[int]]:
    """Return the comparisons in the figure: up to six in one row or two; of more, one for each experiment or model.

    Where models come several times, as eager and as a graph, each has a row: their times and sizes differ most.
    """
    numbers = report.charted
    if len(numbers) > IN_TWO_ROWS:
        experiments: dict[str, list[int]] = {}
        for number, group in report.charted_groups:
            experiments.setdefault(group["notebook"], []).append(number)
        firsts = [most_compared(report, members, 1)[0] for members in experiments.values()]
        if len(experiments) == 1:
            firsts = most_compared(report, numbers, IN_A_ROW)
        return [firsts[:IN_A_ROW]]
    models: dict[tuple, list[int]] = {}
    for number, group in report.charted_groups:
        models.setdefault((group["notebook"], group["model"]), []).append(number)
    if 1 < len(models) <= IN_A_ROW < len(numbers) and max(map(len, models.values())) <= IN_A_ROW:
        return list(models.values())
    return [numbers[start : start + IN_A_ROW] for start in range(0, len(numbers), IN_A_ROW)]


def in_samples(report: Report, numbers: list[int]) -> bool:
    """Return whether epochs of one experiment that stand side by side are unequal work."""
    experiments = [report.comparisons[number]["notebook"] for number in numbers]
    return any(name in report.uneven and experiments.count(name) > 1 for name in experiments)


def name_below(report: Report, number: int) -> str:
    """Return the name of a comparison as it stands below its bars, with the runs that its bars lack."""
    group = report.comparisons[number]
    lines = [*group["lines"], *([group["device"]] if len(report.devices) > 1 else [])]
    lines += [f"* {text}" for text in failed_beside_others(group)]
    return chart_text("\n".join(part for line in lines for part in folded(line)))


def folded(line: str) -> list[str]:
    """Return a line in lines that fit below bars. A long name of a model ends a line after an underscore."""
    if max(map(len, line.split()), default=0) > LETTERS:
        line = line.replace("_", "_ ")
    return [part.replace("_ ", "_") for part in textwrap.wrap(line, LETTERS)]


def draw_time_and_memory(section: Section, report: Report) -> None:
    """Draw the time of an epoch and the peak of memory of some comparisons."""
    draw_rows(section, report, rows_of(report), "Time and memory", "time_and_memory")


def draw_rows(section: Section, report: Report, rows: list[list[int]], title: str, file: str) -> None:
    """Draw the time of an epoch on the left and the peak of memory on the right, a group of bars per comparison."""
    numbers = [number for row in rows for number in row]
    names = [name for name in PRECISIONS if any(name in shown_in(report, number) for number in numbers)]
    samples = in_samples(report, numbers)
    times = pool_times(report, per_sample=samples)
    about = "mean time of an epoch (grey: shortest to longest) and peak of memory without the data set"
    if len(numbers) < len(report.charted):
        about += f"; {len(numbers)} of {len(report.charted)} comparisons"
    slots = max(map(len, rows))
    lines = [max(name_below(report, number).count("\n") for number in row) for row in rows]
    heights = [INCHES + LINE * (count + 1) for count in lines]
    patches = precision_patches(names)
    figure, (part,) = start_chart(report, title, [sum(heights)], patches, about, numbers, NARROW)
    grid = part.subplots(len(rows), 2, height_ratios=heights, squeeze=False)
    for (left, right), row in zip(grid, rows, strict=True):
        draw_group(report, left, row, times, short, slots)
        draw_group(report, right, row, report.peaks, gibibytes, slots)
        left.set_ylabel("µs per sample" if samples else "seconds")
        right.set_ylabel("GiB")
    unit = "µs a sample" if samples else "s"
    section.chart(figure, file, " ".join(alternative_texts(report, numbers, times, unit)))


def draw_group(
    report: Report, axes: Axes, numbers: list[int], bars: dict[Key, Bar], form: Callable[[float], str], slots: int
) -> None:
    """Draw the bars of a few comparisons, each with its name below, in a panel with room for `slots`."""
    labels = {key: form(bar[0]) for key, bar in bars.items()}
    draw_panel(report, axes, numbers, bars, labels, "not measured", NARROW / 2.3 / slots, dashes=False)
    axes.set_xlim(-0.5, slots - 0.5)
    names = [name_below(report, number) for number in numbers]
    axes.set_xticks(range(len(numbers)), names, size=NAME_SIZE)


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
