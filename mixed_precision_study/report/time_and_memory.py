"""The bars of time and of memory, side by side. They are a part of the section on speed-up."""

from collections.abc import Callable
from functools import partial

from matplotlib.axes import Axes

from .bars import draw_panel, pool
from .epoch_time import per_sample, times_of
from .layout import NARROW, chart_text, most_compared, shown_in, start_chart
from .report import Bar, Key, Report
from .section import Section
from .style import PRECISIONS, precision_patches
from .words import gibibytes, short

MOST = 6  # comparisons; more are not legible
IN_A_ROW = 3
INCHES = 1.95  # of a row


def draw_time_and_memory(section: Section, report: Report) -> None:
    """Draw the time of an epoch on the left and the peak of memory on the right, a group of bars per comparison."""
    numbers = most_compared(report, MOST)
    names = [name for name in PRECISIONS if any(name in shown_in(report, number) for number in numbers)]
    samples = per_sample(report, numbers)
    times = pool(report, partial(times_of, per_sample=samples))
    rows = [numbers[start : start + IN_A_ROW] for start in range(0, len(numbers), IN_A_ROW)]
    about = "microseconds per sample" if samples else "seconds per epoch"
    about += " (median; grey: shortest to longest) and peak of PyTorch's memory"
    if len(numbers) < len(report.charted):
        about += f"; {len(numbers)} of {len(report.charted)} comparisons"
    lines = [max(len(report.comparisons[number]["lines"]) for number in row) for row in rows]
    heights = [INCHES + 0.14 * max(0, count - 2) for count in lines]
    patches = precision_patches(names)
    figure, (part,) = start_chart(report, "Time and memory", [sum(heights)], patches, about, numbers, NARROW)
    grid = part.subplots(len(rows), 2, height_ratios=heights, squeeze=False)
    for (left, right), row in zip(grid, rows, strict=True):
        draw_group(report, left, row, times, short)
        draw_group(report, right, row, report.peaks, gibibytes)
        left.set_ylabel("µs per sample" if samples else "seconds per epoch")
        right.set_ylabel("GiB")
    section.chart(figure, "time_and_memory", alternative_text(report, numbers, times, samples))


def draw_group(
    report: Report, axes: Axes, numbers: list[int], bars: dict[Key, Bar], form: Callable[[float], str]
) -> None:
    """Draw the bars of a few comparisons, each with its name below."""
    labels = {key: form(bar[0]) for key, bar in bars.items()}
    draw_panel(report, axes, numbers, bars, labels, "not measured", NARROW / 2.3 / IN_A_ROW)
    axes.set_xlim(-0.5, IN_A_ROW - 0.5)
    ticks = [chart_text("\n".join(report.comparisons[number]["lines"])) for number in numbers]
    axes.set_xticks(range(len(numbers)), ticks)


def alternative_text(report: Report, numbers: list[int], times: dict[Key, Bar], samples: bool) -> str:
    """Return time and memory of each bar as a text."""
    texts = []
    for key in times:
        if key[0] in numbers:
            memory = f", {gibibytes(report.peaks[key][0])} GiB" if key in report.peaks else ""
            texts.append(f"{report.comparisons[key[0]]['title']}, {key[1]}: {short(times[key][0])} {'µs' if samples else 's'}{memory}.")
    return " ".join(texts)
