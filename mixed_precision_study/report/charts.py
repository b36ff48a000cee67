"""The look of every chart, charts as pictures (PNG for notebooks, SVG for the page), and two kinds
of charts.

Ratios are dots: a panel for each model, a row for each way to run it, and one log axis with a line
at 1 for all. A bar would begin at zero, where no ratio can be, so that a gain of 2% would look
nearly as long as one of four times. Bars carry seconds and GiB, which do begin at zero.
"""

import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import PIL.Image
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox
from pandas import DataFrame

from .words import outcome_words, plain, short

# the page sets them anew for its dark mode
INK, SOFT, LINE, GROUND, PAPER = "#1f2328", "#59636e", "#d1d9e0", "#e8ebef", "#ffffff"
THEME = {
    INK: "ink",
    "#000000": "ink",
    SOFT: "soft",
    LINE: "line",
    GROUND: "ground",
    PAPER: "paper",
}
PANEL = 3.3  # inches: three panels fill a page of 1,072 px, one fills a phone
GAP = 0.3  # inches between panels
ROW = 3 * PANEL + 2 * GAP
DOTS = 120  # per inch of a PNG
COLOURS_OF_A_PNG = 64  # more make the file larger
PIXELS = 100  # per inch, at which a PNG is shown
STYLE = "mixed_precision_study.report.charts"  # charts.mplstyle beside this file


@contextmanager
def chart_style() -> Iterator[None]:
    """Draw charts in the style of the report; use it as a context or as a decorator."""
    with plt.rc_context({"figure.max_open_warning": 0}), warnings.catch_warnings():
        # scripts of names
        warnings.filterwarnings("ignore", "Glyph|Matplotlib currently does not support")
        plt.style.use(STYLE)
        yield


