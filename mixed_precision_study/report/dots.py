"""Ratios as dots: a panel for each model, a row for each way to run it, and one log axis with a
line at 1 for all.

A bar would begin at zero, where no ratio can be, so that a gain of 2% would look nearly as long as
one of four times.
"""

import math
import textwrap
from collections.abc import Iterable
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .charts import GROUND, INK, PANEL, SOFT, chart_style
from .words import short

MARKERS = "osDvP^Xd"  # of the arms that are compared, in their order
SIZE = 10.5  # points, which is 11 pixels where three panels share a page of 832
LINE_HIGH, HEAD, FOOT = 0.22, 0.62, 0.3  # inches of a line of text, above the rows, below them
LETTERS = 42  # of a row's name
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)
LEAST, MOST = 0.8, 1.6  # the axis reaches at least so far
LABEL_ROOM = 1.5  # factor of the axis that a label takes at the right of the largest ratio


def dots(rows: pd.DataFrame) -> list[Figure]:
    """Draw ratios, a figure for each `panel`. The axes of all are alike, so that panels can be
    compared by eye.

    rows has one row for each dot, with these columns:

    panel, about: name of the model, and what is trained
    row: the way it is run
    arm, colour, mark: what is compared, and its look
    ratio: how many times as fast it is as its base
    label: what stands beside the dot
    low, high: ends of its interval or of the range of its hosts, NaN where there is none
    ranged: whether these are such a range
    seconds, takes: seconds at the right, NaN where none are shown, and their heading
    """
    ends = rows[["ratio", "low", "high"]]
    least = min(LEAST, 0.95 * ends.min(axis=None))
    most = max(MOST, LABEL_ROOM * ends.max(axis=None))
    with chart_style():
        return [draw_panel(panel, (least, most)) for _, panel in rows.groupby("panel", sort=False)]


