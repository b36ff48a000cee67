"""Section: how far each precision ends from fp32, beside the margin of its metric."""

from collections import Counter
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator

from ..analysis.equivalence import BETTER, EQUIVALENT, NOT_WORSE, UNKNOWN, WORSE
from .layout import NARROW, most_compared, shown_in, start_chart, wrapped_name
from .quality import difference_text, margin_text, metric_of, outcome_in_words, quality_against_fp32
from .report import Report
from .section import Section
from .speedup_figure import HEADING, ROW, SECOND_LINE, draw_heading, write_columns
from .style import DARK_GREY, GAP_GREY, PRECISIONS
from .words import count

TITLE = "Quality beside fp32"
ABOUT = """Differences of the last metric over equal seeds. The bar is the 90% interval. *Equivalent*: it lies inside
the margin. *Not worse*: only its left end, the worse one, does. Both take five seeds."""

LETTERS = 64  # of a line of a name
DRAWN = 8  # comparisons
LEAST, WIDEST = 1.3, 6.0  # margins on either side of 0: what lies beyond stands at the edge
BAND = "#e8e8e8"
COLUMNS = {"difference (90% interval)": 0.58, "seeds": 0.7, "outcome": 1.0}  # name: right end


class Row(NamedTuple):
    """A precision of a comparison, with its difference from fp32 in margins: positive is better."""

    precision: str
    mean: float
    low: float
    high: float
    difference: str
    seeds: int
    outcome: str

    @property
    def texts(self) -> tuple[str, str, str]:
        """What stands in the columns beside it."""
        return self.difference, str(self.seeds), self.outcome


def rows_of(group: dict) -> list[Row]:
    """Return a row for each precision with an interval and a margin."""
    _, better = metric_of(group)
    rows = []
    for precision in PRECISIONS:
        found = quality_against_fp32(group, precision) if precision != "fp32" else None
        if not found or found["low90"] is None or not found["margin"]:
            continue
        sign = 1 if better == "higher" else -1
        mean, *ends = (sign * found[name] / found["margin"] for name in ("difference", "low90", "high90"))
        outcome = outcome_in_words(group, precision, found).split(",")[0]  # the table says why it cannot be told
        rows.append(Row(precision, mean, min(ends), max(ends), difference_text(found), found["seeds"], outcome))
    return rows


def name_lines(group: dict) -> list[str]:
    """Return the name of a comparison with its metric and the margin, in lines that fit over the plot."""
    metric, _ = metric_of(group)
    found = quality_against_fp32(group, "fp32")
    margin = f", margin {margin_text(found)}" if found and found["margin"] else ""
    return wrapped_name(f"{group['title']} · {metric}{margin}", LETTERS)


def finding_of(rows: list[Row]) -> str:
    """Return the title: how many precisions have each outcome."""
    outcomes = Counter(row.outcome for row in rows)
    parts = [f"{outcomes[word]} {word}" for word in (BETTER, EQUIVALENT, NOT_WORSE, WORSE, UNKNOWN) if outcomes[word]]
    return f"{TITLE}: {', '.join(parts)}"


def draw_row(axes: Axes, y: float, row: Row, widest: float) -> None:
    """Draw a difference with its interval. A mean beyond the axis is an arrow at its edge."""
    colour = PRECISIONS[row.precision].colour
    mean, *ends = (min(max(value, -widest), widest) for value in (row.mean, row.low, row.high))
    axes.plot(ends, [y, y], color=colour, linewidth=2, solid_capstyle="butt")
    marker = PRECISIONS[row.precision].marker if mean == row.mean else "<" if mean < 0 else ">"
    axes.plot(mean, y, marker=marker, color=colour, markersize=6.5, clip_on=False)


def draw_differences(section: Section, report: Report, groups: dict[int, list[Row]]) -> None:
    """Draw a row for every precision of some comparisons, with its numbers in columns at the right."""
    every = [row for rows in groups.values() for row in rows]
    titles = {number: name_lines(report.comparisons[number]) for number in groups}
    above = {number: SECOND_LINE * (len(lines) - 1) for number, lines in titles.items()}
    size = sum(HEADING + above[number] + len(rows) for number, rows in groups.items())
    handles = [
        Line2D([], [], color=DARK_GREY, linewidth=2, label="90% interval"),
        Patch(facecolor=BAND, label="within the margin"),
    ]
    about = "last metric beside that of fp32 over equal seeds, in margins; to the right is better"
    heights = [0.8 + ROW * size]
    unmarked: list[int] = []  # quality has all runs, slowed ones as well
    figure, (part,) = start_chart(report, finding_of(every), heights, handles, about, unmarked, width=NARROW)
    plot, columns = part.subplots(1, 2, width_ratios=[1, 1.05], sharey=True)
    columns.set_axis_off()
    columns.set_xlim(0, 1)
    write_columns(columns, -0.95, COLUMNS, COLUMNS, color=GAP_GREY)
    widest = min(WIDEST, 0.2 + max(LEAST, *(abs(end) for row in every for end in (row.low, row.high))))
    ticks = {}
    y = 0.0
    for number, rows in groups.items():
        y += above[number]
        draw_heading(plot, y, titles[number])
        for row in rows:
            y += 1
            ticks[y] = row.precision
            draw_row(plot, y, row, widest)
            write_columns(columns, y, row.texts, COLUMNS)
        y += HEADING
    plot.axvspan(-1, 1, color=BAND, zorder=0)
    plot.axvline(0, color="black", linewidth=1.2, zorder=1)
    plot.set_ylim(y - 0.6, -1.3)
    plot.set_yticks(list(ticks), list(ticks.values()))
    plot.set(xlim=(-widest, widest), xlabel="margins")
    plot.xaxis.set_major_locator(MultipleLocator(1 if widest < 4 else 2))
    plot.grid(axis="x")
    plot.grid(visible=False, axis="y")
    section.chart(figure, "quality", in_words(report, groups))


def in_words(report: Report, groups: dict[int, list[Row]]) -> str:
    """Return the differences from fp32 as a sentence for each comparison."""
    texts = []
    for number, rows in groups.items():
        group = report.comparisons[number]
        words = [f"{row.precision} {row.difference}, {row.outcome}, {count(row.seeds, 'seed')}" for row in rows]
        texts.append(f"{group['title']}, {metric_of(group)[0]} beside fp32: {'; '.join(words)}.")
    return " ".join(texts)


def section(report: Report) -> Section:
    """Return the chart of the differences, where a precision has three seeds in common with fp32."""
    section = Section(TITLE, ABOUT)
    rows = {number: rows_of(group) for number, group in report.charted_groups if "fp32" in shown_in(report, number)}
    numbers = [number for number, found in rows.items() if found]
    if report.on_cpu or not numbers:
        return section
    drawn = most_compared(report, numbers, DRAWN)
    draw_differences(section, report, {number: rows[number] for number in drawn})
    if len(drawn) < len(numbers):
        section.say(f"{len(drawn)} of {count(len(numbers), 'comparison')} are drawn; the table has all.")
    return section
