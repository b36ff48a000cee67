"""Bar charts with a group of bars for every comparison, and sentences on them."""

import statistics
import textwrap
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..analysis.explained import NOT_YET
from .comparisons import gap_text, middle_run, ok_runs, timed_runs
from .layout import (
    EXAMPLES,
    MANY,
    NARROW,
    chart_text,
    most_compared,
    panel_rows,
    shown_in,
    start_chart,
    wrapped_name,
    write_gap,
    write_label,
)
from .report import Bar, Key, Report, Unit
from .style import BOX, GAP_GREY, INTERVAL_GREY, PRECISIONS, UNPAIRED_MARK, bar_style, part_patches, precision_patches
from .verdicts import mark_of
from .words import short, span

ONE_COLUMN = 4  # comparisons with stacked bars that stand below each other
WIDTH_OF_LETTER = (0.0098, 0.0225)  # of the axes of a chart with one column, with two
Form = Callable[[float], str]  # from a number to its text
Read = Callable[[dict], list[float]]


def pool(report: Report, read: Read, height: Callable = statistics.median) -> dict[Key, Bar]:
    """Return {(comparison number, precision): (height, smallest, largest, n)} of the numbers `read(record)` lists."""
    pooled = {}
    for number, group in report.charted_groups:
        for precision in PRECISIONS:
            values = [value for record in timed_runs(group, precision) for value in read(record)]
            if values:
                pooled[number, precision] = (height(values), min(values), max(values), len(values))
    return pooled


def values_of(field: str, scale: float = 1) -> Read:
    """Return a reader of one field for pool()."""
    return lambda record: [] if record[field] is None else [record[field] / scale]


def with_shares(title: str, report: Report, bars: dict[Key, Bar]) -> str:
    """Return a title with what share of fp32's height each precision has, over all comparisons."""
    texts = []
    for precision in list(PRECISIONS)[1:]:
        pairs = [(bars.get((number, precision)), bars.get((number, "fp32"))) for number in report.charted]
        shares = [own[0] / base[0] for own, base in pairs if own and base and base[0]]
        if shares:
            texts.append(f"{precision} {span([100 * share for share in shares], '{:.0f}')}%")
    return f"{title}: {', '.join(texts)} of fp32's" if texts else title


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
    dashes: bool = True,
) -> dict[Key, tuple[float, float]]:
    """Draw the bars of some comparisons, each `inches` wide, and return {bar: (x, width)}.

    Every comparison has a place for each precision, a dash where it was not run; without `dashes` only for its own.
    """
    names = [name for name in PRECISIONS if any(report.runs(number, name) for number in panel)]
    here = [key for key in bars if key[0] in panel]
    longest = max((len(line) for key in here for line in labels[key].split("\n")), default=0)
    crowded = inches / len(names) < max(0.36, 0.075 * longest)
    two_lines = any("\n" in label for label in labels.values())
    upright = {"rotation": 90, "va": "bottom"} if crowded else {}
    width = 0.86 / len(names)
    top = max([bars[key][2] for key in here], default=0.8)
    places = {}
    for position, number in enumerate(panel):
        own = names if dashes else shown_in(report, number)
        for slot, precision in enumerate(own):
            x = position + (slot - (len(own) - 1) / 2) * width
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


def failed_beside_others(group: dict) -> list[str]:
    """Return the precisions of which some runs ended well and some did not, such as "tf32: oom (1 of 3)"."""
    some = [name for name, runs in group["runs"].items() if ok_runs(group, name) and gap_text(runs)]
    return [f"{name}: {gap_text(group['runs'][name])}" for name in some]


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


def gap_line(text: str) -> str:
    """Return a reason in one short line."""
    return chart_text(textwrap.shorten(text, 56, placeholder="..."))


def text_colour(colour: str) -> str:
    """Return black or white, whichever is legible on a colour such as "#332288"."""
    red, green, blue = bytes.fromhex(colour[1:])
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else "white"


def draw_stack(
    axes: Axes, row: int, parts: dict[str, float], styles: dict[str, tuple[str, str]], letter: float, form: Form
) -> None:
    """Draw a horizontal bar of stacked parts, with the figure of each part that is wide enough for its letters."""
    foot = 0.0
    for part, amount in parts.items():
        if not amount:
            continue
        colour, hatch = styles[part]
        axes.barh(row, amount, 0.78, foot, color=colour, hatch=hatch, edgecolor="#777777", linewidth=0.4)
        text = form(amount)
        if amount > letter * len(text):
            box = {**BOX, "facecolor": colour} if hatch else None  # no figure on a pattern
            style: dict[str, Any] = {"ha": "center", "va": "center", "size": 8.5, "color": text_colour(colour)}
            axes.text(foot + amount / 2, row, text, bbox=box, **style)
        foot += amount