def ratio_rows(bars: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of dots(): every arm of some bars_of() beside the fair base of its
    comparison.

    Rows of a model stand in the order of their base's seconds, so that each usually adds a setting
    to the one above.
    """
    found = bars[bars.ratio.notna() & ~bars.is_base]
    base = bars.set_index(["comparison", "arm"]).seconds
    keys_of_base = zip(found.comparison, found.baseline, strict=True)
    ways = zip(found.way, found.more, strict=True)
    found = found.assign(
        panel=found.model,
        about=found.task,
        row=[", ".join(filter(None, texts)) for texts in ways],
        ranged=found.low.isna() & (found.hosts > 1),
        seconds=[base.get(key) for key in keys_of_base],
        takes=found.base_short + " takes",
    )
    panels = list(found.panel.unique())
    arms = found.sort_values("place").arm.unique()
    found = found.sort_values("place").sort_values("seconds", ascending=False, kind="stable")
    return drawn_as(found, arms, panels)


def drawn_as(rows: pd.DataFrame, arms: Iterable[str], panels: list[str]) -> pd.DataFrame:
    """Return rows of several arms with mark, label and ends, panel by panel in the given order.

    The ends are those of the interval, or where a ratio is `ranged` those of its hosts.
    """
    marks = {arm: MARKERS[place % len(MARKERS)] for place, arm in enumerate(arms)}
    rows = rows.assign(
        mark=rows.arm.map(marks),
        label=rows.short + rows.ratio.map(" {:.2f}×".format),
        low=rows.low.astype(float).where(~rows.ranged, rows.lowest),
        high=rows.high.astype(float).where(~rows.ranged, rows.highest),
    )
    return rows.sort_values("panel", key=lambda names: names.map(panels.index), kind="stable")


def dots_note(rows: pd.DataFrame) -> str:
    """Return what the marks of dots() mean, as Markdown; it names only what is there."""
    texts = []
    if (rows.low.notna() & ~rows.ranged).any():
        texts.append("Lines are 95% intervals over processes.")
    if rows.ranged.any():
        texts.append("Pale lines reach from the slowest to the fastest host.")
    if (rows.low.isna() | (rows.low <= 1) & (rows.high >= 1)).any():
        texts.append("A number in grey has no interval, or one that includes 1.")
    return " ".join(texts)


def draw_panel(panel: pd.DataFrame, limits: tuple[float, float]) -> Figure:
    """Draw one model: its name, what the dots are, and for each row its name, the base's
    seconds, and the dots.
    """
    lines = panel.row.nunique() + len(panel)
    gaps = 0.5 * panel.row.nunique()
    about = textwrap.fill(str(panel.about.iloc[0]), 44)
    high = HEAD + LINE_HIGH * about.count("\n") + LINE_HIGH * (lines + gaps + 1) + FOOT
    figure = plt.figure(figsize=(PANEL, high))
    figure.text(0, 1 - 0.02 / high, panel.panel.iloc[0], size=12, weight="bold", va="top")
    figure.text(0, 1 - 0.26 / high, about, size=SIZE, color=SOFT, linespacing=1.25, va="top")
    inches = LINE_HIGH * (lines + gaps + 1)
    axes = figure.add_axes((0, FOOT / high, 1, inches / high))
    axes.set(xscale="log", xlim=limits, ylim=(lines + gaps, -1))
    prepare(axes, limits)
    beside = {"transform": axes.get_yaxis_transform(), "va": "center", "size": SIZE}
    axes.text(1, -0.4, panel.takes.iloc[0], ha="right", color=SOFT, **beside)
    at = 0.6
    for name_of_row, row in panel.groupby("row", sort=False):
        axes.text(0, at, textwrap.shorten(name_of_row, LETTERS, placeholder="…"), **beside)
        if pd.notna(seconds := row.seconds.iloc[0]):
            axes.text(1, at, f"{short(seconds)} s", ha="right", color=SOFT, **beside)
        axes.vlines(1, at + 0.4, at + len(row) + 0.6, color=SOFT, linewidth=1)
        for dot in row.itertuples():
            at += 1
            draw_dot(axes, dot, at)
        at += 1.5
    return figure


def prepare(axes: Axes, limits: tuple[float, float]) -> None:
    """Give a panel its line at 1, the ground of what is slower, the words beside the line, and
    its ticks.
    """
    axes.axvspan(limits[0], 1, color=GROUND, linewidth=0)
    axes.text(0.97, -0.4, "slower", ha="right", va="center", size=SIZE, color=SOFT)
    axes.text(1.03, -0.4, "faster", va="center", size=SIZE, color=SOFT)
    ticks = [tick for tick in TICKS if limits[0] <= tick <= limits[1]]
    far = math.log10(limits[1] / limits[0]) / 6
    shown = [tick for tick in ticks if tick == 1 or abs(math.log10(tick)) > far]
    axes.minorticks_off()
    axes.set_xticks(shown, [f"{tick:g}×" for tick in shown], size=SIZE)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def draw_dot(axes: Axes, dot: Any, place: float) -> None:
    """Draw a ratio with its interval and its number; a range of hosts is paler than an interval."""
    colour = dot.colour
    if pd.notna(dot.low):
        axes.hlines(
            place, dot.low, dot.high, color=colour, linewidth=2.4, alpha=0.5 if dot.ranged else 1
        )
    (mark,) = axes.plot(dot.ratio, place, dot.mark, color=colour, markersize=7)
    mark.set_gid(f"dot {dot.arm} {dot.row}")
    right = max(dot.ratio, dot.high) if pd.notna(dot.high) else dot.ratio
    known = pd.notna(dot.low) and not dot.low <= 1 <= dot.high
    axes.annotate(
        dot.label,
        (right, place),
        (6, 0),
        textcoords="offset points",
        va="center",
        size=SIZE,
        color=INK if known else SOFT,
        gid=f"label {dot.arm} {dot.row}",
    )