def picture_of(figures: list[Figure]) -> bytes:
    """Return figures as one PNG on white, in rows as wide as a page. Few colours keep it small."""
    images = []
    for figure in figures:
        opened = io.BytesIO()
        # some labels reach out
        around = Bbox.from_bounds(-GAP / 2, -GAP / 2, *(figure.get_size_inches() + GAP))
        with chart_style():
            figure.savefig(opened, format="png", dpi=DOTS, bbox_inches=around)
        # what is laid out stays, because a layout takes as long as a drawing
        figure.set_layout_engine("none")
        images.append(PIL.Image.open(opened).convert("RGB"))
    wide = max(image.width for image in images)
    columns = min(len(images), max(1, round((ROW + GAP) * DOTS) // wide))
    rows = [images[start : start + columns] for start in range(0, len(images), columns)]
    tops = list(accumulate((max(image.height for image in row) for row in rows), initial=0))
    whole = PIL.Image.new("RGB", (columns * wide, tops[-1]), PAPER)
    for row, top in zip(rows, tops, strict=False):
        for place, image in enumerate(row):
            whole.paste(image, (place * wide, top))
    small = io.BytesIO()
    palette = whole.quantize(COLOURS_OF_A_PNG, dither=PIL.Image.Dither.NONE)
    palette.save(small, format="png", optimize=True)
    return small.getvalue()


def drawing_of(figure: Figure, name: str) -> str:
    """Return a figure as an SVG that stands in a page: with the page's colours and width, and
    ids of its own. What it shows is said once, by what holds all drawings of a chart.
    """
    opened = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with chart_style():
        figure.savefig(opened, format="svg", transparent=True, metadata=nothing)

    def of_the_page(tag: re.Match) -> str:
        text = re.sub(r"'Arial'[^;\"]*", "var(--font, sans-serif)", tag[0])
        text = re.sub(r"(\.\d\d)\d+", r"\1", text)
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
        return re.sub("|".join(THEME), lambda found: f"var(--{THEME[found[0]]}, {found[0]})", text)

    text = opened.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(
        r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>|\n\s*", "", text, flags=re.DOTALL
    )
    # the tags alone: names and numbers of labels stay what they are
    text = re.sub(r"<[^>]+>", of_the_page, text)
    text = re.sub(r' (width|height)="[^"]*pt"', "", text, count=2)
    return text.replace("<svg ", '<svg aria-hidden="true" ', 1)


LINE_HIGH, HEAD, FOOT = 0.22, 0.62, 0.3  # inches of a line of text, above a panel, below it
LETTER = 0.088  # inches of a letter at most
LONG_LINE = 44  # letters of a line that is as wide as a panel
SHORTEST_BARS = 0.3  # inches that bars have beside their names
RATIO_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)
LEAST_RATIO, MOST_RATIO = 0.8, 1.6  # the axis reaches at least so far
LONG_LABEL = 0.4  # of the axis
# what stands for a marker in a sentence
SIGNS = dict(zip("vDosPX^d", "▼◆●■✚✖▲♦", strict=True))


def framed(
    title: str, about: str, inches: float, foot: float = FOOT, ends: tuple[float, float] = (0, 1)
) -> tuple[Figure, Axes]:
    """Return a figure as wide as a panel with its head, and axes below it.

    inches: height of the axes
    foot: inches that are left below them
    ends: of the axes, as shares of the width
    """
    about = textwrap.fill(about, LONG_LINE)
    high = HEAD + LINE_HIGH * about.count("\n") + inches + foot
    figure = plt.figure(figsize=(PANEL, high))
    figure.text(0, 1 - 0.02 / high, title, size=12, weight="bold", va="top")
    figure.text(0, 1 - 0.26 / high, about, color=SOFT, linespacing=1.25, va="top")
    return figure, figure.add_axes((ends[0], foot / high, ends[1] - ends[0], inches / high))


def dots(rows: DataFrame) -> list[Figure]:
    """Draw ratios, a figure for each `panel` and task. All axes are alike, so that panels can be
    compared by eye.

    rows has one row for each dot, with these columns:

    panel, about: name of the model, and what is trained
    row: the way it is run
    arm, colour, mark: what is compared, and its look
    ratio: how many times as fast it is as its base
    label, strong: what stands beside the dot, and whether that is bold
    low, high: ends of its interval or of the range of its machines, NaN where there is none
    ranged: whether these are such a range
    seconds, takes: seconds at the right, NaN where none are shown, and their heading
    """
    ends = rows[["ratio", "low", "high"]]
    least = min(LEAST_RATIO, 0.95 * ends.min(axis=None))
    share = rows.label.str.len() * LETTER / PANEL + 0.05  # of the axis that a label takes
    share = share.where(share < LONG_LABEL, 0.05)  # a longer one stands at the left of its dot
    # a label that would cross the line at 1 begins there
    reach = least * (ends.max(axis=1).clip(lower=1) / least) ** (1 / (1 - share))
    most = max(MOST_RATIO, reach.max())
    least = min(least, most**-0.22)  # room for the word at the left of 1
    with chart_style():
        panels = rows.groupby(["panel", "about"], sort=False)
        return [draw_dots(panel, (least, most)) for _, panel in panels]


def ratio_rows(bars: DataFrame) -> DataFrame:
    """Return the rows of dots(): every arm of some bars_of() beside the fair base of its
    comparison.

    Rows of a model stand in the order of their base's seconds, so that each usually adds a setting
    to the one above.
    """
    found = bars[bars.ratio.notna() & ~bars.is_base]
    found = found.assign(
        panel=found.model,
        about=found.task,
        row=found.run,
        ranged=found.low.isna() & (found.hosts > 1),
        seconds=found.base_seconds,
        takes=found.base_short + ", an epoch",
    )
    panels = list(found.panel.unique())
    found = found.sort_values("place").sort_values("seconds", ascending=False, kind="stable")
    return drawn_as(found, panels)


def drawn_as(rows: DataFrame, panels: list[str]) -> DataFrame:
    """Return rows of several arms with label and ends, panel by panel in the given order.

    The ends are those of the interval, or where a ratio is `ranged` those of its machines.
    """
    rows = rows.assign(
        label=rows.short + rows.ratio.map(" {:.2f}×".format),
        low=rows.low.astype(float).where(~rows.ranged, rows.lowest),
        high=rows.high.astype(float).where(~rows.ranged, rows.highest),
    )
    return rows.sort_values("panel", key=lambda names: names.map(panels.index), kind="stable")


def dots_note(rows: DataFrame) -> str:
    """Return what the marks of dots() mean in one line of Markdown; it names only what is there,
    and no arm where arms share marks, because each dot is named.
    """
    named = (rows.mark.map(SIGNS) + " " + rows.short).map(plain).unique()
    if len(named) > len(SIGNS):
        named = ()
    marks = {
        "line: 95% interval": rows.low.notna() & ~rows.ranged,
        "pale line: slowest to fastest machine": rows.ranged,
        "**bold**: the fastest of its row beyond doubt, as its interval overlaps no other's": (
            rows.strong
        ),
        "grey: no clear difference, as the line includes 1": rows.low.le(1) & rows.high.ge(1),
        "grey without a line: too few runs to tell": rows.low.isna(),
    }
    return " · ".join([*named, *(text for text, of in marks.items() if of.any()), "log axis"])


def draw_dots(panel: DataFrame, limits: tuple[float, float]) -> Figure:
    """Draw one model: its name, what the dots are, and for each row its name, the base's
    seconds, and the dots.
    """
    panel = panel.copy()
    panel[["side", "start"]] = [place_of_label(dot, limits) for dot in panel.itertuples()]
    panel["taken"] = 2 - panel.side.abs()  # a label that has no room beside its dot takes a line
    lines = 1.5 * panel.row.nunique() + panel.taken.sum()
    figure, axes = framed(panel.panel.iloc[0], panel.about.iloc[0], LINE_HIGH * (lines + 1))
    axes.set(xscale="log", xlim=limits, ylim=(lines, -1))
    prepare_ratio_axis(axes, limits)
    across: dict = {"transform": axes.get_yaxis_transform(), "va": "center"}
    axes.text(1, -0.4, panel.takes.iloc[0], ha="right", color=SOFT, **across)
    at = 0.6
    for name_of_row, row in panel.groupby("row", sort=False):
        name = textwrap.shorten(name_of_row, LONG_LINE, placeholder="…")
        takes = f"{short(row.seconds.iloc[0])} s" if row.seconds.notna().iloc[0] else ""
        # the two must not touch
        axes.text(0, at, name, size=size_within(LONG_LINE - len(takes), name), **across)
        axes.text(1, at, takes, ha="right", color=SOFT, **across)
        axes.vlines(1, at + 0.4, at + row.taken.sum() + 0.6, color=SOFT, linewidth=1)
        for dot in row.itertuples():
            at += dot.taken
            draw_dot(axes, dot, at)
        at += 1.5
    return figure


def size_within(letters: int, text: str) -> float:
    """Return the size at which a text is at most as wide as so many letters."""
    return min(1, letters / (len(text) or 1)) * plt.rcParams["font.size"]


def prepare_ratio_axis(axes: Axes, limits: tuple[float, float]) -> None:
    """Give a panel its line at 1, the ground of what is slower, the words beside the line, and
    its ticks.
    """
    axes.axvspan(limits[0], 1, color=GROUND, linewidth=0)
    axes.text(0.97, -0.4, "slower", ha="right", va="center", color=SOFT)
    axes.text(1.03, -0.4, "faster", va="center", color=SOFT)
    seen = [tick for tick in RATIO_TICKS if limits[0] <= tick <= limits[1]]
    write_ticks(axes, sorted(seen, key=lambda tick: abs(math.log(tick))), "{:g}×")
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def write_ticks(axes: Axes, ticks: Iterable[float], form: str) -> None:
    """Write those of the ticks below a log axis that have room beside the ones before them."""
    least, most = axes.get_xlim()
    far = math.log(most / least) / 7
    shown: list = []
    for tick in ticks:
        if all(abs(math.log(tick / other)) > far for other in shown):
            shown.append(tick)
    axes.minorticks_off()
    axes.set_xticks(shown, [form.format(tick) for tick in shown])


def place_of_label(dot: Any, limits: tuple[float, float]) -> tuple[int, float]:
    """Return where the label of a dot has room on an axis: (1, its left end) at the dot's right,
    (-1, its right end) at its left, or (0, 1) where neither has. A label does not cross the 1.
    """
    least, most = limits
    ends = pd.Series([dot.low, dot.ratio, dot.high], dtype=float)
    left, right = ends.min(), ends.max()
    # factor from end to end of a label
    wide = (most / least) ** (len(dot.label) * LETTER / PANEL)
    if right * wide < most:
        return 1, 1 if right < 1 < right * wide else right
    start = 1 if left / wide < 1 < left else left
    return (-1, start) if start / wide > least else (0, 1)


def draw_dot(axes: Axes, dot: Any, place: float) -> None:
    """Draw a ratio with its interval and its number, which the line at 1 does not cross. A label
    that has no room beside its dot stands on the line above; place_of_label() gave side and start.

    A range of machines is paler than an interval.
    """
    colour = dot.colour
    if pd.notna(dot.low):
        axes.hlines(
            place, dot.low, dot.high, color=colour, linewidth=2.4, alpha=0.5 if dot.ranged else 1
        )
    axes.plot(
        dot.ratio, place, dot.mark, color=colour, markersize=7, gid=f"dot {dot.arm} {dot.row}"
    )
    axes.annotate(
        dot.label,
        (dot.start, place) if dot.side else (axes.get_xlim()[1], place - 1),
        (6 * dot.side, 0),
        textcoords="offset points",
        ha="left" if dot.side > 0 else "right",
        va="center",
        size=size_within(LONG_LINE, dot.label),
        weight="bold" if dot.strong else "normal",
        color=INK if dot.low > 1 or dot.high < 1 else SOFT,
        gid=f"label {dot.arm} {dot.row}",
    )


def draw_bars(rows: DataFrame, parts: dict | None = None) -> Figure:
    """Draw horizontal bars of one model, which begin at zero: a heading for each comparison, and
    below it a bar for each arm.

    rows has one row for each bar, with these columns:

    name, task: name of the model, and what is trained
    comparison, run: number and heading of the comparison
    short, colour: name and colour of the arm
    value: length of the bar, NaN where there is none; with `parts` ({column: colour}), which are
        stacked, the length of each of them
    label, note: texts at the right
    low, high: ends of a thin line, NaN where there is none; without such columns there is none
    """
    heads = ~rows.comparison.duplicated()
    left, label, note = (rows[name].str.len().max() * LETTER for name in ("short", "label", "note"))
    label_end = PANEL - (note + 0.15 if note else 0)
    bars_end = label_end - label - 0.08
    above = int(left + SHORTEST_BARS > bars_end)  # long names stand above their bars
    left *= 1 - above
    y = (1 + above + 1.3 * heads).cumsum()  # a heading stands above the bars of each comparison
    ends = (left + 0.1) / PANEL, max(left + SHORTEST_BARS, bars_end) / PANEL
    figure, axes = framed(
        rows.name.iloc[0],
        rows.task.iloc[0],
        LINE_HIGH * y.max(),
        0.1 + LINE_HIGH * -(-len(parts or ()) // 2),  # a line for two parts of the legend
        ends,
    )
    lengths = rows[[*(parts or ["value"])]].astype(float).fillna(0)
    for part, start in (lengths.cumsum(axis=1) - lengths).items():
        colours = parts[part] if parts else rows.colour
        axes.barh(y, lengths[part], 0.72, start, color=colours, linewidth=0)
    most = lengths.sum(axis=1).max()
    if "low" in rows:
        axes.hlines(y, rows.low, rows.high, color=INK, linewidth=1.1)
        most = max(most, rows.high.max())
    axes.set(xlim=(0, most or 1), ylim=(y.max() + 0.6, 0.6))
    axes.set_axis_off()
    beside: dict = {"transform": axes.get_yaxis_transform(), "va": "center"}
    names, labels, notes = (
        (inch / PANEL - ends[0]) / (ends[1] - ends[0]) for inch in (0, label_end, PANEL)
    )
    for row, place in zip(rows.itertuples(), y, strict=True):
        axes.text(names, place - above, row.short, size=size_within(LONG_LINE, row.short), **beside)
        axes.text(labels, place, row.label, ha="right", **beside)
        axes.text(notes, place, row.note, ha="right", color=SOFT, **beside)
    for place, text in zip(y[heads] - 1 - above, rows.run[heads], strict=True):
        axes.text(names, place, textwrap.shorten(text, LONG_LINE, placeholder="…"), **beside)
    if parts:
        figure.legend(
            handles=[Patch(color=colour, label=part) for part, colour in parts.items()],
            loc="lower left",
            ncols=2,
            borderpad=0,
            handlelength=1.2,
        )
    return figure


def second_bars(rows: DataFrame) -> DataFrame:
    """Return the rows of draw_bars() for the seconds of some bars_of(): what failed says so."""
    lasted = rows.seconds.astype(float)
    spread = rows.seconds_high > rows.seconds_low
    return rows.assign(
        name=rows.model,
        task=rows.task + ": time of an epoch",
        value=lasted,
        label=lasted.map(short).add(" s").where(lasted.notna(), rows.status.map(outcome_words)),
        low=rows.seconds_low.astype(float).where(spread),
        high=rows.seconds_high.astype(float).where(spread),
    )


def memory_bars(rows: DataFrame) -> DataFrame:
    """Return the rows of draw_bars() for the peak memory of some bars_of(), where it is known."""
    known = rows.dropna(subset="gib").drop(columns=["low", "high"])  # of ratios
    gib = known.gib.astype(float)
    return known.assign(
        name=known.model,
        task=known.task + ": peak memory",
        value=gib,
        label=gib.map("{:,.2f} GiB".format),
        note="",
    )