def stack_chart(
    report: Report,
    title: str,
    about: str,
    styles: dict[str, tuple[str, str]],
    stacks: dict[Key, dict[str, float]],
    labels: dict[Key, str],
    gaps: dict[Key, str],
    form: Form = short,
) -> Figure:
    """Return a chart with a panel per comparison and a horizontal bar of stacked parts per precision.

    A bar has its label behind it, and a precision without a bar the reason for that. Comparisons that were only timed
    have no panel. Of more than MANY comparisons EXAMPLES are drawn. Up to ONE_COLUMN stand below each other, others in
    two columns.
    """
    most = MANY if len(report.charted) <= MANY else EXAMPLES
    only_timed = {number for (number, _), why in gaps.items() if why == NOT_YET} - {number for number, _ in stacks}
    chosen = most_compared(report, [number for number in report.charted if number not in only_timed], most)
    numbers = [number for number in chosen if shown_in(report, number)]
    used = {part for (number, _), parts in stacks.items() if number in numbers for part in parts if parts[part]}
    styles = {part: style for part, style in styles.items() if part in used}
    columns = 1 if len(numbers) <= ONE_COLUMN else 2
    bands = [numbers[start : start + columns] for start in range(0, len(numbers), columns)]
    bars = [max(len(shown_in(report, number)) for number in band) for band in bands]
    heights = [0.72 + 0.21 * count for count in bars]
    if len(numbers) < len(report.charted):
        about += f"; {len(numbers)} of {len(report.charted)} comparisons"
    figure, (part,) = start_chart(report, title, [sum(heights)], part_patches(styles), about, numbers, NARROW)
    grid = part.subplots(len(bands), columns, height_ratios=heights, squeeze=False)
    band_of = {number: band for band in bands for number in band}
    for axes, number in zip_longest(grid.flat, numbers):
        if number is None:
            axes.set_axis_off()
        else:
            draw_stacks(report, axes, number, styles, stacks, labels, gaps, columns, form)
            axes.set_ylim(max(len(shown_in(report, other)) for other in band_of[number]) - 0.4, -0.6)
            heading = "\n".join(wrapped_name(report.comparisons[number]["title"], (90, 40)[columns - 1]))
            axes.set_title(chart_text(heading), size=9.5, loc="left", weight="bold")
    return figure


def draw_stacks(
    report: Report,
    axes: Axes,
    number: int,
    styles: dict[str, tuple[str, str]],
    stacks: dict[Key, dict[str, float]],
    labels: dict[Key, str],
    gaps: dict[Key, str],
    columns: int,
    form: Form,
) -> None:
    """Draw the stacked bars of a comparison from above, or why there is none. The chart has `columns` of panels."""
    names = shown_in(report, number)
    sums = [sum(parts.values()) for key, parts in stacks.items() if key[0] == number]
    far = max(sums, default=1) * (1.22, 1.58)[columns - 1]  # room for the labels
    for row, precision in enumerate(names):
        key = (number, precision)
        if key in stacks:
            draw_stack(axes, row, stacks[key], styles, far * WIDTH_OF_LETTER[columns - 1], form)
            label = labels[key] + mark_of(report, *key)
            write_label(axes, label, sum(stacks[key].values()), row, (5, 0), ha="left", va="center", size=9, bbox=BOX)
        else:
            text = gap_text(report.runs(*key)) or gaps.get(key, "not measured")
            axes.text(0.01 * far, row, gap_line(text), va="center", size=8.5, color=GAP_GREY)
    axes.set_xlim(0, far)
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=bool(sums), axis="x")
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter("{x:,.10g}" if sums else "")


def gap_reasons(report: Report, reason: str) -> dict[Key, str]:
    """Return {(comparison number, precision): why a figure of its runs is missing}, as the records say."""
    return {(number, record["precision"]): record[reason] for number, record in report.timed if record[reason]}


def middle_runs(report: Report, size: Callable[[dict], Any]) -> dict[Key, dict]:
    """Return {(comparison number, precision): the middle of the ok runs} where there is one."""
    found = {}
    for number, group in report.charted_groups:
        for precision in PRECISIONS:
            if run := middle_run(ok_runs(group, precision), size):
                found[number, precision] = run
    return found


def values_in_words(report: Report, values: dict[Key, Bar], unit: Unit) -> str:
    """Return the values of a bar chart as its alternative text."""
    texts = []
    for number in dict.fromkeys(number for number, _ in values):
        group = report.comparisons[number]
        words = [f"{name} {short(bar[0])}" for (own, name), bar in values.items() if own == number]
        texts.append(f"{group['title']}, {unit(group)}: {', '.join(words)}")
    return f"{'; '.join(texts)}."
